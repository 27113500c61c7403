// Charts: axes, layers and a tip, drawn as SVG in the width that there is and drawn again when that changes. A chart has
// points with numbers from 0: spec.at(i) is where point i stands on the x axis, spec.edges(i) from where to where it
// reaches.
//
//   chart(host, {label, height, points, at, edges, x: {from, to, name, whole}, y: {from, to, scale, name, log},
//                layers: [...], left, strip, tip: (i, down) => ({title, rows})})
//
// An axis may bring its ticks: [[value, text], ...]. `left` is where the x axis begins, for charts that stand above each
// other; `strip` is [{from, to, colour, name}] along the top; `down` is how far below the top the pointer is, 0 to 1.

const MARGIN = {top: 22, right: 10, bottom: 24};
const LETTER = 6.6;  // of the axes, in pixels

function axisTicks(axis, room, spacing) {
  if (axis.ticks) return axis.ticks.map(([value]) => value);
  const count = Math.max(2, Math.floor(room / spacing));
  if (axis.log) return decadeTicks(axis.from, axis.to);
  const factor = axis.scale ? axis.scale.factor : 1;
  const ticks = linearTicks(axis.from / factor, axis.to / factor, count).map(tick => tick * factor);
  return axis.whole ? ticks.filter(tick => Number.isInteger(Math.round(tick * 1e6) / 1e6)) : ticks;
}
function axisText(axis, ticks) {
  if (axis.ticks) return tick => axis.ticks.find(([value]) => value === tick)[1];
  const factor = axis.scale ? axis.scale.factor : 1;
  if (axis.whole) return tick => grouped(tick);
  if (axis.log) return tick => tickText(tick, tick);
  const step = ticks.length > 1 ? (ticks[1] - ticks[0]) / factor : ticks[0] / factor || 1;
  return tick => tickText(tick / factor, step);
}

function place(axis, begin, end) {
  const map = axis.log ? Math.log : v => v;
  const from = map(axis.from);
  const range = map(axis.to) - from || 1;
  return value => begin + (map(value) - from) / range * (end - begin);
}

// Pixels of one drawing.
function frame(spec, width) {
  const yTicks = axisTicks(spec.y, spec.height - MARGIN.top - MARGIN.bottom, 38);
  const yText = axisText(spec.y, yTicks);
  const left = spec.left ?? 12 + LETTER * Math.max(2, ...yTicks.map(tick => yText(tick).length));
  const box = {left, right: width - MARGIN.right, top: MARGIN.top + (spec.strip ? 6 : 0), bottom: spec.height - MARGIN.bottom};
  const xTicks = axisTicks(spec.x, box.right - box.left, 64);
  return {box, yTicks, yText, xTicks, xText: axisText(spec.x, xTicks), px: place(spec.x, box.left, box.right),
    py: place(spec.y, box.bottom, box.top)};
}

function axes(spec, f) {
  const group = svg('g', {'aria-hidden': 'true'});
  const {box} = f;
  for (const tick of f.yTicks) {
    const y = Math.round(f.py(tick)) + 0.5;
    group.append(svg('line', {class: 'grid', x1: box.left, x2: box.right, y1: y, y2: y}));
    group.append(svg('text', {x: box.left - 7, y: y + 3.5, 'text-anchor': 'end'}, f.yText(tick)));
  }
  const name = spec.x.name;
  const free = box.right - name.length * LETTER - 10;
  for (const tick of f.xTicks) {
    const x = f.px(tick);
    const text = f.xText(tick);
    group.append(svg('line', {class: 'axis', x1: x, x2: x, y1: box.bottom, y2: box.bottom + 4}));
    if (x + text.length * LETTER / 2 < free)
      group.append(svg('text', {x, y: box.bottom + 17, 'text-anchor': 'middle'}, text));
  }
  group.append(svg('line', {class: 'axis', x1: box.left, x2: box.right, y1: box.bottom + 0.5, y2: box.bottom + 0.5}));
  group.append(svg('text', {x: box.right, y: box.bottom + 17, 'text-anchor': 'end'}, name));
  group.append(svg('text', {x: 0, y: 11}, spec.y.name));
  for (const part of spec.strip ?? []) {
    group.append(svg('rect', {x: f.px(part.from), y: box.top - 7, width: Math.max(1, f.px(part.to) - f.px(part.from)), height: part.half ? 2.5 : 5,
      fill: part.colour}));
  }
  return group;
}

