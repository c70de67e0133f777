"""The paper's equations in NumPy, transcribed from the text one by one, without a look at the package.

The test file of a newer cell brings its own, `@transcribes("mamba-cell")` in test_mamba.py, read when it is asked for.
It imports torch and the public modules inside its tests: environments without them read the transcriptions too.
"""

import importlib

import numpy as np

REFERENCES = {}


def transcribes(*kinds):
    """Decorator: reference(model, xs) → outputs, for these kinds."""

    def register(function):
        REFERENCES.update(dict.fromkeys(kinds, function))
        return function

    return register


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


@transcribes("linear-attention")
def attention(model, xs):
    """Eq. 1 as a double loop over time, and one over heads."""
    w_value, w_key, w_query = (np.asarray(w) for w in (model.w_value, model.w_key, model.w_query))
    decay = np.ones(len(w_value)) if model.decay is None else np.asarray(model.decay)
    ys = np.zeros((len(xs), w_value.shape[1]))
    for head in range(len(w_value)):
        values, keys, queries = ([w[head] @ x for x in xs] for w in (w_value, w_key, w_query))
        for t in range(len(xs)):
            for s in range(t + 1):
                ys[t] += decay[head] ** (t - s) * (keys[s] @ queries[t]) * values[s]
    return ys


@transcribes("gated-rnn", "gated-rnn-dense")
def gated_rnn(model, xs):
    """Eq. 2, inclusive form, diagonal or dense recurrence."""
    w_in_m, w_in_x = np.asarray(model.input_gating.w_m), np.asarray(model.input_gating.w_x)
    w_out_m, w_out_x = np.asarray(model.output_gating.w_m), np.asarray(model.output_gating.w_x)
    dense = hasattr(model, "recurrence")
    recurrence = np.asarray(model.recurrence) if dense else np.diag(np.exp(-np.exp(np.asarray(model.nu))))
    h, ys = np.zeros(len(w_in_m)), []
    for x in xs:
        x = np.append(x, 1.0)
        h = recurrence @ h + (w_in_m @ x) * (w_in_x @ x)
        ys.append(np.asarray(model.readout) @ ((w_out_m @ h) * (w_out_x @ h)))
    return np.array(ys)


@transcribes("lru-cell")
def lru_cell(cell, xs):
    """Eq. 6–9 and the two variations of Appendix A.1."""
    lambda_ = np.exp(-np.exp(np.asarray(cell.nu_log)) + 1j * np.exp(np.asarray(cell.theta_log)))
    gamma = np.exp(np.asarray(cell.gamma_log))
    b = np.asarray(cell.b_real) + 1j * np.asarray(cell.b_imag)
    c = np.asarray(cell.c_real) + 1j * np.asarray(cell.c_imag)
    h, ys = np.zeros(len(lambda_), complex), []
    for x in xs:
        u = x
        if cell.form != "out":
            u = sigmoid(np.asarray(cell.input_gating.w_m) @ x) * (np.asarray(cell.input_gating.w_x) @ x)
        h = lambda_ * h + gamma * (b @ u)
        y_hat = (c @ h).real + np.asarray(cell.skip) @ u
        m = x if cell.form == "in-skip" else y_hat
        ys.append(sigmoid(np.asarray(cell.output_gating.w_m) @ m) * (np.asarray(cell.output_gating.w_x) @ y_hat))
    return np.array(ys)


@transcribes("lstm-cell")
def lstm_cell(cell, xs):
    """Eq. 10–15."""
    (u_f, u_c, u_g, u_o), (v_f, v_c, v_g, v_o) = np.asarray(cell.u), np.asarray(cell.v)
    b_f, b_c, b_g, b_o = np.asarray(cell.b)
    h, c, hs = np.zeros(len(b_f)), np.zeros(len(b_f)), []
    for x in xs:
        f = sigmoid(u_f @ x + v_f @ h + b_f)
        candidate = np.tanh(u_c @ x + v_c @ h + b_c)
        g = sigmoid(u_g @ x + v_g @ h + b_g)
        o = sigmoid(u_o @ x + v_o @ h + b_o)
        c = f * c + g * candidate
        h = o * np.tanh(c)
        hs.append(h)
    return np.array(hs)


@transcribes("gru-cell")
def gru_cell(cell, xs):
    """Eq. 16–19, or torch's reading of Eq. 17 with its bias inside the reset."""
    (u_r, u_h, u_z), (v_r, v_h, v_z) = np.asarray(cell.u), np.asarray(cell.v)
    b_r, b_h, b_z = np.asarray(cell.b)
    h, hs = np.zeros(len(b_r)), []
    for x in xs:
        r = sigmoid(u_r @ x + v_r @ h + b_r)
        if cell.reset == "after":
            candidate = np.tanh(u_h @ x + b_h + r * (v_h @ h + np.asarray(cell.b_hn)))
        else:
            candidate = np.tanh(u_h @ x + v_h @ (r * h) + b_h)
        z = sigmoid(u_z @ x + v_z @ h + b_z)
        h = (1 - z) * h + z * candidate
        hs.append(h)
    return np.array(hs)


@transcribes("stack")
def stack(model, xs):
    """Section 3.3: embedding, cells, readout."""
    signal = xs @ np.asarray(model.embedding.weight).T + np.asarray(model.embedding.bias)
    for cell in model.cells:
        signal = reference(cell, signal)
    return signal @ np.asarray(model.readout.weight).T + np.asarray(model.readout.bias)


def reference(model, xs):
    if model.kind not in REFERENCES:
        importlib.import_module(f"tests.architectures.test_{type(model).__module__.split('.')[2]}")
    return REFERENCES[model.kind](model, np.asarray(xs, np.float64))
