// With what the run was made: its header, the machine, the configuration; and what this page left out.

function factList(facts) {
  return el('dl', {class: 'facts'}, facts.map(([name, text]) => [el('dt', {}, name), el('dd', {}, text)]));
}

function configurationTable(rows) {
  return table('', [{name: 'key'}, {name: 'value'}, {name: 'from'}], rows.map(([key, value, origin, note]) => ({key, remark: note,
    cells: [el('span', {class: 'mono'}, broken(key)), el('span', {class: 'mono'}, broken(value)), el('span', {class: 'soft'}, broken(origin))]})));
}

function showSettings() {
  const facts = section('run', 'Run and machine');
  const pair = el('div', {class: 'columns'}, el('div', {}, el('h3', {}, 'Run'), factList(run.facts)));
  if (run.machine.length > 0) pair.append(el('div', {}, el('h3', {}, 'Machine'), factList(run.machine)));
  facts.append(pair);

  const box = section('configuration', 'Configuration', 'Every value in force and where it comes from.');
  const given = run.configuration.filter(([, , origin]) => origin !== 'default');
  box.append(given.length > 0 ? configurationTable(given) : el('p', {class: 'empty'}, 'Every value is the default.'));
  const defaults = run.configuration.filter(([, , origin]) => origin === 'default');
  if (defaults.length > 0) box.append(folded(`${counted(defaults.length, 'value')} by default`, () => configurationTable(defaults)));
}

function showFoot() {
  const foot = document.getElementById('foot');
  const reduced = [];
  if (merged)
    reduced.push(`Curves have ${grouped(pointCount)} points of ${grouped(series.steps_per_point)} steps each: means, with the least and most beside them. Totals are exact.`);
  for (const [key, noun] of [['evaluations', 'evaluation'], ['checkpoints', 'checkpoint'], ['commits', 'commit']])
    if (marks[key].every > 1) reduced.push(`Of ${counted(marks[key].count, noun)} one in ${grouped(marks[key].every)} is kept.`);
  if (log.left_out > 0) reduced.push(`The first ${grouped(log.lines.length)} of ${grouped(log.lines.length + log.left_out)} warnings are kept.`);
  if (run.resumed_at_step > 0) reduced.push(`The run was resumed after step ${grouped(run.resumed_at_step)}: this page is of the steps since.`);
  foot.append(el('p', {id: 'reduced'}, reduced.length > 0 ? reduced.join(' ') : 'Every step of the run is a point of the curves.'),
    el('p', {}, 'This page needs no network. docs/run_report.md says where each number comes from.'));
}
