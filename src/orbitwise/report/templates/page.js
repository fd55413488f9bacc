
"use strict";
// Shows one example at one place of one move, from the grid of answers in the page.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const explorer = document.getElementById("explorer");
  if (!data || !explorer) return;

  const at = (id) => document.getElementById(id);
  const sliders = [...explorer.querySelectorAll("input[type=range]")];
  const choices = [...explorer.querySelectorAll(".choice")];
  const canvas = at("picture");
  const isClasses = data.kind === "classes";
  const state = { example: data.start[0], move: data.start[1] };
  const sheets = data.examples.map((example) => {
    const sheet = new Image();
    sheet.onload = paint;
    sheet.src = example.sheet;
    return sheet;
  });
  canvas.width = data.width;
  canvas.height = data.height;
  explorer.hidden = false;

  const place = () => Number(sliders[state.move].value);
  const answer = () => data.examples[state.example].answers[state.move][place()];
  const isExtreme = (thousandths) => (thousandths > 0 && thousandths < 10) || (thousandths > 990 && thousandths < 1000);
  const percent = (thousandths) => `${(thousandths / 10).toFixed(isExtreme(thousandths) ? 1 : 0)}\u00a0%`;
  const minus = (value) => String(value).replace("-", "−");

  function make(tag, parent, attributes, text) {
    const isDrawing = parent.namespaceURI.endsWith("svg");
    const element = isDrawing ? document.createElementNS(parent.namespaceURI, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return parent.appendChild(element);
  }

  function paint() {
    const sheet = sheets[state.example];
    if (!sheet.complete || !sheet.naturalWidth) return;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, data.width, data.height);
    const from = [place() * data.width, state.move * data.height];
    context.drawImage(sheet, ...from, data.width, data.height, 0, 0, data.width, data.height);
  }

  function showBars() {
    const bars = at("bars");
    const example = data.examples[state.example];
    const now = answer();
    bars.replaceChildren();
    if (!isClasses) {
      const [middle, low, high] = now[0];
      make("div", bars, { class: "figure" }, withError(middle, (high - low) / 2));
      make("div", bars, { class: "faint" }, `predicted; measured: ${example.name}`);
      return;
    }
    const best = Math.max(...now.map((band) => band[0]));
    now.forEach(([middle, low, high], i) => {
      const kind = `bar${i === example.own ? " own" : ""}${middle === best ? " top" : ""}`;
      const bar = make("div", bars, { class: kind });
      make("span", bar, { class: "class", title: example.shown[i] }, example.shown[i]);
      const track = make("span", bar, { class: "track" });
      make("span", track, { class: "fill" }).style.width = `${middle / 10}%`;
      const whisker = make("span", track, { class: "whisker" });
      whisker.style.left = `${low / 10}%`;
      whisker.style.width = `${(high - low) / 10}%`;
      make("span", bar, { class: "share" }, percent(middle));
    });
  }

  function round(value) {
    return minus(Number(value.toPrecision(3)));
  }

  // as many decimals as the error leaves
  function withError(value, error) {
    if (!(error > 0)) return round(value);
    const power = Math.floor(Math.log10(error));
    const decimals = Math.max(0, Math.min(7, (error / 10 ** power < 1.95 ? 1 : 0) - power));
    return `${minus(value.toFixed(decimals))} ± ${error.toFixed(decimals)}`;
  }

  function showSummary() {
    const move = data.moves[state.move];
    const example = data.examples[state.example];
    const now = answer();
    const where = move.finite ? "" : move.inside[place()] ? " (inside the learned range)" : " (outside the learned range)";
    let said;
    if (isClasses) {
      const best = now.reduce((top, band, i) => (band[0] > now[top][0] ? i : top), 0);
      const [middle, low, high] = now[best];
      said = `predicted ${example.shown[best]} with ${percent(middle)} (${percent(low)} to ${percent(high)})`;
    } else {
      const [middle, low, high] = now[0];
      said = `predicted ${withError(middle, (high - low) / 2)}`;
    }
    at("summary").textContent = `${example.name}, ${move.label} ${move.texts[place()]}${where}: ${said}`;
    canvas.className = move.inside[place()] ? "inside" : "outside";
  }

  function showTrace() {
    const svg = at("trace");
    const [width, height, left, bottom, top] = [440, 190, 46, 24, 8];
    const move = data.moves[state.move];
    const example = data.examples[state.example];
    const bands = example.answers[state.move].map((answers) => answers[isClasses ? example.own : 0]);
    const least = Math.min(...bands.map((band) => band[1]));
    const most = Math.max(...bands.map((band) => band[2]));
    // what hardly changes must not look as if it did
    const margin = Math.max(0, data.span - (most - least)) / 2;
    const [low, high] = isClasses ? [0, 1000] : [least - margin, most + margin];
    const last = Math.max(bands.length - 1, 1);
    const x = (i) => left + 6 + (i / last) * (width - left - 12);
    const y = (value) => top + (1 - (value - low) / (high - low || 1)) * (height - top - bottom);
    const points = (end) => bands.map((band, i) => `${x(i).toFixed(1)},${y(band[end]).toFixed(1)}`);
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const inside = move.inside.map((flag, i) => (flag ? i : -1)).filter((i) => i >= 0);
    const from = x(inside[0]);
    make("rect", svg, { x: from, y: top, width: x(inside[inside.length - 1]) - from, height: height - top - bottom, fill: "#e3f1ea" });
    for (const share of [0, 0.5, 1]) {
      const value = low + share * (high - low);
      make("line", svg, { x1: left, x2: width, y1: y(value), y2: y(value), stroke: "#dfe5e9" });
      const text = isClasses ? `${value / 10} %` : round(value);
      make("text", svg, { x: left - 6, y: y(value) + 4, "text-anchor": "end", "font-size": 12, fill: "#5b6a75" }, text);
    }
    const ends = [[0, "start"], [last, "end"]];
    if (move.rest > 0 && move.rest < last) ends.push([move.rest, "middle"]);
    for (const [i, anchor] of ends) {
      make("text", svg, { x: x(i), y: height - 6, "text-anchor": anchor, "font-size": 12, fill: "#5b6a75" }, move.texts[i]);
    }
    make("polygon", svg, { points: [...points(1), ...points(2).reverse()].join(" "), fill: "#0072b2", opacity: 0.18 });
    make("polyline", svg, { points: points(0).join(" "), fill: "none", stroke: "#0072b2", "stroke-width": 2.4 });
    const here = bands[place()][0];
    make("line", svg, { x1: x(place()), x2: x(place()), y1: top, y2: height - bottom, stroke: "#1f2d3a", "stroke-dasharray": "3 3" });
    make("circle", svg, { cx: x(place()), cy: y(here), r: 5, fill: "#0072b2", stroke: "#fff", "stroke-width": 2 });
    at("along").textContent = move.label;
  }

  function show() {
    sliders.forEach((slider, i) => {
      const move = data.moves[i];
      if (i !== state.move) slider.value = move.rest;
      slider.parentElement.classList.toggle("active", i === state.move);
      const text = move.texts[Number(slider.value)];
      at(`value-${i}`).textContent = text;
      slider.setAttribute("aria-valuetext", text);
    });
    choices.forEach((choice, i) => choice.setAttribute("aria-pressed", String(i === state.example)));
    paint();
    showBars();
    showSummary();
    showTrace();
  }

  sliders.forEach((slider, i) => slider.addEventListener("input", () => { state.move = i; show(); }));
  choices.forEach((choice, i) => choice.addEventListener("click", () => { state.example = i; show(); }));
  show();
})();