const isPoint = value => value !== null && value !== undefined;
const near = number => number.toFixed(1);

// --- Layers: functions of the chart's pixels that return elements ---

// Where a value is missing the line is broken; a value without neighbours is a dot.
function line(values, colour, {width = 1.8, dashed = false} = {}) {
  return (f, spec) => {
    let path = '';
    const dots = [];
    for (let i = 0; i < values.length; ++i) {
      if (!isPoint(values[i])) continue;
      const at = `${near(f.px(spec.at(i)))} ${near(f.py(values[i]))}`;
      const joined = i > 0 && isPoint(values[i - 1]);
      path += `${joined ? 'L' : 'M'}${at}`;
      if (!joined && !isPoint(values[i + 1])) dots.push(dot(spec.at(i), values[i], colour)(f));
    }
    return [svg('path', {d: path, fill: 'none', stroke: colour, 'stroke-width': width, 'stroke-linejoin': 'round',
      'stroke-dasharray': dashed ? '5 4' : null}), ...dots];
  };
}
function dot(x, y, colour, radius = 3.2) {
  return f => svg('circle', {cx: near(f.px(x)), cy: near(f.py(y)), r: radius, fill: colour, stroke: 'var(--card)',
    'stroke-width': 1.2});
}
// Through [x, y] that are not the chart's points.
function curve(places, colour) {
  return f => svg('path', {d: `M${places.map(([x, y]) => `${near(f.px(x))} ${near(f.py(y))}`).join('L')}`, fill: 'none',
    stroke: colour, 'stroke-width': 1.4, 'stroke-dasharray': '3 2'});
}
// Between two columns.
function band(low, high, colour) {
  return (f, spec) => {
    let path = '';
    for (let from = 0; from < low.length; ++from) {
      if (!isPoint(low[from])) continue;
      let to = from;
      while (to + 1 < low.length && isPoint(low[to + 1])) ++to;
      const side = (values, i) => `${near(f.px(spec.at(i)))} ${near(f.py(values[i]))}`;
      const indices = Array.from({length: to - from + 1}, (_, i) => from + i);
      path += `M${indices.map(i => side(high, i)).join('L')}L${indices.reverse().map(i => side(low, i)).join('L')}Z`;
      from = to;
    }
    return [svg('path', {d: path, fill: colour, opacity: 0.2})];
  };
}
// A level all the way, with its name on it.
function level(value, colour, name) {
  return f => {
    const y = f.py(value);
    return [svg('line', {x1: f.box.left, x2: f.box.right, y1: y, y2: y, stroke: colour, 'stroke-width': 1.4,
      'stroke-dasharray': '5 4'}), svg('text', {x: f.box.right - 2, y: y - 5, 'text-anchor': 'end'}, name)];
  };
}
const WIDEST_BAR = 54;
function barEdges(f, spec, i) {
  const [from, to] = spec.edges(i).map(f.px);
  const wide = to - from;
  const gap = wide > 5 ? 1 : 0;
  const width = Math.min(WIDEST_BAR, wide - gap);
  const middle = (from + to) / 2;
  return [middle - width / 2, middle + width / 2];
}
// Series on each other: {values, colour}.
function stack(series) {
  return (f, spec) => {
    const height = new Float64Array(spec.points);
    return series.map(one => {
      let path = '';
      for (let i = 0; i < spec.points; ++i) {
        const value = one.values[i] || 0;
        if (value <= 0) continue;
        const [left, right] = barEdges(f, spec, i);
        const low = f.py(height[i]);
        height[i] += value;
        const high = f.py(height[i]);
        path += `M${left.toFixed(2)} ${low.toFixed(2)}V${high.toFixed(2)}H${right.toFixed(2)}V${low.toFixed(2)}Z`;
      }
      return svg('path', {d: path, fill: one.colour});
    });
  };
}
// Each point as wide as it is, from 0 up: what is as good as constant stays calm.
function steps(values, colour) {
  return (f, spec) => {
    let top = '';
    values.forEach((value, i) => {
      const [from, to] = values.length > 1 ? spec.edges(i).map(f.px) : barEdges(f, spec, i);
      const y = f.py(value).toFixed(2);
      top += `${i === 0 ? `M${from.toFixed(2)} ${y}` : `V${y}`}H${to.toFixed(2)}`;
    });
    const zero = f.py(0);
    const [left] = values.length > 1 ? spec.edges(0).map(f.px) : barEdges(f, spec, 0);
    return [svg('path', {d: `${top}V${zero}H${left.toFixed(2)}Z`, fill: colour, opacity: 0.25}),
      svg('path', {d: top, fill: 'none', stroke: colour, 'stroke-width': 1.6})];
  };
}
// Small marks that stand on the x axis: a triangle for each place.
function onAxis(places, colour, row) {
  return f => places.map(x => {
    const [cx, y] = [f.px(x), f.box.bottom - 2 - 9 * row];
    return svg('path', {d: `M${near(cx)} ${y - 7}l4 7h-8Z`, fill: colour, stroke: 'var(--card)', 'stroke-width': 0.8});
  });
}

