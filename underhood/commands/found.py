"""What decompile and probe print: the verdict first, then what it rests on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from underhood.commands.output import ANSWER_IS_NO, DONE, note, print_json, show

if TYPE_CHECKING:
    from underhood.decompiler.result import Found

ROUNDING = 1e-12  # terms below it tell a reader nothing
LARGEST_PRINTED = 8  # a wider matrix is for a file, not for a screen


def answer(
    found: Found,
    *,
    json: bool,
    out: Path | None,
    reduced: Path | None,
    provenance: dict[str, Any],
) -> int:
    """Print, write what was asked for, and turn the verdict into the exit code.

    An attention is written where the answer is no, too: the nearest one, and a line says that it is not the network.
    """
    from underhood.core.files import save

    for what, model, path in (("attention", found.attention, out), ("smaller network", found.reduced, reduced)):
        if path is None:
            continue
        if model is None:
            note(f"underhood: found no {what}, so {path} is not written")
            continue
        save(model, path, provenance=provenance)
        if model is found.attention and not found.is_attention:
            note(f"underhood: {path} holds the nearest attention (R² = {found.r2:.3g}), not the network's function")
    print_json(found.as_data()) if json else _print(found)
    return DONE if found.is_attention else ANSWER_IS_NO


def _print(found: Found) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    colour = "green" if found.is_attention else "red"
    heads = "" if found.heads is None else f", {found.heads} head{'s' * (found.heads > 1)}"
    console.print(f"[bold {colour}]{escape(found.verdict + heads)}[/]")
    console.print(escape(found.reason), highlight=False)
    for diagnosis in found.diagnosis:
        r2, what = diagnosis["r2"], f"{diagnosis['what']}: {diagnosis['meaning']}"
        explains = "" if r2 is None else f" (R² = {r2:.6g})"
        console.print(escape(f"{what}{explains}. {diagnosis['remedy']}".rstrip()), highlight=False)
    table = Table("evidence", "", "meaning", title_justify="left")
    for name, value, meaning in _rows(found):
        table.add_row(escape(name), escape(value), escape(meaning))
    if found.evidence.r2_on_inputs is not None:
        share = f"{found.evidence.r2_on_inputs:.6g}"
        table.add_row("R² on your inputs", share, "of the best attention for them, on the second half")
    show(table)
    if found.is_attention:
        _print_matrices(console, found)


def _rows(found: Found) -> list[tuple[str, str, str]]:
    rows = [("R²", _r2(found), "of the attention, on fresh sequences")]
    seen = found.evidence
    if seen.deviation is not None:
        rows.append(("deviation", f"{seen.deviation:.2e}", f"of the output; tolerance {seen.tolerance:.0e}"))
    shown = [item for item in seen.rest.items() if item[1] > ROUNDING]
    largest = sorted(shown, key=lambda item: -item[1])[:3]
    rows += [(f"  {name}", f"{size:.2e}", "a term that attention does not have") for name, size in largest]
    for name, value, meaning in (
        ("KV score", found.scores.kv_score, "1 − R² of key-values from memory neurons"),
        ("Q score", found.scores.q_score, "1 − R² of queries from forget neurons"),
        ("polynomial distance", found.scores.polynomial_distance, "all monomials of degree ≤ 4"),
    ):
        if value is not None:
            rows.append((name, f"{value:.2e}", meaning))
    if seen.neurons is not None:
        memory, forget = int(seen.neurons.perfect_memory.sum()), int(seen.neurons.perfect_forget.sum())
        others = len(seen.neurons.lambda_) - memory - forget
        rows.append(("λ near 1, near 0, other", f"{memory}, {forget}, {others}", "hidden neurons as they came"))
    counts = (
        ("hidden neurons", found.hidden_before, found.hidden_after),
        ("pre-readout neurons", found.pre_readout_before, found.pre_readout_after),
    )
    for name, before, after in counts:
        if before is not None and after in (None, before):
            rows.append((name, f"{before}", "" if after is None else "none to prune or merge"))
        elif before is not None:
            rows.append((name, f"{before} → {after}", "after pruning and merging"))
    if found.reduced_change is not None and any(after not in (None, before) for _, before, after in counts):
        rows.append(("change of function", f"{found.reduced_change:.2e}", "relative, by pruning and merging"))
    for kernel in () if seen.smallest is None else seen.smallest.kernels[:3]:
        values = ", ".join(f"{value:.2g}" for value in kernel.eigenvalues[:3])
        rows.append((f"{len(kernel.rows)} rows, {kernel.needed} needed", values, "largest eigenvalues of their kernel"))
    if found.decay is not None:
        rows.append(("decay", ", ".join(f"{one:.6g}" for one in found.decay), "of each head"))
    if found.certificate is not None:
        bound = found.certificate
        scope = f"|error| at most, for inputs within ±{bound.input_bound:g} and t ≤ {bound.horizon}"
        rows.append(("certificate", f"{bound.max_abs_error:.2e}", scope))
    return rows


def _r2(found: Found) -> str:
    if found.r2_interval is None:
        return f"{found.r2:.9g}"
    low, high = found.r2_interval
    return f"{found.r2:.9g} ({low:.6g} to {high:.6g})"


def _print_matrices(console: Any, found: Found) -> None:
    import numpy as np

    attention = found.attention
    if attention is None or attention.d > LARGEST_PRINTED or attention.heads > 3:
        return
    with np.printoptions(precision=3, suppress=True):
        for head in range(attention.heads):
            name = f" of head {head + 1}" if attention.heads > 1 else ""
            console.print(f"W_V{name}", highlight=False)
            console.print(str(np.asarray(attention.w_value[head])), highlight=False, markup=False)
            console.print(f"W_KᵀW_Q{name}", highlight=False)
            console.print(str(attention.key_query[head]), highlight=False, markup=False)
