"""The page, the picture and the archive of a map show the numbers of the map."""

import io

import numpy as np
import pytest

import underhood as uh
from underhood.explain.maps import AttentionMap, Completeness
from underhood.pages.attend import MOST_NUMBERS, archive, meaning, page, page_data, require_page
from underhood.pages.map_figure import PANELS, draw_map

LENGTH = 24
UP, DOWN, LEFT = "\ue013", "\ue015", "\ue012"
TOKENS = [f"w{index}" for index in range(LENGTH - 2)] + ["</script><b>", "猫 $x$"]


def attention(seed=0):
    return uh.random_attention(3, heads=2, seed=seed)


def sequence(length=LENGTH):
    return np.random.default_rng(1).normal(size=(length, 3))


def reference(model, xs):
    """c[t, s] = Σ_heads v_s (k_s · q_t) for s ≤ t, in NumPy."""
    weights = (np.asarray(one) for one in (model.w_value, model.w_key, model.w_query))
    values, keys, queries = (np.einsum("td,hkd->htk", xs, one) for one in weights)
    return np.einsum("hts,hsv->tsv", np.tril(np.einsum("htk,hsk->hts", queries, keys)), values)


def made_up(maps=1, length=5, *, kind="exact", gap=0.0, reduce="none"):
    weights = np.tril(np.random.default_rng(0).normal(size=(maps, length, length)))
    outputs = np.ones((length, 2))
    names = tuple(f"channel {index}" for index in range(maps))
    return AttentionMap(weights, kind, Completeness.of(outputs, (1 - gap) * outputs), reduce, names)


@pytest.fixture
def opened(browser, tmp_path):
    xs = sequence()
    uh.attend(attention(), xs, tmp_path / "m.html", tokens=TOKENS, name="<i>mine</i>")
    browser.open(tmp_path / "m.html")
    assert browser.requests() == [(tmp_path / "m.html").as_uri()]
    yield browser, reference(attention(), xs)
    assert browser.complaints() == []


def rows_of(browser, length=LENGTH):
    found = np.zeros((length, length))
    for t, row in enumerate(browser.run(f"return [...Array({length}).keys()].map(window.underhood.row)")):
        found[t, : t + 1] = row
    return found


def point(browser, t, s):
    """Client coordinates of a cell, scrolled into view."""
    browser.run("document.querySelector('canvas').scrollIntoView({block: 'center', behavior: 'instant'})")
    return [round(one) for one in browser.run("return window.underhood.pointOf(arguments[0], arguments[1])", t, s)]


def at_point(browser, t, s, *, click=False):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    x, y = point(browser, t, s)
    actions = ActionBuilder(browser.driver)
    actions.pointer_action.move_to_location(x, y)
    actions.perform()
    if click:
        ActionChains(browser.driver).click().perform()


@pytest.mark.parametrize("xs", [[[1, 2, 3], [4]], [["a", "b", "c"]]])
def test_what_is_no_sequence_is_refused(xs, tmp_path):
    with pytest.raises(
        uh.UnderhoodError, match=r"its rows numbers; got list|expected numbers as inputs; got the dtype"
    ):
        uh.attend(attention(), xs, tmp_path / "m.html", tokens=["a"])


def test_the_pages_numbers_are_numpys(opened):
    browser, wanted = opened
    names = browser.run("return window.underhood.names()")
    parts = uh.attention_map(attention(), sequence(), reduce="none")
    assert names[2:] == list(parts.names)
    for index, weights in enumerate([np.linalg.norm(wanted, axis=2), wanted.sum(axis=2), *parts.weights]):
        browser.run("window.underhood.show(arguments[0])", index)
        assert np.max(np.abs(rows_of(browser) - weights)) <= 1e-6 * np.max(np.abs(weights))
    browser.run("window.underhood.show(1)")
    other = reference(attention(5), sequence()).sum(axis=2)  # negative control
    assert np.max(np.abs(rows_of(browser) - other)) > 0.1 * np.max(np.abs(other))
    assert browser.text("h1") == "<i>mine</i>"
    assert "is rounding" in browser.text("#meaning")


