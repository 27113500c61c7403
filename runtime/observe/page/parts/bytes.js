// What steps moved over each link, beside the least that any order of decisions could have moved.

const movedOf = l => totals.links[l] + totals.rest.links[l];

function linkTable(used) {
  const rows = used.map(({link, l}) => {
    const moved = movedOf(l);
    const each = moved / totals.steps;
    return {key: link.key, cells: [[swatch(LINK_COLOURS[link.key]), ` ${link.name}`], bytes(moved), exact(each, bytesText(Math.floor(each)), 'bytes'),
      bytes(link.least), link.least > 0 ? exact(each / link.least, ratioText(each, link.least)) : '-']};
  });
  return table('', [{name: 'link'}, {name: 'total', number: true}, {name: 'per step', number: true}, {name: 'least possible', number: true},
    {name: 'ratio', number: true}], rows);
}

function linkChart(box, {link, l}) {
  const values = perStep(series.links[l]);
  const colour = LINK_COLOURS[link.key];
  const y = extent([values, [link.least]], {zero: true, scaleOf: byteScale, name: 'per step'});
  box.append(el('h3', {}, link.name));
  const layers = [steps(values, colour)];
  if (!link.fixed && link.least > 0) layers.push(level(link.least, 'var(--text)', ''));
  chart(box, overSteps({label: `Bytes per step, ${link.name}, over steps`, height: 140, y, layers, tip: i => [
    {colour, name: 'moved', text: bytesText(values[i])}, {colour: 'var(--text)', form: 'dashed', name: 'least possible', text: bytesText(link.least)},
    {name: 'ratio', text: ratioText(values[i], link.least)}]}));
}

function pathTable() {
  return table('', [{name: 'nvme path'}, {name: 'read and written', number: true}, {name: 'busy', number: true}, {name: 'rate', number: true}],
    memory.paths.map(path => ({key: path.path, cells: [el('span', {class: 'mono'}, path.path), bytes(path.bytes), time(path.busy_ns),
      path.busy_ns > 0 ? `${fixed(path.bytes / path.busy_ns, 2)} GB/s` : '-']})));
}

function copiesText() {
  const late = totals.demand_fetches;
  return `Parameters were copied to the device ${counted(totals.fetches, 'time')}; ${grouped(late)} ${late === 1 ? 'copy' : 'copies'} `
    + `(${percentText(late, totals.fetches)}) came late, so an operation waited for them; ${counted(totals.evictions, 'time')} something else had to leave for them.`;
}

function showBytes() {
  const box = section('bytes', 'Bytes moved', 'Over each link, per step, beside the least that any order of decisions could move with these budgets. A ratio of 1 is as good as can be.');
  if (pointCount === 0) return void box.append(el('p', {class: 'empty'}, noSteps));
  const used = data.links.map((link, l) => ({link, l})).filter(({link, l}) => movedOf(l) > 0 || (link.least > 0 && !link.fixed));
  if (used.length === 0)
    return void box.append(el('p', {class: 'empty'}, 'Nothing was moved: all of the training state is in device memory.'));
  box.append(el('div', {id: 'links'}, linkTable(used)));
  if (used.some(({link}) => !link.fixed && link.least > 0))
    box.append(el('div', {class: 'gap'}, legend([{name: 'least possible', colour: 'var(--text)', form: 'dashed'}])));
  const charts = el('div', {class: 'columns three', style: 'margin-top:10px'});
  box.append(charts);
  for (const entry of used) {
    const host = el('div');
    charts.append(host);
    linkChart(host, entry);
  }
  box.append(pointTable(used.map(({link, l}) => ({name: link.name, cell: i => exact(series.links[l][i] / series.count[i], bytesText(series.links[l][i] / series.count[i]), 'bytes')}))));
  if (totals.fetches > 0) box.append(el('p', {class: 'note', id: 'copies'}, copiesText()));
  if (memory.paths.length > 0) box.append(el('h3', {class: 'gap'}, 'Drives'), pathTable());
}