// --- The chart ---

function nearestPoint(spec, x) {
  let low = 0;
  let high = spec.points - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spec.edges(middle)[1] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

function drawChart(figure, spec) {
  const width = Math.max(240, figure.clientWidth || 640);
  const f = frame(spec, width);
  const root = svg('svg', {viewBox: `0 0 ${width} ${spec.height}`, role: 'img', 'aria-label': spec.label, tabindex: 0});
  root.append(axes(spec, f));
  for (const layer of spec.layers) root.append(...[layer(f, spec)].flat());
  const hair = svg('line', {class: 'hair', y1: f.box.top, y2: f.box.bottom, visibility: 'hidden'});
  root.append(hair);
  const show = (i, event, down) => {
    const x = f.px(spec.at(i));
    hair.setAttribute('x1', x);
    hair.setAttribute('x2', x);
    hair.setAttribute('visibility', 'visible');
    root.dataset.point = i;
    const place = root.getBoundingClientRect();
    const {title, rows} = spec.tip(i, down);
    showTip(event ? event.pageX : place.left + window.scrollX + x, event ? event.pageY : place.top + window.scrollY + 20, title, rows);
  };
  const hide = () => {
    hair.setAttribute('visibility', 'hidden');
    hideTip();
  };
  if (spec.points > 0) {
    root.addEventListener('pointermove', event => {
      const box = root.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * width;
      const share = (x - f.box.left) / (f.box.right - f.box.left);
      const down = ((event.clientY - box.top) / box.height * spec.height - f.box.top) / (f.box.bottom - f.box.top);
      show(nearestPoint(spec, spec.x.from + Math.max(0, Math.min(1, share)) * (spec.x.to - spec.x.from)), event, down);
    });
    root.addEventListener('pointerleave', hide);
    root.addEventListener('blur', hide);
    root.addEventListener('keydown', event => {
      const move = {ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20}[event.key];
      if (event.key === 'Escape') hide();
      if (!move) return;
      event.preventDefault();
      const from = root.dataset.point === undefined ? (move > 0 ? -1 : spec.points) : Number(root.dataset.point);
      show(Math.max(0, Math.min(spec.points - 1, from + move)));
    });
  }
  figure.replaceChildren(root);
}

function chart(host, spec) {
  const figure = el('figure', {class: 'chart'});
  host.append(figure);
  let drawn = 0;
  const draw = () => {
    if (figure.clientWidth === drawn && drawn > 0) return;
    drawn = figure.clientWidth;
    drawChart(figure, spec);
  };
  draw();
  new ResizeObserver(draw).observe(figure);
  return figure;
}

// From a little below the least to a little above the most of columns, or from 0.
function extent(columns, {zero = false, scaleOf = null, name = '', log = false} = {}) {
  let from = Infinity;
  let to = -Infinity;
  for (const column of columns) {
    for (const value of column) {
      if (!isPoint(value)) continue;
      from = Math.min(from, value);
      to = Math.max(to, value);
    }
  }
  if (from > to) [from, to] = [0, 1];
  if (log && from > 0 && to / from > 50) return {from: from / 1.15, to: to * 1.15, log: true, name: `${name} (logarithmic)`};
  if (zero) {
    from = 0;
    to = to > 0 ? to * 1.08 : 1;
  } else {
    const pad = to > from ? (to - from) * 0.07 : Math.abs(to) * 0.05 || 0.5;
    from -= pad;
    to += pad;
  }
  const scale = scaleOf ? scaleOf(to) : PLAIN_SCALE;
  return {from, to, scale, name: scale.name ? (name ? `${name}, ${scale.name}` : scale.name) : name};
}