def test_hover_click_and_keys(opened):
    browser, wanted = opened
    sums = wanted.sum(axis=2)
    browser.run("window.underhood.show(1)")
    at_point(browser, 20, 3)
    assert browser.text("#tip").startswith("step 20 ‘w20’ from step 3 ‘w3’\n" + f"{sums[20, 3]:.4g}"[:5])
    at_point(browser, 3, 20)
    assert "comes after" in browser.text("#tip")
    at_point(browser, 23, 0, click=True)
    at_point(browser, 22, 5, click=True)
    assert browser.run("return window.underhood.step()") == 22
    assert browser.text("#chosen") == "Step 22 ‘</script><b>’ comes from"
    order = np.argsort(-np.abs(sums[22, :23]), kind="stable")[:12]
    rows = browser.run("return [...document.querySelectorAll('#largest [data-s]')].map(row => Number(row.dataset.s))")
    assert rows == order.tolist()
    signs = browser.run("return [...document.querySelectorAll('#positions rect')].map(bar => bar.classList[0])")
    assert signs == ["n" if value < 0 else "p" for value in sums[22, :23]]
    browser.press("canvas", UP, UP, DOWN)
    assert browser.run("return window.underhood.step()") == 21
    browser.press("canvas", LEFT, LEFT)
    assert "step 21 ‘w21’ from step 20 ‘w20’" in browser.text("#tip")
    browser.press("body", LEFT)
    assert browser.text("#at") == "step 20 of 0 to 23"


PIXEL = """const [x, y] = window.underhood.pointOf(arguments[0], arguments[1]);
const canvas = document.querySelector("canvas");
const box = canvas.getBoundingClientRect();
return [...canvas.getContext("2d").getImageData(Math.floor(x - box.left), Math.floor(y - box.top), 1, 1).data]"""


def test_512_steps_are_sharp_and_can_be_enlarged(browser, tmp_path):
    xs = sequence(512)
    uh.attend(attention(), xs, tmp_path / "m.html", reduce="sum")
    assert (tmp_path / "m.html").stat().st_size < 5e6
    weights = reference(attention(), xs).sum(axis=2)
    shares = weights / np.max(np.abs(weights))
    browser.open(tmp_path / "m.html")
    positive, negative, zero = (np.array(one) for one in ((0x21, 0x66, 0xAC), (0xB2, 0x18, 0x2B), (255, 255, 255)))
    for times in range(2):
        browser.run("window.underhood.goTo(300); window.underhood.enlarge(arguments[0])", 9 * times)
        for t, s in ((290, 290), (295, 290), (293, 289)):
            wanted = zero + abs(shares[t, s]) * ((positive if shares[t, s] > 0 else negative) - zero)
            assert np.max(np.abs(np.array(browser.run(PIXEL, t, s)[:3]) - wanted)) <= 1.01, (t, s)
    browser.open(tmp_path / "m.html", width=390, scheme="dark")
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.complaints() == []


def test_a_page_keeps_the_largest_channels_and_says_so():
    maps, length = 40, 512  # more than there is room for
    weights = np.tril(np.ones((maps, length, length))) * np.arange(maps)[:, None, None]
    names = tuple(f"channel {index}" for index in range(maps))
    found = AttentionMap(weights, "exact", made_up(length=length).completeness, "none", names)
    whole = made_up(length=length, reduce="norm")
    data = page_data({"norm": whole, "sum": whole, "none": found}, None, "none")
    kept = MOST_NUMBERS // (length * (length + 1) // 2) - 2
    assert [one["name"] for one in data["maps"][2:]] == list(names[-kept:])
    text = page({"norm": whole, "sum": whole, "none": found}, None, name="n", what="w", chosen="norm")
    assert f"the {kept} largest of 40 heads or channels" in text
    small = made_up(3)
    text = page(dict.fromkeys(("norm", "sum", "none"), small), None, name="n", what="w", chosen="sum")
    assert "heads or channels" not in text
    with pytest.raises(uh.UnderhoodError, match="steps for a page"):
        require_page(1414)
    require_page(1413)


def test_the_archive_has_all(tmp_path):
    found = made_up(3)
    read = np.load(io.BytesIO(archive(found, ["a", "bé", "", "d", "e"])), allow_pickle=False)
    assert np.array_equal(read["weights"], found.weights)
    assert np.array_equal(read["completeness_steps"], found.completeness.steps)
    assert (read["names"].tolist(), read["tokens"].tolist()) == (list(found.names), ["a", "bé", "", "d", "e"])
    assert "tokens" not in np.load(io.BytesIO(archive(found, None)))


@pytest.mark.parametrize(("maps", "tokens"), [(1, ["$x_", "猫", "", "a\x00\t", "one long word"]), (PANELS + 2, None)])
def test_a_picture_of_any_tokens(maps, tokens):
    from matplotlib.image import imread

    picture = imread(io.BytesIO(draw_map(made_up(maps), tokens, "a $title$")))
    assert min(picture.shape[:2]) > 500
    assert np.ptp(picture[..., 0]) > 0.5


@pytest.mark.parametrize(
    ("kind", "gap", "says"),
    [
        ("exact", 1e-16, "is rounding"),
        ("frozen", 0.02, "but for 2 % of them"),
        ("jacobian", 2.04, "miss them by 204 %"),
    ],
)
def test_completeness_is_told_in_words(kind, gap, says):
    text = meaning(made_up(kind=kind, gap=gap))
    assert kind in text.lower() and says in text
    assert says not in meaning(made_up(kind=kind, gap=0.1))
