// The curves of training: loss, learning rate, norm of the gradients.

const eventColour = {evaluation: 'var(--c-red)', commit: 'var(--c-green)', checkpoint: 'var(--c-orange)', skipped: 'var(--c-pink)'};

function valueRows(range, name, i, colour) {
  const rows = [{colour, form: 'line', name: merged ? `${name}, mean` : name, text: realText(range.mean[i])}];
  if (merged) rows.push({name: 'least', text: realText(range.least[i])}, {name: 'most', text: realText(range.most[i])});
  return rows;
}
function rangeLayers(range, colour) {
  return merged ? [band(range.least, range.most, colour), line(range.mean, colour)] : [line(range.mean, colour)];
}
const rangeColumns = range => (merged ? [range.mean, range.least, range.most] : [range.mean]);

// Evaluations of the point, for its tip.
function evaluationsOf(i) {
  return marks.evaluations.items.filter(([step]) => step >= firstOf(i) && step <= lastOf(i));
}
function skippedRow(i) {
  return series.skipped[i] > 0 ? [{colour: eventColour.skipped, name: 'skipped, fp16 overflowed',
    text: series.count[i] === 1 ? 'yes' : grouped(series.skipped[i])}] : [];
}

const MOST_DOTS = 60;

// Exponential means, of which each forgets about a fortieth of the run; the first ones, where losses fall fast, less.
function smoothed(values) {
  const weight = Math.min(1, 40 / pointCount);
  let mean = null;
  return Array.from(values, (value, i) => {
    if (isPoint(value)) mean = isPoint(mean) ? mean + Math.max(weight, 0.5 - 4 * i / pointCount) * (value - mean) : value;
    return mean;
  });
}

const LEAST_SMOOTHED = 100;  // points

function lossChart(box) {
  const held = marks.evaluations.items.filter(([, loss]) => isPoint(loss));
  const y = extent([...rangeColumns(series.loss), held.map(([, loss]) => loss)], {name: 'nats per token'});
  const isSmoothed = pointCount >= LEAST_SMOOTHED;
  const pale = 'color-mix(in srgb, var(--c-blue) 40%, transparent)';
  let layers = rangeLayers(series.loss, isSmoothed ? pale : 'var(--c-blue)');
  const entries = [{name: 'training loss', colour: isSmoothed ? pale : 'var(--c-blue)', form: 'line'}];
  if (isSmoothed) {
    layers.push(line(smoothed(series.loss.mean), 'var(--c-blue)'));
    entries.push({name: 'smoothed', colour: 'var(--c-blue)', form: 'line'});
  }
  if (merged) entries.push({name: 'least to most of the steps of a point', colour: 'color-mix(in srgb, var(--c-blue) 25%, transparent)'});
  if (held.length > 0) {
    if (held.length > 1) layers.push(curve(held, eventColour.evaluation));
    if (held.length <= MOST_DOTS) layers.push(held.map(([step, loss]) => dot(step, loss, eventColour.evaluation)));
    entries.push({name: 'held-out loss', colour: eventColour.evaluation, form: held.length > 1 ? 'line' : 'dot'});
  }
  if (run.unigram_loss > y.from && run.unigram_loss < y.to) {
    layers.unshift(level(run.unigram_loss, 'var(--faint)', ''));
    entries.push({name: 'unigram loss of the data', colour: 'var(--faint)', form: 'dashed'});
  }
  layers = layers.flat();
  let row = 0;
  const onIt = (places, name, colour) => {
    if (places.length === 0) return;
    layers.push(onAxis(places, colour, row++));
    entries.push({name, colour, form: 'triangle'});
  };
  onIt(marks.commits.items, 'commit on nvme', eventColour.commit);
  onIt(marks.checkpoints.items.map(([step]) => step), 'checkpoint', eventColour.checkpoint);
  onIt(Array.from({length: pointCount}, (_, i) => i).filter(i => series.skipped[i] > 0).map(i => (firstOf(i) + lastOf(i)) / 2),
    'skipped: fp16 overflowed', eventColour.skipped);
  box.append(legend(entries));
  chart(box, overSteps({label: 'Loss over steps', height: 270, y, layers, tip: i => [
    ...valueRows(series.loss, 'training loss', i, 'var(--c-blue)'),
    ...evaluationsOf(i).map(([step, loss]) => ({colour: eventColour.evaluation, form: 'dot', name: `held-out, step ${grouped(step)}`, text: realText(loss)})),
    ...skippedRow(i)]}));
}

function showTraining() {
  const box = section('loss', 'Training', 'Loss of each step before its update, in nats per token, with the learning rate of the update and the norm of the gradients before clipping.');
  if (pointCount === 0) return void box.append(el('p', {class: 'empty'}, noSteps));
  lossChart(box);
  const scaled = series.loss_scale.some(scale => scale !== 1);
  const pair = el('div', {class: `columns ${scaled ? 'three' : ''}`});
  box.append(pair);
  const rate = el('div', {}, el('h3', {}, 'Learning rate'));
  const norm = el('div', {}, el('h3', {}, 'Norm of the gradients'));
  pair.append(rate, norm);
  chart(rate, overSteps({label: 'Learning rate over steps', y: extent([series.learning_rate], {zero: true}),
    layers: [line(series.learning_rate, 'var(--c-green)')],
    tip: i => [{colour: 'var(--c-green)', form: 'line', name: 'learning rate', text: String(series.learning_rate[i])}]}));
  chart(norm, overSteps({label: 'Norm of the gradients over steps', y: extent(rangeColumns(series.gradient_norm), {log: true}),
    layers: rangeLayers(series.gradient_norm, 'var(--c-red)'), tip: i => [...valueRows(series.gradient_norm, 'norm', i, 'var(--c-red)'), ...skippedRow(i)]}));
  if (scaled) {
    const scale = el('div', {}, el('h3', {}, 'Loss scale'));
    pair.append(scale);
    chart(scale, overSteps({label: 'Loss scale over steps', y: extent([series.loss_scale], {zero: true, log: true}),
      layers: [line(series.loss_scale, 'var(--c-pink)')],
      tip: i => [{colour: 'var(--c-pink)', form: 'line', name: 'loss scale', text: grouped(series.loss_scale[i])}]}));
  }
  box.append(pointTable([
    {name: merged ? 'mean loss' : 'loss', cell: i => real(series.loss.mean[i])},
    {name: 'learning rate', cell: i => real(series.learning_rate[i], 6)},
    {name: merged ? 'mean norm' : 'norm', cell: i => real(series.gradient_norm.mean[i])},
    {name: 'skipped', cell: i => count(series.skipped[i])}]));
}
