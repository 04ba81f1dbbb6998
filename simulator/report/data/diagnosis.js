"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const redraws = [];

function seconds(value) {
  for (const [name, size] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]])
    if (Math.abs(value) >= size) return (value / size).toPrecision(4) + " " + name;
  return value === 0 ? "0 s" : (value / 1e-9).toPrecision(3) + " ns";
}

function fit(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const paint = canvas.getContext("2d");
  paint.setTransform(ratio, 0, 0, ratio, 0, 0);
  paint.clearRect(0, 0, width, height);
  paint.font = "12px " + getComputedStyle(document.body).fontFamily;
  paint.textBaseline = "middle";
  return [paint, width];
}

function timeline(shown) {
  const canvas = document.getElementById("timeline"), said = document.getElementById("timeline-said");
  const left = Math.min(200, canvas.clientWidth * 0.3), top = 26, thin = 13, gap = 12;
  const all = shown.length, least = Math.max(20, all / 1e5);
  let from = 0, to = all, at = { row: 0, x: null };
  const rows = [];
  let y = top;
  for (const lane of shown.lanes) {
    lane.y = y;
    for (const row of lane.rows) {
      const height = row.name === "GPU" ? 22 : thin;
      rows.push({ ...row, lane, y, height });
      y += height + 2;
    }
    y += gap;
  }
  const height = y;

  function axis(paint, width) {
    const span = to - from, raw = span / Math.max(2, (width - left) / 110);
    const power = 10 ** Math.floor(Math.log10(raw));
    const unit = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
    paint.fillStyle = css("--dim");
    paint.strokeStyle = css("--line");
    paint.textAlign = "center";
    for (let t = Math.ceil(from / unit) * unit; t <= to; t += unit) {
      const x = left + ((t - from) / span) * (width - left);
      paint.beginPath(); paint.moveTo(x, top - 6); paint.lineTo(x, height); paint.stroke();
      if (x > left + 20 && x < width - 30) paint.fillText(seconds(t * shown.tick_s), x, 10);
    }
  }

  function draw() {
    const [paint, width] = fit(canvas, height), wide = width - left, scale = wide / (to - from);
    axis(paint, width);
    const colours = shown.classes.map((name) => css("--" + name));
    for (const row of rows) {
      let last = -1, from_x = 0;
      for (let i = 0; i < row.start.length; i++) {
        const begin = row.start[i], end = begin + row.length[i];
        if (end < from || begin > to) continue;
        const x = left + Math.max(0, (begin - from) * scale), until = left + Math.min(wide, (end - from) * scale);
        if (until - x < 0.3 && row.cause[i] === last && x - from_x < 0.3) continue;
        last = row.cause[i]; from_x = x;
        paint.fillStyle = colours[row.cause[i]];
        paint.fillRect(x, row.y, Math.max(0.4, until - x), row.height);
      }
      paint.fillStyle = css("--dim");
      paint.textAlign = "right";
      if (row.name !== "GPU") paint.fillText(row.name, left - 8, row.y + row.height / 2);
    }
    paint.textAlign = "left";
    for (const lane of shown.lanes) {
      paint.fillStyle = css("--text");
      paint.fillText(lane.label.replace(/ \(.*/, ""), 4, lane.y + 11);
      paint.fillStyle = css("--dim");
      if (lane.rows.length > 1) paint.fillText(lane.about, 4, lane.y + 28);
    }
    if (at.x !== null) {
      const x = left + (at.x - from) * scale;
      paint.strokeStyle = css("--focus");
      paint.lineWidth = 2;
      paint.beginPath(); paint.moveTo(x, top - 8); paint.lineTo(x, height); paint.stroke();
      paint.strokeRect(left, rows[at.row].y - 1, wide, rows[at.row].height + 2);
      paint.lineWidth = 1;
    }
  }

  function tell() {
    const row = rows[at.row];
    let what = "nothing";
    for (let i = 0; i < row.start.length; i++)
      if (row.start[i] <= at.x && at.x <= row.start[i] + row.length[i])
        what = shown.names[row.cause[i]] + ", " + seconds(row.length[i] * shown.tick_s);
    said.textContent = `${row.lane.label}, ${row.name}, at ${seconds(at.x * shown.tick_s)}: ${what}`;
  }

  function zoom(factor, centre) {
    const span = clamp((to - from) * factor, least, all);
    from = clamp(centre - ((centre - from) / (to - from)) * span, 0, all - span);
    to = from + span;
    draw();
  }
  function pan(part) {
    const span = to - from;
    from = clamp(from + part * span, 0, all - span);
    to = from + span;
    draw();
  }
  function move(rows_, time) {
    at.row = clamp(at.row + rows_, 0, rows.length - 1);
    at.x = clamp((at.x === null ? (from + to) / 2 : at.x) + time * (to - from), 0, all);
    if (at.x < from) pan((at.x - from) / (to - from) - 0.1);
    if (at.x > to) pan((at.x - to) / (to - from) + 0.1);
    tell();
    draw();
  }
  const centre = () => (at.x === null ? (from + to) / 2 : at.x);
  const keys = {
    ArrowLeft: () => move(0, -0.01), ArrowRight: () => move(0, 0.01),
    ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0),
    "+": () => zoom(0.5, centre()), "=": () => zoom(0.5, centre()), "-": () => zoom(2, centre()),
    PageUp: () => pan(-0.5), PageDown: () => pan(0.5), Home: () => { from = 0; to = all; draw(); },
  };
  canvas.addEventListener("keydown", (event) => {
    if (keys[event.key]) { keys[event.key](); event.preventDefault(); }
  });
  const time = (event) => {
    const box = canvas.getBoundingClientRect();
    return from + clamp((event.clientX - box.left - left) / (box.width - left), 0, 1) * (to - from);
  };
  let grip = null;
  canvas.addEventListener("pointerdown", (event) => { grip = event.clientX; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { grip = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (grip !== null && Math.abs(event.clientX - grip) > 2) {
      pan((grip - event.clientX) / (canvas.clientWidth - left));
      grip = event.clientX;
    }
    const y = event.clientY - canvas.getBoundingClientRect().top;
    const row = rows.findIndex((one) => y >= one.y - 1 && y <= one.y + one.height + 1);
    if (row >= 0) { at = { row, x: time(event) }; tell(); draw(); }
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, time(event));
    event.preventDefault();
  }, { passive: false });
  document.getElementById("closer").onclick = () => zoom(0.5, centre());
  document.getElementById("wider").onclick = () => zoom(2, centre());
  document.getElementById("whole").onclick = () => keys.Home();
  const steps = document.getElementById("step");
  steps.onchange = () => {
    const one = shown.steps[steps.value];
    [from, to] = one ? [one[1], one[2]] : [0, all];
    draw();
  };
  redraws.push(draw);
}

