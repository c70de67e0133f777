"""The store: a line a run, no line torn, no run twice, one writer; and questions in SQL."""

import json

import pytest

from tests.sweeps.specs import SMALL
from underhood.core.errors import UnderhoodError
from underhood.sweeps.store import RESULTS, Store, query, results
from underhood.training.specification import RunSpec


def record(seed, loss):
    run = RunSpec(**SMALL, model="gru", seed=seed)
    return {"id": run.id, **run.as_dict(), "status": "done", "held_out_loss": loss}


A, B = record(0, 1.0), record(1, 0.5)


def test_what_was_added_is_there_and_once(tmp_path):
    with Store(tmp_path).opened({}, resume=False) as store:
        assert store.add(A)
        assert not store.add(A)
        assert store.add(B)
    assert results(tmp_path) == [A, B]
    with pytest.raises(UnderhoodError, match="resume=True"), Store(tmp_path).opened({}, resume=False):
        pass
    with Store(tmp_path).opened({}, resume=True) as store:
        assert set(store.done) == {A["id"], B["id"]}


def test_a_torn_last_line_is_taken_away_and_counted(tmp_path):
    whole = json.dumps(A) + "\n"
    for cut in (1, 7, len(whole) - 1):
        (tmp_path / RESULTS).write_text(whole + json.dumps(B)[:cut])
        assert results(tmp_path) == [A]
        assert query(tmp_path, "select count(*) as n from runs") == [{"n": 1}]
        with Store(tmp_path).opened({}, resume=True) as store:
            assert store.torn == 1
            assert store.add(B)
        assert results(tmp_path) == [A, B]


def test_a_broken_line_in_the_middle_is_an_error(tmp_path):
    (tmp_path / RESULTS).write_text(json.dumps(A) + '\n{"id": \n' + json.dumps(B) + "\n")
    for ask in (lambda: results(tmp_path), lambda: query(tmp_path, "select 1")):
        with pytest.raises(UnderhoodError, match="line 2"):
            ask()


def test_two_writers_on_one_folder(tmp_path):
    with Store(tmp_path).opened({}, resume=False) as store:
        store.add(A)
        with pytest.raises(UnderhoodError, match="another process"), Store(tmp_path).opened({}, resume=True):
            pass
    assert results(tmp_path) == [A]


def test_questions(tmp_path):
    with Store(tmp_path).opened({}, resume=False) as store:
        store.add(A)
        store.add(B)
    assert query(tmp_path, "select model, min(held_out_loss) as best from runs group by model") == [
        {"model": "gru", "best": 0.5}
    ]
    with pytest.raises(UnderhoodError, match="SQL"):
        query(tmp_path, "select nonsense from runs")
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with pytest.raises(UnderhoodError):  # a question reads the results and nothing else
        query(tmp_path, f"select * from '{secret}'")
    with pytest.raises(UnderhoodError, match=r"results\.jsonl"):
        query(tmp_path / "none", "select 1")
