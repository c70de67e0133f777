// The explorer: a sequence, a step in it, and what the network holds there. program.js and attention.js compute the numbers.
const data = JSON.parse(document.getElementById("data").textContent);
const network = networkOf(data.program), attention = data.attention ? attentionOf(data.attention) : null;
let xs = data.xs.map(x => [...x]), at = xs.length, trace = [], attended = [];
const MANY = 200, HEADS = 3; // rows that have a name each, and heads that are shown at once
// A grid of cells in the paper's colours. `rows`: {name, kind, values, scale}; a value of null is not there yet.
function grid(rows, columns, options) {
  const { tips, heads = [], current = -1, cell = 16, label = "" } = options;
  const left = .5 * Math.max(0, ...rows.map(row => (row.name || "").length)) + (rows[0].name ? .7 : 0), top = heads.length ? 1.6 : 0;
  const svg = make("svg", {
    class: "cells", viewBox: `0 0 ${left + columns} ${top + rows.length}`, role: "img", tabindex: "0",
    "aria-label": label + "; arrow keys read its cells", "data-keys": "cells", "data-columns": columns,
    width: (left + columns) * cell, height: (top + rows.length) * cell,
  });
  heads.forEach((head, j) => svg.append(make("text", { x: left + j + .5, y: top - .5, class: j === current ? "head now" : "head" }, head)));
  rows.forEach((row, i) => {
    if (row.name && (rows.length <= MANY || i % 5 === 0)) svg.append(make("text", { x: left - .35, y: top + i + .7, class: "name " + (row.kind || "") }, row.name));
    if (row.kind) svg.append(make("path", { d: `M${left - .14} ${top + i + .06}v.88`, class: "rail " + row.kind }));
    row.values.forEach((value, j) => {
      const shade = value === null ? "later" : value > 0 ? "p" : value < 0 ? "n" : "z";
      const rect = make("rect", { x: left + j, y: top + i, width: 1, height: 1, class: shade });
      rect.style.setProperty("--w", value === null ? 0 : Math.min(1, Math.abs(value) / row.scale));
      rect.dataset.tip = value === null ? "not yet" : tips(i, j, value);
      svg.append(rect);
    });
  });
  if (current >= 0) svg.append(make("path", { d: `M${left + current} ${top}v${rows.length}h1v${-rows.length}z`, class: "cursor" }));
  return svg;
}

const kindOf = value => value === undefined ? "" : value > 1 - 1e-3 ? "memory" : Math.abs(value) < 1e-3 ? "forget" : "between";
const ORDER = { memory: 0, between: 1, forget: 2, "": 0 };
// Large enough for a name beside each row; of very many rows, every fifth has its name.
const cellSize = n => n > MANY ? 8 : Math.max(13, Math.min(17, Math.floor(520 / n)));

function compute() {
  trace = runOver(network, xs);
  attended = attention ? runOver(attention, xs) : [];
  // The map was computed when the page was made: of another sequence it says nothing.
  const stale = JSON.stringify(xs) !== JSON.stringify(data.xs);
  $("stale").hidden = !stale; $("map").classList.toggle("stale", stale);
}

function drawStates() {
  const layers = trace[0].layers.length;
  const heads = xs.map((_, t) => String(t)), box = $("states");
  box.replaceChildren();
  for (let layer = 0; layer < layers; layer++) {
    const states = trace.map(made => made.layers[layer]);
    const lambdas = data.lambdas[layer] || [];
    const kinds = states[0].map((_, i) => kindOf(lambdas[i])), scales = {};
    const order = kinds.map((_, i) => i).sort((a, b) => ORDER[kinds[a]] - ORDER[kinds[b]] || a - b);
    for (const i of order) scales[kinds[i]] = Math.max(scales[kinds[i]] || 0, largest(states.map(h => h[i])));
    const rows = order.map(i => ({
      name: "h" + (i + 1), kind: kinds[i], scale: scales[kinds[i]], values: states.map((h, t) => t < at ? h[i] : null),
    }));
    const told = i => kinds[i] ? `, λ = ${number(lambdas[i])}` : "";
    const map = grid(rows, xs.length, {
      heads, current: at - 1, cell: cellSize(rows.length), label: layers > 1 ? `Hidden state of layer ${layer + 1}` : "Hidden state",
      tips: (i, t, value) => `h${order[i] + 1}${told(order[i])}\nstep ${t}: ${number(value)}`,
    });
    const parts = [make("figure", {}, make("figcaption", {}, (layers > 1 ? `layer ${layer + 1}: ` : "") + `${rows.length} numbers, over the steps`), map)];
    if (trace[0].input) {
      const names = ["W_m x̃", "W_x x̃", "product"], now = trace[at - 1].input;
      const steps = order.map(i => ({ values: now.map(branch => branch[i]), scale: 1 }));
      const most = now.map(largest);
      for (const row of steps) row.values = row.values.map((value, j) => value / most[j]);
      const strip = grid(steps, 3, {
        heads: ["m", "x", "·"], cell: cellSize(rows.length), label: "Input gating at this step",
        tips: (i, j) => `${names[j]} of h${order[i] + 1}: ${number(now[j][order[i]])}`,
      });
      parts.unshift(make("figure", {}, make("figcaption", {}, "input gating"), strip));
    }
    box.append(make("div", { class: "scroll side" }, ...parts));
  }
}

