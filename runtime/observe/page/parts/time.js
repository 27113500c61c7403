// Where the time of steps went, and what bound them.

function causeChart(box) {
  const used = causes.map(cause => ({...cause, colour: CAUSE_COLOURS[cause.key]})).filter(cause => cause.sums.some(sum => sum > 0));
  const host = el('div');
  const button = el('button', {type: 'button', id: 'without-compute', 'aria-pressed': 'false'}, 'without compute');
  const draw = () => drawCauses(host, used, button.getAttribute('aria-pressed') === 'true');
  button.addEventListener('click', () => {
    button.setAttribute('aria-pressed', button.getAttribute('aria-pressed') === 'true' ? 'false' : 'true');
    draw();
  });
  if (used.length > 1 && used.some(cause => cause.key === 'compute')) box.append(el('div', {class: 'choices'}, button));
  box.append(host);
  draw();
}

// Where nearly all is compute, the rest shows without it only.
function drawCauses(host, used, withoutCompute) {
  const shown = used.filter(cause => !withoutCompute || cause.key !== 'compute');
  const columns = shown.map(cause => ({values: perStep(cause.sums), colour: cause.colour}));
  const whole = perStep(series.total_ns);
  const heights = whole.map((_, i) => columns.reduce((sum, column) => sum + column.values[i], 0));
  clear(host);
  host.append(legend(shown.map(cause => ({name: shortestName(cause.name), colour: cause.colour}))));
  chart(host, overSteps({label: `Time of a step by cause${withoutCompute ? ', without compute' : ''}, over steps`, height: 270,
    y: extent([heights], {zero: true, scaleOf: timeScale, name: withoutCompute ? 'time per step, without compute' : 'time per step'}),
    layers: [stack(columns)],
    tip: i => [...shown.map((cause, c) => ({colour: cause.colour, name: shortestName(cause.name), text: timeText(columns[c].values[i])})).reverse(),
      {name: withoutCompute ? 'all, with compute' : 'all', text: timeText(whole[i])},
      ...(merged ? [{name: 'shortest and longest step', text: `${timeText(series.step_ns.least[i])}, ${timeText(series.step_ns.most[i])}`}] : [])]}));
}

const tokenRates = () => Array.from(series.tokens, (tokens, i) => tokens / (series.total_ns[i] / 1e9 || 1));

function rateChart(box, rates) {
  const host = el('div', {id: 'rate', class: 'gap'}, el('h3', {}, 'Tokens per second'));
  box.append(host);
  chart(host, overSteps({label: 'Tokens per second over steps', y: extent([rates], {zero: true, name: 'tokens/s'}),
    layers: [line(rates, 'var(--c-blue)')],
    tip: i => [{colour: 'var(--c-blue)', form: 'line', name: 'tokens/s', text: grouped(rates[i])}]}));
}

function causeTable() {
  const sum = totals.total_ns + totals.rest.ns;
  const rows = causes.map(({key, name, ns}) => ({key, cells: [[swatch(CAUSE_COLOURS[key]), ` ${shortestName(name)}`], time(ns),
    time(Math.round(ns / totals.steps)), percentText(ns, sum), shareBar(ns / sum, CAUSE_COLOURS[key])]}));
  rows.push({key: 'all', total: true, cells: ['all steps', time(sum), time(Math.round(sum / totals.steps)), percentText(sum, sum), '']});
  return table('', [{name: 'cause'}, {name: 'total', number: true}, {name: 'per step', number: true}, {name: 'share', number: true},
    {name: '', bar: true}], rows);
}

const RESOURCES = [
  {key: 'processor', name: 'processor', ns: 'processor_ns', colour: 'var(--c-blue)'},
  {key: 'disk', name: 'disk', ns: 'disk_ns', colour: 'var(--c-green)'},
  {key: 'h2d', name: arrowed('host -> device'), ns: 'h2d_ns', colour: 'var(--c-orange)'},
  {key: 'd2h', name: arrowed('device -> host'), ns: 'd2h_ns', colour: 'var(--c-sky)'},
];

