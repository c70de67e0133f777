// A text, token by token: in the colours of what a token takes from each earlier one, or of what each adds to a logit.
const data = JSON.parse($("data").textContent);
const count = data.tokens.length, attends = data.mode === "attend";
let at = data.at, layer = attends ? data.layers.length - 1 : -1; // −1: all layers together

function unpacked(text) {
  const bytes = atob(text);
  return Uint8Array.from({ length: bytes.length }, (_, index) => bytes.charCodeAt(index));
}
if (attends) for (const one of data.layers) one.bytes = unpacked(one.values);

// The share of token t's contributions that comes from s; or what s adds in a row of the table.
function value(row, s) {
  const one = data.layers[row];
  if (!attends) return one.values[s];
  return s > at ? 0 : (one.bytes[at * (at + 1) / 2 + s] / 255) ** 2;
}
const together = s => data.layers.slice(0, -1).reduce((sum, one) => sum + one.values[s], 0);
const shown = s => layer < 0 ? together(s) : value(layer, s);
const told = v => attends ? `${(100 * v).toFixed(v < .1 ? 1 : 0)} %` : (v > 0 ? "+" : "") + number(v);
const word = s => data.tokens[s].replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ $/, "␣") || "∅";

// Roots: a share of 1 % is still to be seen.
function paint(element, v, most) {
  const strength = Math.min(1, Math.sqrt(Math.abs(v) / most));
  const colour = v < 0 ? "var(--negative)" : "var(--positive)";
  element.style.setProperty("--fill", strength < .04 ? "transparent" : `color-mix(in srgb, ${colour} ${(78 * strength).toFixed(0)}%, transparent)`);
}

const words = data.tokens.map((_, s) => {
  const span = make("span", { class: "token", tabindex: s === at ? 0 : -1, "data-s": s });
  span.append(data.tokens[s].replace(/\n/g, "↵\n") || "∅");
  return span;
});
$("text").append(...words);

const rows = make("div", { class: "strip", role: "grid", "aria-label": "Layers and tokens" });
rows.style.setProperty("--columns", count);
const cells = data.layers.map((one, row) => {
  const button = make("button", { type: "button", class: "row", "aria-pressed": "false" }, one.name);
  button.addEventListener("click", () => { layer = layer === row && !attends ? -1 : row; draw(); });
  const line = data.tokens.map((_, s) => make("i", { "data-s": s }));
  rows.append(button, ...line);
  return line;
});
$("rows").append(rows);

function draw() {
  const name = layer < 0 ? "all layers" : data.layers[layer].name;
  const values = words.map((_, s) => shown(s)), others = values.filter((_, s) => !attends || s !== at);
  const most = attends ? Math.max(.02, largest(others)) : largest(values);
  words.forEach((span, s) => {
    paint(span, values[s], most);
    span.classList.toggle("now", s === at);
    span.classList.toggle("later", attends && s > at);
    span.dataset.tip = `${word(s)}  ${told(values[s])}`;
    span.tabIndex = s === at ? 0 : -1;
  });
  cells.forEach((line, row) => {
    const top = attends ? Math.max(.02, largest(line.map((_, s) => s === at ? 0 : value(row, s)))) : data.scale;
    line.forEach((cell, s) => {
      paint(cell, value(row, s), top);
      cell.classList.toggle("now", s === at);
      cell.dataset.tip = `${data.layers[row].name}, ${word(s)}: ${told(value(row, s))}`;
    });
    rows.querySelectorAll(".row")[row].setAttribute("aria-pressed", String(row === layer));
  });
  $("said").textContent = attends
    ? `What ${name} takes from where at ‘${word(at)}’ (${data.layers[layer].kind}). The darker, the larger the share.`
    : `What each token adds through ${name}.`;
  $("step").value = at + 1;
  $("at").textContent = `token ${at + 1} of ${count}: ${word(at)}`;
  $("chosen").textContent = attends ? `‘${word(at)}’ takes from` : `‘${word(at)}’ adds ${told(together(at))}`;
  table(attends ? ranked(values, s => [word(s), `token ${s + 1}`]) : data.layers.slice(0, -1).map((one, row) => [[one.name, ""], one.values[at]]));
}

function ranked(values, label) {
  const order = values.map((_, s) => s).filter(s => s <= at).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
  return order.slice(0, 12).map(s => [label(s), values[s]]);
}

function table(entries) {
  const most = largest(entries.map(entry => entry[1]));
  $("largest").replaceChildren(...entries.map(([label, v]) => {
    const bar = make("span", { class: `bar ${v < 0 ? "n" : "p"}` });
    bar.style.width = `${100 * Math.abs(v) / most}%`;
    return make("tr", {}, make("th", { scope: "row" }, label[0]), make("td", { class: "text" }, label[1]), make("td", {}, told(v)), make("td", { class: "long" }, bar));
  }));
}

function go(to) { at = Math.max(0, Math.min(count - 1, to)); draw(); }
$("step").addEventListener("input", event => go(Number(event.target.value) - 1));
$("back").addEventListener("click", () => go(at - 1));
$("on").addEventListener("click", () => go(at + 1));
$("text").addEventListener("pointerover", event => { if (event.pointerType !== "touch" && event.target.dataset.s) go(Number(event.target.dataset.s)); });
for (const place of ["text", "rows"]) $(place).addEventListener("click", event => { if (event.target.dataset.s) go(Number(event.target.dataset.s)); });
$("text").addEventListener("keydown", event => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step) { event.preventDefault(); go(at + step); words[at].focus(); }
});
draw();
window.underhood = { shown: s => shown(s), at: () => at, go, choose: row => { layer = row; draw(); } };
