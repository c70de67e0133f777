"""The reference tells every name that the docs use, once, and as a person can read it."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from underhood.core.model import ARCHITECTURES, KINDS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(reference):
    return reference.python_page()


def used_by_docs():
    """Names of `uh.NAME` in the README and the docs."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    return {name for one in pages for name in re.findall(r"\buh\.([A-Za-z]\w*)", one.read_text())}


def test_every_name_that_the_docs_use_is_told(reference, page):
    headings = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    deeper = {name for name, _ in reference.imported_by_pages()} - {"AbstractModel"}  # "Every model"
    assert used_by_docs() <= headings
    assert deeper <= headings
    assert {"compile", "draw"} <= used_by_docs()  # negative control: the search finds something
    assert len(deeper) > 5


def test_nothing_is_told_twice_and_no_address_is_shown(page):
    assert not re.findall(r"0x[0-9a-f]{4,}|<(function|class|object)", page)
    paragraphs = [text for text in page.split("\n\n") if len(text) > 60]
    assert len(set(paragraphs)) == len(paragraphs)
    headings = re.findall(r"^### (.+)$", page, re.MULTILINE)
    assert len(set(headings)) == len(headings)


def test_a_default_that_is_a_function_has_no_address(reference):
    def call(x, warn=lambda text: None, dtype=int):
        """Control: its own text has an address."""

    assert reference._signature(call) == "(x, warn=..., dtype=...)"


def test_signatures_can_be_read_by_python(page):
    for code in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        name = code.partition("(")[0]
        ast.parse(code.replace(name, "def f", 1).strip() + ": pass")


def test_every_architecture_and_kind_is_listed(reference):
    page = reference.architectures_page()
    for name in [*ARCHITECTURES, *KINDS]:
        assert f"| `{name}` |" in page


def test_the_answer_is_no_explains_every_diagnosis():
    from underhood.decompiler.from_outputs import diagnosis

    page = (ROOT / "docs" / "not-attention.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE).count("softmax") == 1
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) - {"what"} == {
        record.what for record in diagnosis.DIAGNOSES
    }
