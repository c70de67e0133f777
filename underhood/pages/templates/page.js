"use strict";
// What every page has: a switch between light and dark, and a tip with the value under the pointer or the arrow keys.
const tip = document.getElementById("tip");
let marked = null;

function showTip(element, x, y) {
  if (marked) marked.classList.remove("at");
  marked = element;
  if (!element) { tip.hidden = true; return; }
  element.classList.add("at");
  const text = element.dataset.tip;
  if (tip.textContent !== text) tip.textContent = text;
  tip.hidden = false;
  const box = element.getBoundingClientRect();
  const left = x ?? box.left + box.width / 2, top = y ?? box.top;
  const size = tip.getBoundingClientRect();
  const above = top - size.height - 14;
  tip.style.left = Math.max(6, Math.min(window.innerWidth - size.width - 6, left - size.width / 2)) + "px";
  tip.style.top = (above > 6 ? above : Math.min(window.innerHeight - size.height - 6, top + 22)) + "px";
}

function nearestPoint(chart, x, y) {
  let best = null, least = 40 * 40;
  for (const dot of chart.querySelectorAll(".series:not(.off) circle")) {
    const box = dot.getBoundingClientRect();
    const across = box.left + box.width / 2 - x, up = box.top + box.height / 2 - y;
    const distance = across * across + up * up;
    if (distance < least) { least = distance; best = dot; }
  }
  return best;
}

function onPoint(event) {
  const chart = event.target.closest ? event.target.closest("svg.chart") : null;
  const cell = event.target.closest ? event.target.closest("[data-tip]") : null;
  const found = chart ? nearestPoint(chart, event.clientX, event.clientY) : cell;
  if (found) showTip(found, chart ? undefined : event.clientX, chart ? undefined : event.clientY);
  else if (marked && event.type !== "pointerdown") showTip(null);
}
document.addEventListener("pointermove", onPoint);
document.addEventListener("pointerdown", onPoint);
// The place stays marked: a page that scrolls to what has the focus must not send the arrow keys back to the start.
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

// Arrow keys walk over the points of a chart or the cells of a matrix that has the focus; Escape takes the tip away.
document.addEventListener("keydown", event => {
  if (event.key === "Escape") { showTip(null); return; }
  const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
  const svg = document.activeElement;
  if (!step || !svg || !svg.dataset || !svg.dataset.keys) return;
  event.preventDefault();
  if (svg.dataset.keys === "cells") {
    const cells = [...svg.querySelectorAll("rect")], columns = Number(svg.dataset.columns);
    const at = cells.indexOf(marked);
    const next = at < 0 ? 0 : at + step[0] + step[1] * columns;
    if (next >= 0 && next < cells.length) showTip(cells[next]);
    return;
  }
  const series = [...svg.querySelectorAll(".series:not(.off)")].map(one => [...one.querySelectorAll("circle")]).filter(one => one.length);
  if (!series.length) return;
  let row = series.findIndex(one => one.includes(marked)), column = row < 0 ? -1 : series[row].indexOf(marked);
  if (row < 0) { row = 0; column = 0; }
  else { row = (row + step[1] + series.length) % series.length; column = Math.max(0, Math.min(series[row].length - 1, column + step[0])); }
  showTip(series[row][column]);
});
document.addEventListener("focusout", () => showTip(null));

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("underhood-theme", root.dataset.theme); } catch (_) { /* a browser may refuse to remember */ }
});
try {
  const remembered = localStorage.getItem("underhood-theme");
  if (remembered === "dark" || remembered === "light") document.documentElement.dataset.theme = remembered;
} catch (_) { /* as above */ }

for (const button of document.querySelectorAll("[data-toggle]")) button.addEventListener("click", () => {
  const shown = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(shown));
  const series = button.closest("figure").querySelector(`[data-series="${button.dataset.toggle}"]`);
  if (series) series.classList.toggle("off", !shown);
});

function showRows(button) {
  for (const other of document.querySelectorAll("[data-show]")) other.setAttribute("aria-pressed", String(other === button));
  const show = button.dataset.show;
  for (const table of document.querySelectorAll("#rows table")) {
    let left = 0;
    for (const row of table.querySelectorAll("tr[data-met]")) {
      row.hidden = (show === "paper" && row.dataset.paper === "0") || (show === "open" && row.dataset.met === "1");
      left += row.hidden ? 0 : 1;
    }
    table.parentElement.hidden = left === 0;
  }
}
for (const button of document.querySelectorAll("[data-show]")) {
  button.addEventListener("click", () => showRows(button));
  if (button.getAttribute("aria-pressed") === "true") showRows(button);
}

// Paper shows all there is.
let opened = [];
window.addEventListener("beforeprint", () => {
  const all = document.querySelector('[data-show="all"]');
  if (all) showRows(all);
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const one of opened) one.open = true;
});
window.addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