function drawProducts() {
  const box = $("products");
  if (!box) return;
  const now = trace[at - 1].output, most = now.map(largest), names = ["W_m h", "W_x h", "product"];
  const m = now[0].length;
  const rows = [...Array(m).keys()].map(i => ({ name: String(i + 1), values: now.map((branch, j) => branch[i] / most[j]), scale: 1 }));
  const strip = grid(rows, 3, {
    heads: ["m", "x", "·"], cell: cellSize(m), label: "Output gating at this step",
    tips: (i, j) => `${names[j]}, pre-readout neuron ${i + 1}: ${number(now[j][i])}`,
  });
  const readout = data.readout.map((row, i) => ({ name: "y" + (i + 1), values: row, scale: largest(data.readout.flat()) }));
  const sums = grid(readout, m, { cell: cellSize(Math.max(m, 30)), label: "Readout", tips: (i, j, value) => `D [${i + 1}, ${j + 1}] = ${number(value)}` });
  box.replaceChildren(make("div", { class: "scroll side" },
    make("figure", {}, make("figcaption", {}, "at this step"), strip),
    make("figure", {}, make("figcaption", {}, "D adds them up"), sums)));
}

function drawNumbers() {
  const head = ["output", "network", ...(attention ? [data.attended, "difference"] : [])];
  const ours = trace[at - 1].y, theirs = attention ? attended[at - 1].y : null;
  const rows = ours.map((y, i) => make("tr", {}, make("th", { scope: "row", class: "s" + i % 6 }, "y" + (i + 1)),
    make("td", {}, number(y)), ...(theirs ? [make("td", {}, number(theirs[i])), make("td", {}, number(Number((y - theirs[i]).toPrecision(2))))] : [])));
  $("numbers").replaceChildren(
    make("thead", {}, make("tr", {}, ...head.map(text => make("th", { scope: "col" }, text)))), make("tbody", {}, ...rows));
}