function resourceTable() {
  const use = totals.resources;
  const binds = key => use.binding === key || (key === 'disk' && use.binding.startsWith('disk_'));
  return table('', [{name: 'resource'}, {name: 'busy', number: true}, {name: 'of the time', number: true}, {name: '', bar: true}],
    RESOURCES.map(resource => ({key: resource.key, total: false, cells: [
      binds(resource.key) ? el('b', {}, `${resource.name}, binds`) : resource.name, time(use[resource.ns]),
      percentText(use[resource.ns], use.total_ns), shareBar(use[resource.ns] / (use.total_ns || 1), resource.colour)]})));
}

// These overlap, unlike the causes.
function waitTable() {
  const sum = totals.total_ns + totals.rest.ns;
  const rows = [{key: 'forward_backward', name: 'forward and backward', ns: totals.forward_backward_ns},
    {key: 'update', name: 'the end of the step', ns: totals.update_ns + totals.rest.ns},
    {key: 'keeping', name: 'keeping the state', ns: totals.keeping_ns}, ...totals.waits].filter(row => row.ns > 0);
  return table('', [{name: 'phase or wait'}, {name: 'total', number: true}, {name: 'per step', number: true}, {name: 'share', number: true}],
    rows.map(row => ({key: row.key, cells: [row.name, time(row.ns), time(Math.round(row.ns / totals.steps)), percentText(row.ns, sum)]})));
}

function busyChart(box) {
  const shares = {h2d: series.busy.h2d, d2h: series.busy.d2h, disk: series.busy.disk};
  const used = RESOURCES.filter(resource => shares[resource.key] && shares[resource.key].some(ns => ns > 0))
    .map(resource => ({...resource, values: shares[resource.key].map((ns, i) => 100 * ns / (series.total_ns[i] || 1))}));
  if (used.length === 0) return false;
  box.append(el('h3', {}, 'Links busy, of the time of a step'), legend(used.map(resource => ({name: resource.name, colour: resource.colour, form: 'line'}))));
  chart(box, overSteps({label: 'Share of a step in which each link is busy, over steps',
    y: {...extent(used.map(resource => resource.values), {zero: true}), name: '% of the step'},
    layers: used.map(resource => line(resource.values, resource.colour)),
    tip: i => used.map(resource => ({colour: resource.colour, form: 'line', name: resource.name, text: `${fixed(resource.values[i], 1)} %`}))}));
  return true;
}

function showTime() {
  const box = section('time', 'Where the time goes', 'Every nanosecond of a step belongs to one cause, so the parts add up to the step. Resources work at the same time: the one that is busy for the longest bounds the run.');
  if (pointCount === 0) return void box.append(el('p', {class: 'empty'}, noSteps));
  const rates = tokenRates();
  causeChart(box);
  rateChart(box, rates);
  box.append(pointTable([...causes.map(({name, sums}) => ({name: shortestName(name), cell: i => time(Math.round(sums[i] / series.count[i]))})),
    {name: 'all', cell: i => time(Math.round(series.total_ns[i] / series.count[i]))}, {name: 'tokens/s', cell: i => count(Math.round(rates[i]))}]));
  const pair = el('div', {class: 'columns'});
  box.append(pair);
  const busy = el('div', {}, el('h3', {}, 'What bounds the run'), el('div', {id: 'resources'}, resourceTable()));
  pair.append(el('div', {}, el('h3', {}, 'By cause'), el('div', {id: 'causes'}, causeTable())), busy);
  const links = el('div', {class: 'gap'});
  busy.append(links);
  busyChart(links);
  box.append(folded('Phases, and who waited for what (these overlap)', waitTable, false));
  if (totals.rest.ns > totals.total_ns / 1000)
    box.append(el('p', {class: 'note'}, `${timeText(totals.rest.ns)} of "all steps" went into the update that was pending after the last step. The curve has the steps alone.`));
}
