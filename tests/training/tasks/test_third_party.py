"""A task of another package, known by its entry point alone: training, the second-order solver, a sweep with probes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import underhood as uh

TASK = '''
from typing import Any, ClassVar
import jax, jax.numpy as jnp
from underhood.training.tasks.task import TASKS, AbstractTask


class Remember(AbstractTask):
    """y_t = x_1: give back the first input, whatever came since."""

    name: ClassVar[str] = "remember"
    size: int = 2
    length: int = 4

    d = property(lambda self: self.size)
    d_out = property(lambda self: self.size)
    steps = property(lambda self: self.length)

    def batch(self, key, size, *, validation=False, dtype=jnp.float32):
        xs = jax.random.normal(key, (size, self.length, self.size), dtype)
        return xs, jnp.broadcast_to(xs[:, :1], xs.shape)


@TASKS.register("remember")
def remember(*, size: int = 2, length: int = 4, **_: Any) -> Remember:
    return Remember(size, length)


@TASKS.register("first-order")
class FirstOrder(Remember):
    name: ClassVar[str] = "first-order"
    second_order = None
'''

COMMANDS = {
    "adamw": "train --task remember --set size=3 --hidden 3 --steps 20 --json --out {}/adamw",
    "levenberg": "train --task remember --optimizer levenberg --steps 2 --json --out {}/levenberg",
    "refused": "train --task first-order --optimizer levenberg --out {}/refused",
    "unknown": "train --task remember --set colour=3 --out {}/unknown",
    "text": "train --task remember --set size=three --out {}/text",
    "sweep": "sweep {}/spec.json --workers 1 --json --out {}/sweep",
    "list": "train --list --json",
}

SCRIPT = """
import contextlib, io, json, sys
from underhood.cli import main

if __name__ == "__main__":  # a sweep's workers import this file
    told = {}
    for name, command in json.loads(sys.argv[1]).items():
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = main(command.split())
        told[name] = code, out.getvalue(), err.getvalue()
    print(json.dumps(told))
"""

SPEC = {
    "runs": [
        {"task": "remember", "hidden": 2, "steps": 10, "probe": True, "settings": {"size": 1}},
        {"task": "remember", "hidden": 2, "steps": 2, "restarts": 0, "optimizer": "levenberg", "probe": True},
    ]
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Every command in one process, with the package installed as pip would."""
    place = tmp_path_factory.mktemp("other")
    (place / "other_package.py").write_text(TASK)
    info = place / "other-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[underhood]\nother = other_package\n")
    (place / "spec.json").write_text(json.dumps(SPEC))
    (place / "script.py").write_text(SCRIPT)
    commands = json.dumps({name: command.replace("{}", str(place)) for name, command in COMMANDS.items()})
    path = f"{place}{os.pathsep}{Path(uh.__file__).parent.parent}"
    done = subprocess.run(
        [sys.executable, str(place / "script.py"), commands],
        env={**os.environ, "PYTHONPATH": path, "NPROC": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_trains_with_settings_of_its_own(told):
    code, out, _ = told["adamw"]
    (row,) = json.loads(out)["runs"]
    assert code == 0
    assert row["held_out_loss"] > 0
    assert uh.load(row["file"]).d == 3


def test_the_second_order_solver_takes_it_or_refuses_in_one_line(told):
    code, out, _ = told["levenberg"]
    assert (code, json.loads(out)["runs"][0]["steps"]) == (0, 2)
    code, _, err = told["refused"]
    assert code == 2
    assert err == "underhood: levenberg does not train on the task first-order. Use the optimizer adamw.\n"


def test_a_sweep_with_probes(told):
    code, out, err = told["sweep"]
    assert code == 0, err
    records = json.loads(out)["runs"]
    assert [record["status"] for record in records] == ["done", "done"]
    assert all(record["attention_r2"] <= 1 for record in records)
    assert [record["length"] for record in records] == [4, 4]  # the task's own default, not another task's
    assert [record.get("settings") for record in records] == [{"size": 1}, None]


@pytest.mark.parametrize(
    ("name", "words"), [("unknown", "no setting colour. It has: size, length."), ("text", "expected size to be")]
)
def test_bad_settings_are_one_line(told, name, words):
    code, _, err = told[name]
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


def test_the_list_of_tasks_knows_it(told):
    listed = json.loads(told["list"][1])
    assert listed["tasks"]["remember"] == {"size": 2, "length": 4}
    assert "lstm" in listed["models"]
