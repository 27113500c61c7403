// One step over its time: what the device held, how busy the links were, where every chunk was.

const picture = data.picture;
const PHASE_COLOURS = {forward: 'var(--c-sky)', backward: 'var(--c-orange)', update: 'var(--c-green)'};
const TRACE_LINKS = {h2d: [arrowed('host -> device'), 'var(--c-blue)'], d2h: [arrowed('device -> host'), 'var(--c-sky)'],
  nvme_read: ['nvme reads', 'var(--c-green)'], nvme_write: ['nvme writes', 'var(--c-red)'],
  gather: ['gathers', 'var(--c-yellow)'], exchange: ['exchanges', 'var(--c-pink)']};
const PRESENCES = [
  ['in the tier below', 'var(--grid)'], ['parameters on the device', 'var(--c-blue)'], ['gradient on the device', 'var(--c-orange)'],
  ['parameters on their way in', 'var(--c-sky)'], ['gradient on its way out', 'var(--c-pink)'], ['states are read', 'var(--c-green)'],
  ['states are updated', 'var(--c-yellow)'], ['states are written', 'var(--c-red)'],
];
const LEFT = 104;

// What all charts over the step have.
function overTime(spec) {
  const part = picture.length_ns / picture.parts;
  const edge = i => timeText(i * part);
  return {
    points: picture.parts, at: i => (i + 0.5) * part, edges: i => [i * part, (i + 1) * part], left: LEFT, height: 150,
    x: {from: 0, to: picture.length_ns, scale: timeScale(picture.length_ns), name: timeScale(picture.length_ns).name},
    strip: picture.phases.map(([name, from, to]) => ({from, to, colour: PHASE_COLOURS[name], half: name === 'update'})),
    ...spec, tip: (i, down) => ({title: `${edge(i)} to ${edge(i + 1)}`, rows: [...phaseRows(i * part, (i + 1) * part), ...spec.tip(i, down)]}),
  };
}
function phaseRows(from, to) {
  const names = new Set(picture.phases.filter(([, begin, end]) => begin < to && end > from).map(([name]) => name));
  return [...names].map(name => ({colour: PHASE_COLOURS[name], name: 'phase', text: name}));
}

// The highest of a stack, and the budget as a level where it does not flatten the rest.
function tierChart(box, title, budget, columns) {
  const tops = columns[0].values.map((_, i) => columns.reduce((sum, c) => sum + c.values[i], 0));
  const y = extent([tops, budget > 0 && budget < 3 * Math.max(...tops) ? [budget] : []], {zero: true, scaleOf: byteScale});
  const layers = [stack(columns)];
  if (budget > 0 && budget <= y.to) layers.push(level(budget, 'var(--text)', ''));
  box.append(el('h3', {class: 'gap'}, title), legend([...columns.map(c => ({name: c.name, colour: c.colour})),
    ...(layers.length > 1 ? [{name: 'budget', colour: 'var(--text)', form: 'dashed'}] : [])]));
  chart(box, overTime({label: `${title} over the step`, y: {...y, name: y.scale.name}, layers, tip: i => [
    ...columns.map(c => ({colour: c.colour, name: c.name, text: bytesText(c.values[i])})).reverse(),
    {name: 'all', text: bytesText(tops[i])}, ...(budget > 0 ? [{name: 'budget', text: `${bytesText(budget)}, ${percentText(tops[i], budget)}`}] : [])]}));
}

function deviceChart(box) {
  const {device} = picture;
  const inBytes = slots => slots.map(count => count * device.slot_bytes);
  tierChart(box, 'Device memory', device.budget_bytes, [
    {name: 'activations, workspaces and what else stays', colour: 'var(--c-grey)', values: device.param.map(() => device.other_bytes)},
    {name: 'parameters', colour: 'var(--c-blue)', values: inBytes(device.param)},
    {name: 'gradients', colour: 'var(--c-orange)', values: inBytes(device.grad)},
    {name: 'gradients on their way out', colour: 'var(--c-pink)', values: inBytes(device.leaving)}]);
}
function hostChart(box) {
  const {host} = picture;
  const ring = host.ring.map(slots => slots * host.ring_slot_bytes);
  tierChart(box, 'Host memory', host.budget_bytes, [
    {name: 'arenas', colour: 'var(--c-grey)', values: host.bytes.map((all, i) => Math.max(0, all - ring[i]))},
    {name: 'I/O ring, in use', colour: 'var(--c-green)', values: ring}]);
}

