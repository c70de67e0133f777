"""Attention compiled into today's layers: errors and bounds over sizes, heads and seeds, and in the public modules.

    python -m benchmarks zoo [mamba …]

Every target for d from 2 to 8, 1 to 3 heads, a seed each, horizon 200, inputs within ±4, in float64 and in float32; the
public torch classes with the float32 weights; minGRU with two layers and with three. And `uh.probe` of the public
MambaMixer with compiled weights, which must find W_KᵀW_Q again.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import underhood as uh
from benchmarks.measure import row, show, store
from underhood.studies.zoo import public_error

SIZES, HEADS, HORIZON, INPUT_BOUND = range(2, 9), (1, 2, 3), 200, 4.0
# (target, layers) → the largest relative error allowed in float64.
EXACT = {(name, None): 1e-12 for name in ("mamba", "mamba2", "gla", "mlstm", "rwkv7")}
LIMITS = {("griffin", None): 1e-6, ("gated-deltanet", None): 1e-6, ("mesanet", None): 1e-5}
MOST = {**EXACT, **LIMITS, ("mingru", 3): 1e-5, ("mingru", 2): 1e-3}
PUBLIC = {"mamba": 1e-5, "mamba2": 1e-5, "mlstm": 1e-5, "gated-deltanet": 1e-5, "griffin": None}
LOOSEST, PROBED = 1000.0, 1e-6


def sources(target: str) -> list[uh.LinearAttention]:
    """One for every size and number of heads, with a seed of its own."""
    return [
        uh.random_attention(d, heads=heads, seed=100 * d + 10 * heads + len(target)) for d in SIZES for heads in HEADS
    ]


def swept(target: str, layers: int | None, dtype: str, sources: list[uh.LinearAttention]) -> dict[str, float]:
    """The largest error, the range of bound over error, and where there is a public class the largest error in it."""
    errors, ratios, public = [], [], []
    for source in sources:
        compiled = uh.compile(
            source, to=target, layers=layers, horizon=HORIZON, input_bound=INPUT_BOUND, dtype=dtype, tolerance=1.0
        )
        errors.append(compiled.max_rel_error)
        ratios.append(compiled.error_bound / compiled.max_abs_error)
        if target in PUBLIC and dtype == "float32":
            public.append(public_error(compiled.model, source))
    return {"error": max(errors), "least": min(ratios), "most": max(ratios), "public": max(public, default=0.0)}


def probed() -> float:
    """How far the W_KᵀW_Q that a probe finds in the public MambaMixer is from the one compiled."""
    source = uh.random_attention(4, seed=7)
    compiled = uh.compile(source, to="mamba", horizon=HORIZON, input_bound=INPUT_BOUND, dtype="float64")
    found = uh.probe(uh.to_torch(compiled.model), d=4).attention
    heads = [[np.asarray(one[0]) for one in (one.w_value, one.w_key, one.w_query)] for one in (source, found)]
    wanted, got = (w_value[:, :, None, None] * (w_key.T @ w_query) for w_value, w_key, w_query in heads)
    return float(np.max(np.abs(got - wanted)) / np.max(np.abs(wanted)))


def main(names: list[str]) -> int:
    rows = []
    for (target, layers), most in MOST.items():
        if names and target not in names:
            continue
        label, begin = target if layers is None else f"{target}, {layers} layers", len(rows)
        for dtype in ("float64", "float32"):
            found = swept(target, layers, dtype, sources(target))
            rows.append(_at_most(f"{label}, {dtype}: error", found["error"], most if dtype == "float64" else None))
            rows.append(_at_most(f"{label}, {dtype}: bound over error, most", found["most"], LOOSEST))
            rows.append(row(f"{label}, {dtype}: bound over error, least", found["least"], at_least=1.0))
        if target in PUBLIC:
            rows.append(_at_most(f"{label}, float32: error in the public module", found["public"], PUBLIC[target]))
        show(label, rows[begin:])
    if not names or "mamba" in names:
        rows.append(_at_most("mamba: W_KᵀW_Q found by a probe of MambaMixer", probed(), PROBED))
    store("zoo", rows, {"d": list(SIZES), "heads": HEADS, "horizon": HORIZON, "input_bound": INPUT_BOUND})
    return int(any(one["met"] is False for one in rows))


def _at_most(name: str, here: float, most: float | None) -> dict[str, Any]:
    entry = row(name, here, detail="" if most is None else f"at most {most:g}")
    return {**entry, "at_most": most, "met": None if most is None else bool(here <= most)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
