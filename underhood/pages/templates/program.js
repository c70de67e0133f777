// Runs one step of a network: the list of operations that underhood/interop/program.py made of its equations.
// An array is {shape, data}: numbers in a flat list, the last axis running fastest.
const sizeOf = shape => shape.reduce((product, side) => product * side, 1);
const stridesOf = shape => shape.map((_, axis) => sizeOf(shape.slice(axis + 1)));
function arrayOf(nested) {
  const shape = [];
  for (let at = nested; Array.isArray(at); at = at[0]) shape.push(at.length);
  return { shape, data: shape.length ? [nested].flat(Infinity) : [nested] };
}

// A new array whose entry at each index is of(index).
function filled(shape, of) {
  const data = new Array(sizeOf(shape)), index = shape.map(() => 0);
  for (let i = 0; i < data.length; i++) {
    data[i] = of(index);
    for (let axis = shape.length - 1; axis >= 0 && ++index[axis] === shape[axis]; axis--) index[axis] = 0;
  }
  return { shape, data };
}
// A view of `a` by strides: entry at index is the one at start + Σ index · stride.
function strided(a, shape, strides, start = 0) {
  return filled(shape, index => a.data[index.reduce((at, i, axis) => at + i * strides[axis], start)]);
}

const erf = x => {
  // Series near 0, continued fraction beyond: both to the last digits of float64.
  const z = Math.abs(x);
  if (z > 6) return Math.sign(x);
  if (z < 2.5) {
    let term = z, sum = z;
    for (let n = 1; Math.abs(term) > 1e-18 * sum; n++) { term *= -z * z / n; sum += term / (2 * n + 1); }
    return Math.sign(x) * 2 / Math.sqrt(Math.PI) * sum;
  }
  let below = z;
  for (let n = 60; n > 0; n--) below = z + n / 2 / below;
  return Math.sign(x) * (1 - Math.exp(-z * z) / (Math.sqrt(Math.PI) * below));
};
const PLAIN = {
  neg: x => -x, exp: Math.exp, log: Math.log, log1p: Math.log1p, expm1: Math.expm1, tanh: Math.tanh, sqrt: Math.sqrt,
  rsqrt: x => 1 / Math.sqrt(x), abs: Math.abs, sign: Math.sign, erf, sin: Math.sin, cos: Math.cos, floor: Math.floor,
  square: x => x * x, logistic: x => 1 / (1 + Math.exp(-x)), not: x => Number(!x), is_finite: x => Number(Number.isFinite(x)),
  same: x => x, number: Number, add: (x, y) => x + y, sub: (x, y) => x - y, mul: (x, y) => x * y, div: (x, y) => x / y,
  max: Math.max, min: Math.min, pow: Math.pow, rem: (x, y) => x % y, atan2: Math.atan2,
  lt: (x, y) => Number(x < y), le: (x, y) => Number(x <= y), gt: (x, y) => Number(x > y), ge: (x, y) => Number(x >= y),
  eq: (x, y) => Number(x === y), ne: (x, y) => Number(x !== y), and: (x, y) => Number(x && y), or: (x, y) => Number(x || y),
  select_n: (which, no, yes) => (which ? yes : no),
};
function plain(of, arrays) {
  // Numbers go with any array, and an axis of length 1 is repeated along the other's.
  const shape = arrays.reduce((most, a) => (a.shape.length && most.length ? most.map((side, axis) => (side === 1 ? a.shape[axis] : side)) : [...most, ...a.shape]), []);
  const given = arrays.map(a => (a.shape.every((side, axis) => side === shape[axis]) ? a : STRUCTURED.broadcast_in_dim({ shape, axes: [...shape.keys()] }, a)));
  const data = new Array(sizeOf(shape));
  for (let i = 0; i < data.length; i++) data[i] = of(...given.map(a => (a.shape.length ? a.data[i] : a.data[0])));
  return { shape, data };
}

