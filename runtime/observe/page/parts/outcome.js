// Prediction beside measurement, what was kept of the state, and what the log warned of.

// Rows are {key, name, predicted, measured, show}.
function comparison(rows) {
  return table('', [{name: ''}, {name: 'predicted', number: true}, {name: 'measured', number: true}, {name: 'measured / predicted', number: true}],
    rows.map(row => ({key: row.key, cells: [row.name, row.show(row.predicted), row.show(row.measured),
      row.predicted > 0 ? exact(row.measured / row.predicted, ratioText(row.measured, row.predicted)) : '-']})));
}

// Points from the step on that is like all after it; all of them when there is none.
function steadyPoints() {
  const all = Array.from({length: pointCount}, (_, i) => i);
  const steady = all.filter(i => firstOf(i) >= series.first_step + prediction.repeats_from_step - 1);
  return steady.length > 0 ? steady : all;
}

function showPrediction() {
  if (!prediction) return;
  const box = section('prediction', 'Prediction and measurement', 'What was predicted for a step before anything was allocated, beside the mean of the steps that are like each other.');
  const points = steadyPoints();
  const {steps, of_other_modes: others} = prediction.measured;
  const mode = prediction.update_mode;
  const rows = [];
  if (steps > 0) {
    data.links.forEach((link, l) => {
      const measured = prediction.measured.links[l] / steps;
      if (prediction.links[l] > 0 || measured > 0)
        rows.push({key: link.key, name: `${link.name}, per step`, predicted: prediction.links[l], measured, show: bytes});
    });
  }
  for (const tier of prediction.tiers) {
    const found = memory.tiers.find(other => other.name === tier.name);
    if (found) rows.push({key: `${tier.name}-peak`, name: `${tier.name}, peak`, predicted: tier.peak_bytes, measured: found.peak_bytes, show: bytes});
  }
  if (prediction.has_times && pointCount > 0) {
    const inTime = seconds => time(Math.round(seconds * 1e9));
    const times = points.map(i => series.total_ns[i] / series.count[i] / 1e9).sort((a, b) => a - b);
    const median = (times[(times.length - 1) >> 1] + times[times.length >> 1]) / 2;
    rows.push({key: 'step-time', name: 'time per step, median', predicted: prediction.step_seconds, measured: median, show: inTime});
  }
  box.append(comparison(rows));
  if (pointCount > 0) box.append(el('p', {class: 'note', id: 'predicted-steps'}, `Predicted for steps that update ${mode}. Bytes measured: the mean of the ${counted(steps, 'step')} that did so, from step ${grouped(run.resumed_at_step + prediction.repeats_from_step)} on.`
    + (others > 0 ? ` ${counted(others, 'step')} updated in another mode, and ${others === 1 ? 'is' : 'are'} not in it.` : '')));
  if (prediction.has_times) {
    box.append(el('p', {class: 'note'}, `Predicted to be bound by ${prediction.binding_name}; the run was bound by ${totals.resources.binding_name}.`));
    if (prediction.rates.length > 0) {
      box.append(folded('Rates that the prediction rests on', () => table('', [{name: 'what'}, {name: 'value', number: true}, {name: 'from'}],
        prediction.rates.map(rate => ({cells: [rate.name, rate.value === null ? '-' : `${fixed(rate.value, 2)} ${rate.unit}`, rate.origin]}))), false));
    }
  }
}

function thinnedNote(mark, noun) {
  return mark.every > 1 ? ` Of ${counted(mark.count, noun)} one in ${grouped(mark.every)} is listed.` : '';
}

function showKept() {
  const box = section('kept', 'Evaluations, checkpoints and commits');
  const {evaluations, checkpoints, commits} = marks;
  const rows = [...evaluations.items.map(([step, loss]) => ({step, what: 'held-out loss', detail: [real(loss), ' nats per token']})),
    ...checkpoints.items.map(([step, folder]) => ({step, what: 'checkpoint', detail: [el('span', {class: 'mono'}, folder)]})),
    ...commits.items.map(step => ({step, what: 'commit on nvme', detail: []}))]
    .sort((a, b) => a.step - b.step);
  if (rows.length === 0) return void box.append(el('p', {class: 'empty'}, 'Nothing was evaluated and no state was kept.'));
  const make = () => table('', [{name: 'step', number: true}, {name: 'what'}, {name: ''}],
    rows.map(row => ({key: row.what, cells: [count(row.step), row.what, row.detail]})));
  box.append(el('p', {class: 'lead'}, `${counted(evaluations.count, 'evaluation')}, ${counted(checkpoints.count, 'checkpoint')}, ${counted(commits.count, 'commit')}.`
    + thinnedNote(evaluations, 'evaluation') + thinnedNote(checkpoints, 'checkpoint') + thinnedNote(commits, 'commit')));
  box.append(rows.length > 12 ? folded(`Table of ${counted(rows.length, 'entry').replace('entrys', 'entries')}`, make) : make());
  if (commits.count > 0) box.append(el('p', {class: 'note'}, 'After a crash a run goes on from its last commit.'));
  if (totals.commits > 0)
    box.append(el('p', {class: 'note'}, `${counted(totals.commits, 'commit')} in the steps: ${bytesText(totals.commit_write_bytes)} of states that were newer in host memory, and ${bytesText(totals.manifest_bytes)} of manifests.`));
}

function showLog() {
  const box = section('log', 'Warnings', '', log.lines.length > 0 ? log.lines.length + log.left_out : null);
  if (log.lines.length === 0) return void box.append(el('p', {class: 'empty'}, 'The run warned of nothing.'));
  box.append(table('', [{name: 'after step', number: true}, {name: ''}, {name: 'what was said'}], log.lines.map(line => ({cells: [
    count(line.step), el('span', {class: `log-level ${line.level}`}, line.level), el('span', {class: 'pre'}, line.text)]}))));
  if (log.left_out > 0) box.append(el('p', {class: 'note'}, `${grouped(log.left_out)} more followed and are not on this page.`));
}
