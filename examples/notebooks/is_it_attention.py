"""Notebook: is a network attention?

marimo edit examples/notebooks/is_it_attention.py
"""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo
    import numpy as np

    import underhood as uh

    mo.md("""
    # Is it attention?

    Three networks, one question. The first was compiled from attention and disguised. The second is the same with one
    neuron that forgets a little. The third is a random LSTM.
    """)
    return mo, np, uh


@app.cell
def _(np, uh):
    attention = uh.random_attention(3, seed=1)
    disguised = uh.disguise(uh.compile(attention, to="gated-rnn").model, seed=2)

    compiled = uh.compile(attention, to="gated-rnn").model
    lambda_ = np.array(compiled.lambda_)
    lambda_[0] = 0.99
    forgetful = uh.GatedRNN.from_lambda(compiled.input_gating, lambda_, compiled.output_gating, compiled.readout)

    lstm = uh.make_model("lstm", 3, hidden=8, seed=3, dtype=np.float64)
    networks = {"disguised": disguised, "forgetful": forgetful, "random LSTM": lstm}
    return attention, networks


@app.cell
def _(mo, networks, uh):
    found = {name: uh.decompile(network) for name, network in networks.items()}
    lines = [f"| {name} | **{one.verdict}** | {one.r2:.6f} | {one.reason} |" for name, one in found.items()]
    mo.md("\n".join(["| network | verdict | R² | because |", "|---|---|---|---|", *lines]))
    return (found,)


@app.cell
def _(attention, found, mo, np):
    xs = np.random.default_rng(0).normal(size=(100, 3))
    read_back = found["disguised"]
    error = float(np.max(np.abs(read_back.attention(xs) - attention(xs))))
    bound = read_back.certificate.max_abs_error
    mo.md(f"""
    The attention read back from the disguised network gives the outputs of the one that was hidden, to {error:.1e}. The
    certificate bounds how far network and attention can be apart on **any** inputs within
    ±{read_back.certificate.input_bound:g}: {bound:.1e}. Of {read_back.hidden_before} hidden neurons,
    {read_back.hidden_after} are enough.
    """)
    return bound, error


@app.cell
def _(found, mo):
    terms = sorted(found["forgetful"].evidence.rest.items(), key=lambda item: -item[1])[:3]
    mo.md(
        "What the forgetful network has that attention does not:\n\n" + "\n".join(f"- {n}: {v:.1e}" for n, v in terms)
    )
    return


if __name__ == "__main__":
    app.run()
