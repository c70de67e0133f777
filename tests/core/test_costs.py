"""What a command will take: the constants against what was measured, the line that is shown, and the refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import underhood as uh
from underhood.cli import main
from underhood.compiler.compile import compile_cost
from underhood.compiler.targets import TARGETS
from underhood.core import costs, memory

MEASURED = json.loads((Path(__file__).parents[2] / "results" / "bench" / "sizes.json").read_text())


def within(cost: costs.Cost, fit: dict[str, dict[str, float]], size: int, factor: float) -> bool:
    """Both quantities, at this size."""
    pairs = zip(cost, (fit["seconds"], fit["gigabytes"]), strict=True)
    shares = [a * size**b / (one["factor"] * size ** one["exponent"]) for (a, b), one in pairs]
    return all(1 / factor <= share <= factor for share in shares)


@pytest.mark.parametrize("name", [name for name, fit in MEASURED["growth"].items() if fit and name != "streaming"])
def test_the_constants_are_what_was_measured(name):
    largest = max(row["d"] for row in MEASURED["rows"] if row["name"] == name)
    fit = MEASURED["growth"][name]
    assert all(within(costs.COSTS[name], fit, size, 1.5) for size in (largest, 2 * largest))
    spoiled = costs.COSTS[name]._replace(seconds=(3 * costs.COSTS[name].seconds[0], costs.COSTS[name].seconds[1]))
    assert not within(spoiled, fit, largest, 1.5)


def test_every_target_has_its_cost():
    assert {"compile" if name == "gated-rnn" else f"compile {name}" for name in TARGETS} <= set(costs.COSTS)


def test_only_what_is_long_or_large_is_told(monkeypatch):
    monkeypatch.setitem(costs.COSTS, "dig", costs.Cost((1.0, 2.0), (0.01, 1.0)))
    assert costs.estimate_cost("dig", 7, "a hole") is None
    assert costs.estimate_cost("dig", 20, "a hole") == "a hole will take about 6.7 min and 200 MB"
    assert costs.estimate_cost("dig", 7, "a hole", times=90) == "a hole will take about 74 min and 70 MB"
    assert costs.estimate_cost("nothing that was measured", 10**6, "a hole") is None
    monkeypatch.setattr(memory, "available_memory", lambda: 1e8)
    assert costs.estimate_cost("dig", 19, "a hole") is not None  # half of it fits
    with pytest.raises(memory.NotEnoughMemory, match=r"for a hole: it needs at least 105 MB, and 100 MB are free"):
        costs.estimate_cost("dig", 21, "a hole")


def test_compile_is_told_by_d_and_by_heads_and_refused_before_it_allocates(monkeypatch, tmp_path, capsys):
    small = uh.random_attention(3, seed=0)
    monkeypatch.setattr(memory, "available_memory", lambda: 1e15)
    assert compile_cost(small, "lstm") is None
    assert compile_cost(uh.random_attention(80, seed=0), "gru") is not None
    assert compile_cost(uh.random_attention(64, heads=4, seed=0), "mingru") is not None
    assert compile_cost(uh.random_attention(64, heads=4, seed=0), "lru-in-out") is None  # sparse
    assert compile_cost(uh.random_attention(64, heads=4, seed=0), "lru-in-skip", layers=2) is not None
    assert compile_cost(uh.random_attention(64, heads=4, seed=0), "gla") is None
    uh.save(uh.random_attention(20, seed=0), tmp_path / "a.safetensors")
    monkeypatch.setattr(memory, "available_memory", lambda: 3e6)
    arguments = ["compile", str(tmp_path / "a.safetensors"), "--to", "gru", "--out", str(tmp_path / "b.safetensors")]
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "not enough memory for compiling linear-attention with d = 20 to gru" in told
    assert not (tmp_path / "b.safetensors").exists()


def test_commands_say_what_they_will_take(monkeypatch, tmp_path, capsys):
    slow = costs.Cost((100.0, 0.0), (0.001, 0.0))
    for name in ("compile", "decompile", "probe", "levenberg"):
        monkeypatch.setitem(costs.COSTS, name, slow)
    attention, network = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    uh.save(uh.random_attention(2, seed=0), attention)
    expected = {
        f"compile {attention} --to gated-rnn --out {network} --horizon 10": "compiling linear-attention with d = 2",
        f"decompile {network}": "decompiling 6 neurons with d = 2",
        "probe numpy:cumsum --d 2": "probing d = 2",
        f"train --optimizer levenberg --d 2 --seeds 1 --out {tmp_path / 'run'}": "training d = 2, 1 seed",
    }
    for command, words in expected.items():
        main(command.split())
        assert f"underhood: {words}" in capsys.readouterr().err