function mixed(value, most) {
  const part = clamp(Math.abs(value) / most, 0, 1);
  const [r, g, b] = [css("--even"), css(value > 0 ? "--hot" : "--cold")]
    .map((text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)))
    .reduce((one, other) => one.map((x, i) => Math.round(x + (other[i] - x) * part)));
  return `rgb(${r} ${g} ${b})`;
}

function heat(shown) {
  const canvas = document.getElementById("heat"), said = document.getElementById("heat-said");
  const left = 150, top = 22, size = shown.ranks.length > 40 ? 9 : 18;
  const height = top + size * shown.ranks.length + 4;
  const choice = document.getElementById("measure"), scale = document.getElementById("heat-scale");
  let at = null, one = shown.measures[0];
  choice.onchange = () => { one = shown.measures[choice.value]; if (at) tell(); draw(); };
  function draw() {
    const [paint, width] = fit(canvas, height), wide = (width - left) / shown.steps.length;
    scale.textContent = `colours end ${(100 * one.most).toFixed(0)}% from the median`;
    paint.fillStyle = css("--dim");
    paint.textAlign = "center";
    const every = Math.ceil(34 / wide);
    shown.steps.forEach((step, x) => {
      if (x % every === 0) paint.fillText((x === 0 ? "step " : "") + step, left + (x + 0.5) * wide, 10);
    });
    paint.textAlign = "right";
    shown.ranks.forEach((rank, y) => {
      if (size > 11 || y % 2 === 0) { paint.fillStyle = css("--dim"); paint.fillText(rank, left - 8, top + (y + 0.5) * size); }
      one.against[y].forEach((value, x) => {
        if (value === null) return;
        paint.fillStyle = mixed(value, one.most);
        paint.fillRect(left + x * wide, top + y * size, Math.max(1, wide - 1), size - 1);
      });
    });
    if (at) {
      paint.strokeStyle = css("--focus");
      paint.lineWidth = 2;
      paint.strokeRect(left + at[1] * wide, top + at[0] * size, wide - 1, size - 1);
      paint.lineWidth = 1;
    }
  }
  function tell() {
    const [y, x] = at, value = one.against[y][x];
    const apart = value === null ? "" : `, ${value < 0 ? "" : "+"}${(100 * value).toFixed(1)}% against the median`;
    said.textContent = `${shown.ranks[y]} on node ${shown.nodes[y]}, step ${shown.steps[x]}: ${seconds(one.seconds[y][x])}${apart}`;
    draw();
  }
  const ways = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  canvas.addEventListener("keydown", (event) => {
    const way = ways[event.key];
    if (!way) return;
    at = at ? [clamp(at[0] + way[0], 0, shown.ranks.length - 1), clamp(at[1] + way[1], 0, shown.steps.length - 1)] : [0, 0];
    tell();
    event.preventDefault();
  });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const y = Math.floor((event.clientY - box.top - top) / size);
    const x = Math.floor(((event.clientX - box.left - left) / (box.width - left)) * shown.steps.length);
    if (y >= 0 && y < shown.ranks.length && x >= 0 && x < shown.steps.length) { at = [y, x]; tell(); }
  });
  redraws.push(draw);
}

if (data.timeline) timeline(data.timeline);
if (data.heat && document.getElementById("heat")) heat(data.heat);
const redraw = () => redraws.forEach((draw) => draw());
window.addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
redraw();
document.documentElement.dataset.drawn = "yes";
