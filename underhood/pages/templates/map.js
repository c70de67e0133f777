// An attention map on a canvas: row t has what each step s gives to output t. Beside it, what it leaves unexplained.
const firstOf = t => t * (t + 1) / 2; // where row t of a lower triangle begins
function unpacked({ name, signed, scale, values }) {
  const shares = new Float32Array(Uint8Array.from(atob(values), letter => letter.charCodeAt(0)).buffer);
  const row = t => shares.subarray(firstOf(t), firstOf(t + 1));
  const peaks = Float32Array.from({ length: (Math.sqrt(8 * shares.length + 1) - 1) / 2 }, (_, t) => row(t).reduce((most, one) => Math.max(most, Math.abs(one)), 0));
  return { name, signed, scale, peaks, row, at: (t, s) => scale * shares[firstOf(t) + s], values: t => Array.from(row(t), one => scale * one) };
}
const colour = name => {
  const hex = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  return [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
};
const STRIP = 74, TITLE = 18, LARGEST_CELL = 28, CLOSE = 24; // CSS pixels: strip, axis titles, cells of a short and of an enlarged map
const NAMED = 11, SPACED = 7; // cells at least as large have a name each, and a gap between them
const shortened = text => (text.length > 14 ? text.slice(0, 13) + "…" : text);

function mapView(root, data, { onStep, caption = "" }) {
  const maps = data.maps.map(unpacked), length = data.gaps.length, tokens = data.tokens;
  const nameOf = t => `step ${t}` + (tokens ? ` ‘${tokens[t]}’` : "");
  const which = make("select", { "aria-label": "Map" }), scaled = make("select", { "aria-label": "Colours relative to" });
  maps.forEach((map, i) => which.append(make("option", { value: i }, map.name)));
  for (const [value, text] of [["map", "largest of the map"], ["row", "largest of each row"]]) scaled.append(make("option", { value }, text));
  const out = make("button", { type: "button", "aria-label": "Smaller" }, "−"), into = make("button", { type: "button", "aria-label": "Larger" }, "+");
  const canvas = make("canvas", { class: "map", tabindex: "0", role: "img" });
  const scale = make("p", { class: "scale" });
  root.append(make("div", { class: "filters" }, make("label", {}, "show ", which), make("label", {}, "colours: ", scaled), make("span", {}, out, " ", into)), canvas, scale);
  const context = canvas.getContext("2d");
  let shown = data.chosen || 0, at = length - 1, cursor = null, origin = [0, 0], zoom = 0, place = null;

  // Everything is laid out in device pixels, so that cells of one map are equally large and sharp.
  function layout() {
    const ratio = window.devicePixelRatio || 1, px = size => Math.round(size * ratio);
    context.font = font(ratio);
    const width = names => Math.min(px(110), Math.ceil(Math.max(...names.map(name => context.measureText(name).width))) + px(8));
    const numbers = width([String(length)]), words = tokens ? width(tokens.map(shortened)) : numbers, top = px(TITLE), right = px(STRIP);
    const wide = label => Math.max(px(120), Math.min(px(root.clientWidth) - px(TITLE) - label - right, px(640)));
    const fitted = label => { const fit = Math.min(wide(label) / length, px(LARGEST_CELL)); return fit >= 1 ? Math.floor(fit) : fit; };
    const least = fitted(words) >= px(NAMED) ? fitted(words) : fitted(numbers);
    const cells = [least];
    for (let cell = Math.max(1, Math.ceil(least)) * 2; cell < px(CLOSE); cell *= 2) cells.push(cell);
    if (cells.length > 1 || least < px(CLOSE) / 2) cells.push(px(CLOSE));
    zoom = Math.min(zoom, cells.length - 1);
    const cell = cells[zoom], label = cell >= px(NAMED) ? words : numbers, left = px(TITLE) + label;
    const side = Math.min(Math.ceil(least * length - 1e-9), wide(label)), most = Math.max(0, length - Math.floor(side / cell));
    origin = origin.map(first => Math.max(0, Math.min(most, first)));
    place = { ratio, px, left, top, right, side, cell, cells, label, width: left + side + right, height: top + side + (label === words && tokens ? label : px(18)) + px(TITLE) };
    out.disabled = zoom === 0; into.disabled = zoom === cells.length - 1;
  }
  const font = ratio => `${11 * ratio}px system-ui, sans-serif`;
  const seen = () => Math.min(length, Math.ceil(place.side / place.cell - 1e-9));

  function paintCells() {
    const { side, cell, px } = place, map = maps[shown], image = context.createImageData(side, side), gap = cell >= px(SPACED) ? 1 : 0;
    const zero = colour("raised"), ends = { true: colour("positive"), false: colour("negative") };
    const range = (pixel, first) => [first + Math.floor(pixel / cell), Math.min(length - 1, first + Math.ceil((pixel + 1) / cell - 1e-9) - 1)];
    const columns = Array.from({ length: side }, (_, x) => range(x, origin[0]));
    for (let y = 0; y < side; y++) {
      const [top, bottom] = range(y, origin[1]);
      for (let x = 0; x < side; x++) {
        const [left, right] = columns[x];
        if (left > bottom || (gap && (x % cell === cell - 1 || y % cell === cell - 1))) continue;
        let value = 0; // of the cells under a pixel, the one that weighs most
        for (let t = top; t <= bottom; t++) {
          const row = map.row(t), most = scaled.value === "row" ? map.peaks[t] || 1 : 1;
          for (let s = left; s <= Math.min(right, t); s++) if (Math.abs(row[s] / most) > Math.abs(value)) value = row[s] / most;
        }
        const end = ends[value >= 0], w = Math.min(1, Math.abs(value)), i = 4 * (y * side + x);
        for (let k = 0; k < 3; k++) image.data[i + k] = zero[k] + w * (end[k] - zero[k]);
        image.data[i + 3] = 255;
      }
    }
    context.putImageData(image, place.left, place.top);
  }

  function paintAxes(style) {
    const { px, ratio, left, top, side, cell, label } = place, count = seen(), named = cell >= px(NAMED);
    const ticks = [1, 2, 5, 10, 20, 50, 100, 200, 500].find(one => one * cell >= px(26)) || 1000;
    const text = t => (tokens && named ? shortened(tokens[t]) : String(t));
    const wanted = t => (tokens && named) || (named && cell >= px(18)) || t % ticks === 0;
    context.font = font(ratio); context.textBaseline = "middle";
    for (let i = 0; i < count; i++) {
      const middle = (i + .5) * cell;
      if (middle > side) break;
      const [s, t] = origin.map(first => first + i);
      context.textAlign = "right";
      if (t < length && wanted(t)) { context.fillStyle = t === at ? style("--accent") : style("--faint"); context.fillText(text(t), left - px(5), top + middle); }
      if (s >= length || !wanted(s)) continue;
      context.fillStyle = cursor && cursor[1] === s ? style("--accent") : style("--faint");
      if (!tokens || !named) { context.textAlign = "center"; context.fillText(text(s), left + middle, top + side + px(10)); continue; }
      context.save(); context.translate(left + middle, top + side + px(5)); context.rotate(-Math.PI / 2); context.fillText(text(s), 0, 0); context.restore();
    }
    context.fillStyle = style("--ink"); context.textAlign = "center";
    context.fillText("comes from", left + side / 2, top + side + (tokens && named ? label : px(18)) + px(8));
    context.save(); context.translate(px(TITLE) / 2, top + side / 2); context.rotate(-Math.PI / 2); context.fillText("output of", 0, 0); context.restore();
  }

  function paintStrip(style) {
    const { px, left, top, side, cell } = place, begin = left + side + px(12), wide = px(STRIP - 18);
    const reach = gap => Math.max(0, Math.min(1, gap)); // a share: a full box is all of the output
    context.fillStyle = style("--rule"); context.fillRect(begin, top, 1, side); context.fillRect(begin + wide, top, 1, side);
    for (let t = origin[1]; t < Math.min(length, origin[1] + seen()); t++) {
      const y = (t - origin[1]) * cell, gap = data.gaps[t];
      context.fillStyle = style(gap > .1 ? "--no" : gap > 1e-3 ? "--memory" : "--faint");
      context.fillRect(begin, top + y, Math.max(1, wide * reach(gap)), Math.max(1, Math.min(cell, side - y) - (cell >= px(SPACED) ? 1 : 0)));
    }
    context.fillStyle = style("--faint"); context.textAlign = "left";
    context.fillText("0", begin - px(3), top + side + px(10));
    context.textAlign = "right"; context.fillText("1", begin + wide + 2, top + side + px(10));
    context.textAlign = "center"; context.fillStyle = style("--ink"); context.fillText("unexplained", begin + wide / 2, top - px(8));
  }

  function outline(style, width, ...corners) {
    const { left, top, side, cell, px } = place;
    const [x0, x1, y0, y1] = corners.map((one, i) => Math.max(0, Math.min(side, (one - origin[i < 2 ? 0 : 1]) * cell)));
    if (y1 <= y0 || x1 <= x0) return;
    context.strokeStyle = style; context.lineWidth = px(width); context.strokeRect(left + x0 - .5, top + y0 - .5, x1 - x0, Math.max(px(2), y1 - y0));
  }

  // A frame around the row of the step; where a frame would hide the rows beside it, a line on both sides of it.
  function markRow(style) {
    const { left, top, side, cell, px } = place, y = (at - origin[1]) * cell;
    if (cell >= px(4)) return outline(style, 1.5, 0, at + 1, at, at + 1);
    if (y < 0 || y >= side) return;
    const end = Math.max(0, Math.min(side, (at + 1 - origin[0]) * cell));
    context.fillStyle = style;
    context.fillRect(left - px(10), top + y, px(8), px(2)); context.fillRect(left + end + px(2), top + y, side - end + px(8), px(1));
  }

  function draw() {
    layout();
    const map = maps[shown], root = getComputedStyle(document.documentElement), style = name => root.getPropertyValue(name);
    canvas.width = place.width; canvas.height = place.height;
    canvas.style.width = place.width / place.ratio + "px"; canvas.style.height = place.height / place.ratio + "px";
    paintCells(); paintAxes(style); paintStrip(style);
    markRow(style("--accent"));
    if (cursor) outline(style("--ink"), 1.5, cursor[1], cursor[1] + 1, cursor[0], cursor[0] + 1);
    canvas.setAttribute("aria-label", `${caption}${map.name}, ${length} steps; up and down choose a step, left and right read what it comes from`);
    const most = scaled.value === "row" ? "largest of the row" : number(map.scale * map.peaks.reduce((a, b) => Math.max(a, b), 0));
    scale.replaceChildren(map.signed ? `−${most}` : "0", make("span", { class: map.signed ? "signed" : "sizes" }), most);
    which.value = shown;
  }

  function cellAt(event) {
    const box = canvas.getBoundingClientRect(), { ratio, left, top, side, cell } = place;
    const x = (event.clientX - box.left) * ratio - left, y = (event.clientY - box.top) * ratio - top;
    if (y < 0 || y >= side || x < -left || x >= side + place.right) return null;
    const t = Math.min(length - 1, origin[1] + Math.floor(y / cell));
    if (x >= side) return { t, s: null };
    return { t, s: x < 0 ? null : Math.min(length - 1, origin[0] + Math.floor(x / cell)), row: x < 0 };
  }
  function told({ t, s, row }) {
    if (row) return nameOf(t);
    if (s === null) return `${nameOf(t)}\nunexplained: ${number(data.gaps[t])} of the largest output`;
    if (s > t) return `${nameOf(s)} comes after ${nameOf(t)}`;
    const map = maps[shown], value = map.at(t, s), all = map.row(t).reduce((sum, one) => sum + Math.abs(one), 0) * map.scale;
    return `${nameOf(t)} from ${nameOf(s)}\n${number(value)}, ${number(all ? 100 * Math.abs(value) / all : 0)} % of its row`;
  }
  const pointOf = (t, s) => {
    const box = canvas.getBoundingClientRect(), middle = (one, i) => (one - origin[i] + .5) * place.cell / place.ratio;
    return [box.left + place.left / place.ratio + middle(s, 0), box.top + place.top / place.ratio + middle(t, 1)];
  };
  // Brings a cell into an enlarged map.
  function reveal(t, s) {
    const count = Math.floor(place.side / place.cell);
    origin = [s, t].map((one, i) => Math.min(one, Math.max(origin[i], one - count + 1)));
  }
  function select(t) {
    at = Math.max(0, Math.min(length - 1, t)); cursor = null;
    reveal(at, origin[0] > at ? Math.max(0, at + 1 - Math.floor(place.side / place.cell)) : origin[0]); draw();
  }
  function read(s) {
    cursor = [at, Math.max(0, Math.min(at, s))]; reveal(...cursor); draw();
    canvas.dataset.tip = told({ t: at, s: cursor[1] }); showTip(canvas, ...pointOf(...cursor));
  }
  function enlarge(change, [t, s] = cursor || [at, at]) {
    const before = place.cell, seenAt = [s, t].map((one, i) => (one - origin[i]) * before);
    zoom = Math.max(0, Math.min(place.cells.length - 1, zoom + change));
    origin = [s, t].map((one, i) => Math.round(one - seenAt[i] / place.cells[zoom])); draw();
  }

  let held = null;
  canvas.addEventListener("pointerdown", event => { held = { x: event.clientX, y: event.clientY, origin: [...origin], moved: false }; });
  canvas.addEventListener("pointermove", event => {
    const found = cellAt(event);
    if (held && event.buttons) {
      const moved = [event.clientX - held.x, event.clientY - held.y].map(by => by * place.ratio / place.cell);
      held.moved ||= Math.hypot(event.clientX - held.x, event.clientY - held.y) > 4;
      if (held.moved && zoom) { origin = held.origin.map((first, i) => Math.round(first - moved[i])); draw(); }
    }
    if (found) canvas.dataset.tip = told(found); else delete canvas.dataset.tip;
  });
  canvas.addEventListener("click", event => { const found = cellAt(event); if (found && !(held && held.moved)) onStep(found.t); });
  canvas.addEventListener("wheel", event => {
    const found = cellAt(event);
    if (!event.ctrlKey || !found) return;
    event.preventDefault(); enlarge(event.deltaY < 0 ? 1 : -1, [found.t, found.s ?? 0]);
  }, { passive: false });
  canvas.addEventListener("keydown", event => {
    const to = { ArrowUp: () => onStep(at - 1), ArrowDown: () => onStep(at + 1), Home: () => onStep(0), End: () => onStep(length - 1),
      ArrowLeft: () => read(cursor ? cursor[1] - 1 : at), ArrowRight: () => read(cursor ? cursor[1] + 1 : 0),
      "+": () => enlarge(1), "-": () => enlarge(-1) }[event.key];
    if (to) { event.preventDefault(); to(); }
  });
  out.addEventListener("click", () => enlarge(-1));
  into.addEventListener("click", () => enlarge(1));
  which.addEventListener("change", () => { show(Number(which.value)); });
  scaled.addEventListener("change", draw);
  window.addEventListener("resize", draw);
  $("theme").addEventListener("click", draw);
  for (const query of ["print", "(prefers-color-scheme: dark)"]) matchMedia(query).addEventListener("change", draw);
  function show(index) { shown = Math.max(0, Math.min(maps.length - 1, index)); draw(); onStep(at); }
  draw();
  return { maps, nameOf, tokens, length, gaps: data.gaps, map: () => maps[shown], show, select, pointOf, enlarge, canvas };
}