function dotGeneral(op, a, b) {
  const [[contractA, contractB], [batchA, batchB]] = [op.contract, op.batch];
  const left = (array, used) => array.shape.map((_, axis) => axis).filter(axis => !used.includes(axis));
  const leftA = left(a, [...contractA, ...batchA]), leftB = left(b, [...contractB, ...batchB]);
  const strideA = stridesOf(a.shape), strideB = stridesOf(b.shape), inner = contractA.map(axis => a.shape[axis]);
  const offsets = (axes, strides) => filled(inner, index => index.reduce((at, i, n) => at + i * strides[axes[n]], 0)).data;
  const insideA = offsets(contractA, strideA), insideB = offsets(contractB, strideB), shared = batchA.length;
  const shape = [...batchA.map(axis => a.shape[axis]), ...leftA.map(axis => a.shape[axis]), ...leftB.map(axis => b.shape[axis])];
  return filled(shape, index => {
    let atA = 0, atB = 0, sum = 0;
    batchA.forEach((axis, n) => { atA += index[n] * strideA[axis]; atB += index[n] * strideB[batchB[n]]; });
    leftA.forEach((axis, n) => { atA += index[shared + n] * strideA[axis]; });
    leftB.forEach((axis, n) => { atB += index[shared + leftA.length + n] * strideB[axis]; });
    for (let i = 0; i < insideA.length; i++) sum += a.data[atA + insideA[i]] * b.data[atB + insideB[i]];
    return sum;
  });
}
function reduced(op, a, of) {
  const kept = a.shape.map((_, axis) => axis).filter(axis => !op.axes.includes(axis)), strides = stridesOf(a.shape);
  const inner = strided({ data: a.data.map((_, i) => i) }, op.axes.map(axis => a.shape[axis]), op.axes.map(axis => strides[axis])).data;
  return filled(kept.map(axis => a.shape[axis]), index => {
    const start = index.reduce((at, i, n) => at + i * strides[kept[n]], 0);
    return inner.map(offset => a.data[start + offset]).reduce(of);
  });
}
function joined(axis, parts) {
  const full = parts.filter(a => a.data.length), arrays = full.length ? full : parts; // an empty one has lost its shape in JSON
  const shape = [...arrays[0].shape];
  shape[axis] = arrays.reduce((total, a) => total + a.shape[axis], 0);
  return filled(shape, index => {
    let at = index[axis];
    const a = arrays.find(one => (at < one.shape[axis] ? true : ((at -= one.shape[axis]), false)));
    return a.data[stridesOf(a.shape).reduce((offset, stride, n) => offset + stride * (n === axis ? at : index[n]), 0)];
  });
}
const inserted = (a, axis) => ({ shape: [...a.shape.slice(0, axis), 1, ...a.shape.slice(axis)], data: a.data });
const STRUCTURED = {
  dot_general: dotGeneral,
  reshape: (op, a) => ({ shape: op.shape, data: a.data }),
  broadcast_in_dim: (op, a) => {
    const strides = op.shape.map(() => 0), own = stridesOf(a.shape);
    op.axes.forEach((axis, n) => { if (a.shape[n] > 1) strides[axis] = own[n]; });
    return strided(a, op.shape, strides);
  },
  transpose: (op, a) => strided(a, op.axes.map(axis => a.shape[axis]), op.axes.map(axis => stridesOf(a.shape)[axis])),
  concatenate: (op, ...arrays) => joined(op.axis, arrays),
  stack: (op, ...arrays) => joined(op.axis, arrays.map(a => inserted(a, op.axis))),
  slice: (op, a) => {
    const own = stridesOf(a.shape);
    const shape = op.start.map((start, axis) => Math.max(0, Math.ceil((op.stop[axis] - start) / op.step[axis])));
    return strided(a, shape, own.map((stride, axis) => stride * op.step[axis]), op.start.reduce((at, start, axis) => at + start * own[axis], 0));
  },
  integer_pow: (op, a) => ({ shape: a.shape, data: a.data.map(x => x ** op.power) }),
  cumsum: (op, a) => {
    const data = [...a.data], stride = stridesOf(a.shape)[op.axis], side = a.shape[op.axis];
    for (let n = 0; n < data.length; n++) {
      const i = op.reverse ? data.length - 1 - n : n, at = Math.floor(i / stride) % side;
      if (op.reverse ? at < side - 1 : at > 0) data[i] += data[op.reverse ? i + stride : i - stride];
    }
    return { shape: a.shape, data };
  },
  iota: op => filled(op.shape, index => index[op.axis]),
  reduce_sum: (op, a) => reduced(op, a, (x, y) => x + y),
  reduce_max: (op, a) => reduced(op, a, (x, y) => Math.max(x, y)),
  reduce_min: (op, a) => reduced(op, a, (x, y) => Math.min(x, y)),
  reduce_prod: (op, a) => reduced(op, a, (x, y) => x * y),
};

function networkOf(program) {
  const constants = Object.entries(program.constants).map(([slot, value]) => [slot, arrayOf(value)]);
  const layers = Object.keys(program.shown).filter(name => name.startsWith("layer ")).length;
  const rowsOf = a => filled([a.shape[0]], ([i]) => a.data.slice(i * a.shape[1], (i + 1) * a.shape[1])).data;
  return {
    initial: () => program.initial.map(arrayOf),
    step(states, x) {
      const at = Object.fromEntries(constants);
      program.states.forEach((slot, i) => { at[slot] = states[i]; });
      at[program.x] = { shape: [x.length], data: x };
      for (const op of program.ops) {
        const given = op.in.map(slot => at[slot]);
        at[op.out] = op.op in PLAIN ? plain(PLAIN[op.op], given) : STRUCTURED[op.op](op, ...given);
      }
      const shown = name => (name in program.shown ? rowsOf(at[program.shown[name]]) : null);
      return {
        state: program.next.map(slot => at[slot]), y: at[program.y].data, input: shown("input"), output: shown("output"),
        layers: [...Array(layers).keys()].map(i => at[program.shown[`layer ${i}`]].data),
      };
    },
  };
}

function runOver(network, xs) {
  let state = network.initial();
  return xs.map(x => { const made = network.step(state, x); state = made.state; return made; });
}
