// Every network of the package in float64, as its equations stand in underhood/cells: step(state, x) → {state, y, …}.
function times(matrix, x) {
  const result = new Array(matrix.length);
  for (let i = 0; i < matrix.length; i++) {
    const row = matrix[i];
    let sum = 0;
    for (let j = 0; j < row.length; j++) sum += row[j] * x[j];
    result[i] = sum;
  }
  return result;
}
const product = (a, b) => a.map((value, i) => value * b[i]);
const plus = (a, b) => a.map((value, i) => value + b[i]);
const sigma = z => 1 / (1 + Math.exp(-z));
const zeros = n => new Array(n).fill(0);

// Eq. 2: h = λ ⊙ h + (W_m x̃) ⊙ (W_x x̃);  y = D [(W_m h) ⊙ (W_x h)]
function gatedRnn(w) {
  const n = w.input_gating.w_m.length;
  return {
    lambda: w.lambda_ || null,
    initial: () => zeros(n),
    step(state, x) {
      const extended = [...x, 1];
      const left = times(w.input_gating.w_m, extended), right = times(w.input_gating.w_x, extended);
      const added = product(left, right);
      const kept = w.lambda_ ? product(w.lambda_, state) : times(w.recurrence, state);
      const h = plus(kept, added);
      const m = times(w.output_gating.w_m, h), q = times(w.output_gating.w_x, h), multiplied = product(m, q);
      return { state: h, y: times(w.readout, multiplied), shown: h, input: [left, right, added], output: [m, q, multiplied] };
    },
  };
}

// Eq. 10–15: c = f ⊙ c + g ⊙ c̃;  h = o ⊙ tanh c, gates in the order f, c̃, g, o
function lstm(w) {
  const n = w.b[0].length;
  return {
    lambda: null,
    initial: () => ({ h: zeros(n), c: zeros(n) }),
    step({ h, c }, x) {
      const [f, candidate, g, o] = w.u.map((u, gate) => {
        const driven = plus(times(u, x), w.b[gate]);
        return w.v ? plus(driven, times(w.v[gate], h)) : driven;
      });
      const next = c.map((value, i) => sigma(f[i]) * value + sigma(g[i]) * Math.tanh(candidate[i]));
      const out = next.map((value, i) => sigma(o[i]) * Math.tanh(value));
      return { state: { h: out, c: next }, y: out, shown: next };
    },
  };
}

// Eq. 16–19: h = (1 − z) ⊙ h + z ⊙ h̃, gates in the order r, h̃, z; the reset before the product, or after it as in torch
function gru(w) {
  const n = w.b[0].length;
  return {
    lambda: null,
    initial: () => zeros(n),
    step(h, x) {
      const [r, c, z] = w.u.map((u, gate) => plus(times(u, x), w.b[gate]));
      const reset = plus(r, times(w.v[0], h)).map(sigma), update = plus(z, times(w.v[2], h)).map(sigma);
      const recurrent = w.b_hn ? product(reset, plus(times(w.v[1], h), w.b_hn)) : times(w.v[1], product(reset, h));
      const candidate = plus(c, recurrent).map(Math.tanh);
      const next = h.map((value, i) => (1 - update[i]) * value + update[i] * candidate[i]);
      return { state: next, y: next, shown: next };
    },
  };
}

// Eq. 6–9: h = λ ⊙ h + γ ⊙ (B u), complex;  y = σ(W_m ·) ⊙ (W_x (Re[C h] + D u))
function lru(w) {
  const n = w.nu_log.length;
  const size = w.nu_log.map(nu => Math.exp(-Math.exp(nu))), angle = w.theta_log.map(Math.exp), gamma = w.gamma_log.map(Math.exp);
  const real = size.map((s, i) => s * Math.cos(angle[i])), imag = size.map((s, i) => s * Math.sin(angle[i]));
  const glu = (gating, m, x) => product(times(gating.w_m, m).map(sigma), times(gating.w_x, x));
  return {
    lambda: size,
    initial: () => ({ re: zeros(n), im: zeros(n) }),
    step({ re, im }, x) {
      const u = w.input_gating ? glu(w.input_gating, x, x) : x;
      const bRe = times(w.b_real, u), bIm = times(w.b_imag, u);
      const nextRe = re.map((value, i) => real[i] * value - imag[i] * im[i] + gamma[i] * bRe[i]);
      const nextIm = im.map((value, i) => real[i] * value + imag[i] * re[i] + gamma[i] * bIm[i]);
      const minus = times(w.c_imag, nextIm);
      const read = plus(plus(times(w.c_real, nextRe), minus.map(value => -value)), times(w.skip, u));
      return { state: { re: nextRe, im: nextIm }, y: glu(w.output_gating, w.form === "in-skip" ? x : read, read), shown: nextRe };
    },
  };
}

function stack(w) {
  const cells = w.cells.map(networkOf);
  const affine = (layer, x) => plus(times(layer.weight, x), layer.bias);
  return {
    lambdas: cells.map(cell => cell.lambda),
    initial: () => cells.map(cell => cell.initial()),
    step(states, x) {
      let signal = affine(w.embedding, x);
      const next = [], layers = [];
      cells.forEach((cell, i) => {
        const made = cell.step(states[i], signal);
        next.push(made.state); layers.push(made.shown); signal = made.y;
      });
      return { state: next, y: affine(w.readout, signal), layers };
    },
  };
}

const KINDS = { "gated-rnn": gatedRnn, "gated-rnn-dense": gatedRnn, "lstm-cell": lstm, "gru-cell": gru, "lru-cell": lru, "stack": stack };
function networkOf(weights) { return KINDS[weights.kind](weights); }

// Eq. 1, recurrent: W_t = decay · W_{t-1} + v kᵀ;  y = Σ_heads W_t q
function attentionOf(w) {
  const heads = w.w_value.length;
  const decay = w.decay || zeros(heads).map(() => 1);
  return {
    initial: () => w.w_value.map((value, h) => value.map(() => zeros(w.w_key[h].length))),
    step(state, x) {
      const values = w.w_value.map(m => times(m, x)), keys = w.w_key.map(m => times(m, x)), queries = w.w_query.map(m => times(m, x));
      const next = state.map((matrix, h) => matrix.map((row, i) => row.map((old, j) => decay[h] * old + values[h][i] * keys[h][j])));
      const y = zeros(w.w_value[0].length);
      next.forEach((matrix, h) => times(matrix, queries[h]).forEach((value, i) => { y[i] += value; }));
      return { state: next, y, values, keys, queries };
    },
  };
}

function runOver(network, xs) {
  let state = network.initial();
  return xs.map(x => { const made = network.step(state, x); state = made.state; return made; });
}