// Each link is a lane of its own, as high as it is busy.
function lanes(links) {
  return (f, spec) => links.map((link, lane) => {
    const zero = f.py(links.length - 1 - lane + 0.08);
    let path = '';
    link.shares.forEach((share, i) => {
      if (share === 0) return;
      const [left, right] = spec.edges(i).map(f.px);
      path += `M${left.toFixed(2)} ${zero.toFixed(2)}V${f.py(links.length - 1 - lane + 0.08 + share / 1000 * 0.84).toFixed(2)}H${right.toFixed(2)}V${zero.toFixed(2)}Z`;
    });
    return svg('path', {d: path, fill: TRACE_LINKS[link.key][1]});
  });
}
function linkChartOverTime(box) {
  const links = picture.links.filter(link => link.busy_ns > 0 || link.bytes > 0);
  box.append(el('h3', {class: 'gap'}, 'Links'));
  if (links.length === 0) return void box.append(el('p', {class: 'empty'}, 'No link was used in this step.'));
  chart(box, overTime({label: 'Use of the links over the step', height: 46 + 34 * links.length,
    y: {from: 0, to: links.length, name: 'busy, of each part of the time', ticks: links.map((link, lane) => [links.length - 1 - lane + 0.08, TRACE_LINKS[link.key][0]])},
    layers: [lanes(links)], tip: i => links.map(link => ({colour: TRACE_LINKS[link.key][1], name: TRACE_LINKS[link.key][0], text: `${fixed(link.shares[i] / 10, 1)} %`}))}));
  box.append(table('', [{name: 'link'}, {name: 'moved in the step', number: true}, {name: 'busy', number: true}, {name: 'of the step', number: true},
    {name: 'while busy', number: true}], links.map(link => ({key: link.key, cells: [TRACE_LINKS[link.key][0], bytes(link.bytes), time(link.busy_ns),
      percentText(link.busy_ns, picture.length_ns), link.busy_ns > 0 ? `${fixed(link.bytes / link.busy_ns, 2)} GB/s` : '-']}))));
  box.append(el('p', {class: 'note'}, 'Bytes are those that the step counts; what it had begun before its first operation lies outside its time.'));
}

// Runs of equal cells of a row, a path for each presence.
function cells(rows) {
  return (f, spec) => {
    const paths = PRESENCES.map(() => '');
    rows.forEach((row, r) => {
      const y = f.py(r).toFixed(2);
      const below = f.py(r + 1).toFixed(2);
      for (let from = 0, to = 0; from < row.length; from = to) {
        for (to = from; to < row.length && row[to] === row[from]; ++to);
        paths[row[from]] += `M${f.px(spec.edges(from)[0]).toFixed(2)} ${y}H${f.px(spec.edges(to - 1)[1]).toFixed(2)}V${below}H${f.px(spec.edges(from)[0]).toFixed(2)}Z`;
      }
    });
    return paths.map((d, p) => svg('path', {d, fill: PRESENCES[p][1], 'shape-rendering': 'crispEdges', 'data-presence': p}));
  };
}
function rowName(r) {
  const {count: chunks, per_row: each} = picture.chunks;
  const first = r * each;
  const last = Math.min(chunks, first + each) - 1;
  return first === last ? `chunk ${grouped(first)}` : `chunks ${grouped(first)} to ${grouped(last)}`;
}
function chunkChart(box) {
  const {rows, per_row: each} = picture.chunks;
  box.append(el('h3', {class: 'gap'}, 'Where every chunk is'));
  if (rows.length === 0) return void box.append(el('p', {class: 'empty'}, 'There are no chunks.'));
  box.append(legend(PRESENCES.map(([name, colour]) => ({name, colour}))));
  const numbers = linearTicks(0, rows.length, 6).filter(r => Number.isInteger(r) && r < rows.length);
  const shareOf = i => PRESENCES.map(([name, colour], p) => ({name, colour, text: percentText(rows.filter(row => row[i] === String(p)).length, rows.length)}))
    .filter(row => row.text !== '0.0 %');
  chart(box, overTime({label: 'Where every chunk is over the step', height: 46 + Math.max(60, Math.min(420, rows.length * 14)),
    y: {from: rows.length, to: 0, name: each > 1 ? `chunk, ${each} in a row` : 'chunk', ticks: numbers.map(r => [r, grouped(r * each)])},
    layers: [cells(rows)], tip: (i, down) => {
      if (down === undefined || down < 0 || down >= 1) return shareOf(i);
      const r = Math.floor(down * rows.length);
      const [name, colour] = PRESENCES[rows[r][i]];
      return [{name: rowName(r), colour, text: name}];
    }}));
  box.append(folded('How much of the chunks\' time is spent where', () => presenceTable(rows), false));
}
function presenceTable(rows) {
  const sums = PRESENCES.map(() => 0);
  for (const row of rows) for (const cell of row) ++sums[cell];
  return table('', [{name: 'a chunk is'}, {name: 'of the time', number: true}], PRESENCES.map(([name, colour], p) => ({
    cells: [[swatch(colour), ` ${name}`], percentText(sums[p], rows.length * picture.parts)]})));
}

function showPicture() {
  if (!picture) return;
  const box = section('step', 'One step, over its time', `Step ${grouped(picture.step)}, which took ${timeText(picture.length_ns)}, was recorded. Time is cut into ${picture.parts} parts: memory is shown at its fullest within each, links by how much of it they were busy.`);
  if (picture.left_out > 0)
    box.append(el('p', {class: 'message stopped'}, `There was no room for ${counted(picture.left_out, 'event')} of the recording: what follows lacks them.`));
  box.append(legend([...new Set(picture.phases.map(([name]) => name))].map(name => ({name: `${name}, along the top`, colour: PHASE_COLOURS[name]}))));
  deviceChart(box);
  hostChart(box);
  linkChartOverTime(box);
  chunkChart(box);
}
