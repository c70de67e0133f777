// What pages that draw themselves share: elements and numbers.
const SVG = "http://www.w3.org/2000/svg";
const $ = id => document.getElementById(id);

function make(tag, attributes, ...children) {
  const svg = ["svg", "rect", "text", "g", "path", "circle"].includes(tag);
  const element = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const number = value => Number.isFinite(value) ? (value === 0 ? "0" : Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)))) : "–";
const largest = values => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1;
