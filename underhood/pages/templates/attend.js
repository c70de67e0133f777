// The page of an attention map: the map, a step in it, and what that step comes from.
const data = JSON.parse($("data").textContent);
let at = data.gaps.length - 1;
const MOST = 12; // steps of the list
const view = mapView($("map"), data, { onStep: goTo });

function drawPositions(values) {
  const width = 520, height = 170, left = 44, right = 6, top = 8, bottom = 24;
  const high = Math.max(0, ...values), low = Math.min(0, ...values);
  const x = s => left + s / view.length * (width - left - right), y = value => top + (high - value) / (high - low || 1) * (height - top - bottom);
  const svg = make("svg", { class: "chart bars", viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "data-keys": "cells", "data-columns": values.length,
    "aria-label": `What ${view.nameOf(at)} comes from, by position; arrow keys read its bars` });
  const ticks = [high, low].filter(value => Math.abs(y(value) - y(0)) > 12);
  for (const value of [0, ...ticks]) svg.append(make("path", { class: "grid", d: `M${left} ${y(value)}H${width - right}` }),
    make("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, number(Number(value.toPrecision(2)))));
  const each = x(1) - x(0);
  values.forEach((value, s) => {
    const bar = make("rect", { class: value < 0 ? "n" : "p", x: x(s), width: Math.max(.6, each > 4 ? each - 1 : each), y: y(Math.max(value, 0)), height: Math.abs(y(0) - y(value)) });
    bar.dataset.tip = `${view.nameOf(s)}: ${number(value)}`;
    svg.append(bar);
  });
  const ends = [[0, "start"], [view.length - 1, "end"]];
  for (const [s, anchor] of ends) svg.append(make("text", { class: "tick", x: x(s + (anchor === "end" ? 1 : 0)), y: height - 6, "text-anchor": anchor }, `step ${s}`));
  $("positions").replaceChildren(svg);
}

function drawLargest(values) {
  const order = values.map((_, s) => s).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]) || a - b), most = largest(values);
  const all = values.reduce((sum, value) => sum + Math.abs(value), 0) || 1;
  const line = (name, value, share, extra) => make("tr", extra || {}, make("th", { scope: "row" }, name), make("td", {}, number(value)), make("td", {}, `${number(Number((100 * share).toPrecision(2)))} %`));
  const rows = order.slice(0, MOST).map(s => {
    const row = line(view.nameOf(s), values[s], Math.abs(values[s]) / all, { "data-s": s }), bar = make("span", { class: "bar " + (values[s] < 0 ? "n" : "p") });
    bar.style.width = `${100 * Math.abs(values[s]) / most}%`;
    row.append(make("td", { class: "long" }, bar));
    return row;
  });
  const rest = order.slice(MOST);
  if (rest.length) rows.push(line(`${rest.length} more`, rest.reduce((sum, s) => sum + values[s], 0), rest.reduce((sum, s) => sum + Math.abs(values[s]), 0) / all, { class: "rest" }));
  const head = make("tr", {}, ...["step", "value", "share", ""].map(text => make("th", { scope: "col" }, text)));
  $("largest").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

function draw() {
  $("step").value = at; $("at").textContent = `step ${at} of 0 to ${view.length - 1}`;
  $("chosen").textContent = `${view.nameOf(at)[0].toUpperCase()}${view.nameOf(at).slice(1)} comes from`;
  $("gap").textContent = number(data.gaps[at]);
  const values = view.map().values(at);
  drawPositions(values); drawLargest(values);
}
function goTo(t) { at = Math.max(0, Math.min(view.length - 1, Math.round(t))); showTip(null); view.select(at); draw(); }

$("step").addEventListener("input", () => goTo(Number($("step").value)));
$("back").addEventListener("click", () => goTo(at - 1));
$("on").addEventListener("click", () => goTo(at + 1));
document.addEventListener("keydown", event => {
  const focus = document.activeElement;
  if (event.defaultPrevented || (focus && (["INPUT", "SELECT"].includes(focus.tagName) || (focus.dataset && focus.dataset.keys)))) return;
  if (event.key === "ArrowRight") goTo(at + 1);
  else if (event.key === "ArrowLeft") goTo(at - 1);
});
goTo(at);
window.underhood = { step: () => at, goTo, show: view.show, names: () => view.maps.map(map => map.name), row: t => view.map().values(t), pointOf: view.pointOf, enlarge: view.enlarge };
