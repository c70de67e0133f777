// Eq. 1, recurrent: W_t = decay · W_{t-1} + v kᵀ;  y = Σ_heads W_t q
const times = (matrix, x) => matrix.map(row => row.reduce((sum, value, j) => sum + value * x[j], 0));
const zeros = n => new Array(n).fill(0);
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