function drawCurves() {
  const width = 480, height = 240, left = 52, right = 10, top = 12, bottom = 30;
  const all = [...trace.map(made => made.y), ...attended.map(made => made.y)].flat();
  const most = largest(all), x = t => left + (xs.length === 1 ? .5 : t / (xs.length - 1)) * (width - left - right);
  const y = value => top + (1 - (value / most + 1) / 2) * (height - top - bottom);
  const svg = make("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "data-keys": "points",
    "aria-label": "Outputs over the steps; arrow keys read its points" });
  for (const value of [-most, 0, most]) svg.append(make("path", { class: "grid", d: `M${left} ${y(value)}H${width - right}` }),
    make("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, number(Number(value.toPrecision(2)))));
  svg.append(make("path", { class: "cursor", d: `M${x(at - 1)} ${top}V${height - bottom}` }),
    make("text", { class: "label", x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, "step"));
  const line = (points, style) => make("path", { class: style, d: "M" + points.map((value, t) => `${x(t)} ${y(value)}`).join("L") });
  for (let i = 0; i < trace[0].y.length; i++) {
    const group = make("g", { class: "series s" + i % 6 }), ours = trace.map(made => made.y[i]);
    group.append(line(ours, "line"));
    if (attention) group.append(line(attended.map(made => made.y[i]), "line shadow"));
    ours.forEach((value, t) => {
      const dot = make("circle", { cx: x(t), cy: y(value), r: t === at - 1 ? 4 : 2.2 });
      dot.dataset.tip = `y${i + 1} at step ${t}: ${number(value)}` + (attention ? `\nattention: ${number(attended[t].y[i])}` : "");
      group.append(dot);
    });
    svg.append(group);
  }
  $("curves").replaceChildren(svg);
  if (attention) $("curves").append(make("p", { class: "note" }, "Lines: the network. Dashed on top: the attention."));
}

function drawAttention() {
  const box = $("heads");
  if (!box) return;
  const now = attended[at - 1], w = data.attention;
  box.replaceChildren();
  now.state.forEach((matrix, h) => {
    const scale = largest(attended.flatMap(made => made.state[h].flat())), cell = 20;
    const state = grid(matrix.map((row, i) => ({ name: "v" + (i + 1), values: row, scale })), matrix[0].length, {
      heads: matrix[0].map((_, j) => "k" + (j + 1)), cell, label: "State of the attention", tips: (i, j, value) => `Σ v${i + 1} k${j + 1} = ${number(value)}` });
    const strip = (name, values, all) => make("figure", {}, make("figcaption", {}, name), grid(values.map((value, i) => ({ name: name[0] + (i + 1), values: [value], scale: largest(all) })), 1, {
      cell, label: name, tips: (i, j, value) => `${name[0]}${i + 1} = ${number(value)}` }));
    const weights = attended.slice(0, at).map((made, s) => {
      const fade = w.decay ? w.decay[h] ** (at - 1 - s) : 1;
      return fade * made.keys[h].reduce((sum, key, j) => sum + key * now.queries[h][j], 0);
    });
    const shown = xs.map((_, s) => s < at ? weights[s] : null);
    const looks = grid([{ values: shown, scale: largest(weights) }], xs.length, {
      heads: xs.map((_, t) => String(t)), current: at - 1, cell: 20, label: "Attention paid to each step", tips: (i, s, value) => `key of step ${s} · query of step ${at - 1}: ${number(value)}` });
    if (h === HEADS) box.append(make("details", {}, make("summary", {}, `${now.state.length - HEADS} more heads`)));
    const place = h < HEADS ? box : box.lastElementChild;
    if (now.state.length > 1) place.append(make("h3", {}, `head ${h + 1}`));
    place.append(make("div", { class: "scroll side" },
      strip("value", now.values[h], attended.flatMap(made => made.values[h])), strip("key", now.keys[h], attended.flatMap(made => made.keys[h])),
      make("figure", {}, make("figcaption", {}, "Σ value · keyᵀ"), state), strip("query", now.queries[h], attended.flatMap(made => made.queries[h]))),
    make("div", { class: "scroll side" }, make("figure", {}, make("figcaption", {}, "attention paid to each step: its key · this query"), looks)));
  });
}

function drawInputs() {
  const head = make("tr", {}, make("th", { scope: "col" }, ""));
  xs.forEach((_, t) => {
    const jump = make("button", { type: "button", "aria-label": `Go to step ${t}` }, String(t));
    jump.addEventListener("click", () => goTo(t + 1));
    head.append(make("th", { scope: "col", "data-t": t }, jump));
  });
  const rows = xs[0].map((_, i) => {
    const row = make("tr", {}, make("th", { scope: "row" }, "x" + (i + 1)));
    xs.forEach((x, t) => {
      const field = make("input", { type: "number", step: "any", value: x[i], "aria-label": `x${i + 1} at step ${t}` });
      field.addEventListener("input", () => {
        const value = field.value.trim() === "" ? NaN : Number(field.value);
        field.setAttribute("aria-invalid", String(!Number.isFinite(value)));
        if (Number.isFinite(value)) { xs[t][i] = value; compute(); draw(); }
      });
      row.append(make("td", { "data-t": t }, field));
    });
    return row;
  });
  $("edit").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

function draw() {
  $("step").max = xs.length - 1; $("step").value = at - 1; $("at").textContent = `step ${at - 1} of 0 to ${xs.length - 1}`;
  for (const cell of document.querySelectorAll("#edit [data-t]")) cell.classList.toggle("now", Number(cell.dataset.t) === at - 1);
  showTip(null);
  drawStates(); drawProducts(); drawNumbers(); drawCurves(); drawAttention();
  view.select(Math.min(at, data.xs.length) - 1);
}
function goTo(step) { at = Math.max(1, Math.min(xs.length, Math.round(step))); draw(); }
function setInputs(next) {
  if (!Array.isArray(next) || !next.length || next.some(x => x.length !== data.d || x.some(value => !Number.isFinite(value)))) throw new Error(`a sequence is rows of ${data.d} numbers`);
  xs = next.map(x => [...x]); at = Math.min(at, xs.length); compute(); drawInputs(); draw();
}
function normal() { return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random()); }

let playing = null;
function play(on) {
  if (playing) clearInterval(playing);
  playing = on ? setInterval(() => goTo(at === xs.length ? 1 : at + 1), 800) : null;
  $("play").setAttribute("aria-pressed", String(on)); $("play").textContent = on ? "stop" : "play";
}
$("step").addEventListener("input", () => goTo(Number($("step").value) + 1));
$("back").addEventListener("click", () => goTo(at - 1));
$("on").addEventListener("click", () => goTo(at + 1));
$("play").addEventListener("click", () => play(!playing));
$("draw").addEventListener("click", () => setInputs(xs.map(x => x.map(() => Number(normal().toFixed(2))))));
document.addEventListener("keydown", event => {
  const focus = document.activeElement;
  if (event.defaultPrevented || (focus && (focus.tagName === "INPUT" || (focus.dataset && focus.dataset.keys) || focus.classList.contains("scroll")))) return;
  if (event.key === "ArrowRight") goTo(at + 1);
  else if (event.key === "ArrowLeft") goTo(at - 1);
});

$("first").addEventListener("click", () => setInputs(data.xs));
const view = mapView($("map"), data.map, { onStep: t => goTo(t + 1) });
compute(); drawInputs(); draw();
window.underhood = {
  inputs: () => xs.map(x => [...x]), setInputs, step: () => at - 1, goTo: step => goTo(step + 1),
  outputs: () => trace.map(made => [...made.y]), attention: () => attention ? attended.map(made => [...made.y]) : null,
  states: () => trace.map(made => made.layers), map: () => data.xs.map((_, t) => view.map().values(t)),
};
