"""Notebook: a student learns attention from sequences.

marimo edit examples/notebooks/from_sequences_to_attention.py
"""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo
    import numpy as np

    import underhood as uh
    from underhood.training.second_order.levenberg import fit_levenberg

    mo.md("""
    # From sequences to attention

    A teacher computes linear attention. A gated RNN sees only sequences and the teacher's answers. What does it become?
    """)
    return fit_levenberg, mo, np, uh


@app.cell
def _(fit_levenberg, np, uh):
    teacher = uh.random_attention(2, seed=0)
    xs = np.random.default_rng(0).normal(size=(300, 16, 2))
    ys = np.stack([teacher(one) for one in xs])
    student = fit_levenberg(xs[:200], ys[:200], held_out=(xs[200:], ys[200:]), seed=1, target_loss=1e-18)
    return student, teacher


@app.cell
def _(mo, student):
    mo.md(
        f"After {student.iterations} iterations its loss on sequences it never saw is **{student.held_out_loss:.1e}**."
    )
    return


@app.cell
def _(student, teacher, uh):
    found = uh.decompile(student.model, against=teacher)
    return (found,)


@app.cell
def _(found, mo):
    mo.md(f"""
    Verdict: **{found.verdict}**. {found.reason}.

    | | | zero is perfect |
    |---|---|---|
    | KV score | {found.scores.kv_score:.1e} | key-values, read linearly from the memory neurons |
    | Q score | {found.scores.q_score:.1e} | queries, from the forget neurons |
    | polynomial distance | {found.scores.polynomial_distance:.1e} | the whole function, not only on these inputs |

    It has {found.hidden_before} hidden neurons, and {found.hidden_after} would do.
    """)
    return


@app.cell
def _(found):
    from underhood.pages.charts import WEIGHT_CAPTIONS, weight_panels
    from underhood.pages.drawing import Line, draw_pipeline

    weights = Line("", weight_panels(found.reduced), WEIGHT_CAPTIONS)
    figure = draw_pipeline([weights], "The student, reduced: key-values and queries stand apart")
    figure  # noqa: B018  (a notebook shows the last line)
    return (figure,)


if __name__ == "__main__":
    app.run()
