// The steps of the run as the page's charts have them: points of one step or of several.

const data = JSON.parse(document.getElementById('data').textContent);
const {header: run, totals, series, memory, marks, log, prediction, last_step: lastStep} = data;
for (const named of [...data.links, ...(prediction ? prediction.rates : [])]) named.name = arrowed(named.name);
for (const bound of [totals.resources, prediction]) if (bound) bound.binding_name = arrowed(bound.binding_name);
const pointCount = series.count.length;
const merged = series.steps_per_point > 1;
// A run of one rank has nobody to wait for.
const causes = data.causes.map((cause, c) => ({...cause, sums: series.causes[c], ns: totals.causes[c] + totals.rest.causes[c]}))
  .filter(cause => cause.key !== 'rank_wait' || cause.ns > 0);
const shortestName = name => name.replace('wait for ', 'waiting for ');

const CAUSE_COLOURS = {
  compute: 'var(--c-blue)', device_copy_wait: 'var(--c-sky)', read_wait: 'var(--c-green)', write_wait: 'var(--c-red)',
  update: 'var(--c-orange)', commit: 'var(--c-pink)', rank_wait: 'var(--c-yellow)', overhead: 'var(--c-grey)',
};
const LINK_COLOURS = {
  h2d: 'var(--c-blue)', d2h: 'var(--c-sky)', param_read: 'var(--c-green)', direct_read: 'var(--c-pink)', param_write: 'var(--c-red)',
  record_read: 'var(--c-green)', record_write: 'var(--c-red)', gradient_read: 'var(--c-green)',
  gradient_write: 'var(--c-red)', activation_d2h: 'var(--c-sky)', activation_h2d: 'var(--c-blue)',
  activation_read: 'var(--c-green)', activation_write: 'var(--c-red)',
};
const TIER_COLOURS = ['var(--c-blue)', 'var(--c-orange)', 'var(--c-green)', 'var(--c-pink)', 'var(--c-sky)', 'var(--c-red)', 'var(--c-grey)'];

const firstOf = i => series.first_step + i * series.steps_per_point;
const lastOf = i => firstOf(i) + series.count[i] - 1;
function stepsText(i) {
  return series.count[i] === 1 ? `step ${grouped(firstOf(i))}`
    : `steps ${grouped(firstOf(i))} to ${grouped(lastOf(i))}, mean of ${grouped(series.count[i])}`;
}
// Sums of points as means of one step.
const perStep = column => column.map((sum, i) => sum / series.count[i]);

// What all charts over steps have.
function overSteps(spec) {
  const end = pointCount > 0 ? lastOf(pointCount - 1) : 1;
  return {
    points: pointCount, at: i => (firstOf(i) + lastOf(i)) / 2, edges: i => [firstOf(i) - 0.5, lastOf(i) + 0.5],
    x: {from: pointCount > 0 ? series.first_step - 0.5 : 0.5, to: end + 0.5, name: 'step', whole: true}, height: 180, ...spec,
    tip: i => ({title: stepsText(i), rows: spec.tip(i)}),
  };
}

// The points of a chart as a table, for whoever reads rather than looks.
function pointTable(columns) {
  return folded(`Table of ${counted(pointCount, 'point')}`, () => table('',
    [{name: merged ? 'steps' : 'step'}, ...columns.map(c => ({name: c.name, number: true}))],
    Array.from({length: pointCount}, (_, i) => ({
      cells: [series.count[i] === 1 ? grouped(firstOf(i)) : `${grouped(firstOf(i))}-${grouped(lastOf(i))}`,
        ...columns.map(c => c.cell(i))],
    }))));
}

const noSteps = 'No step was complete when this page was written.';
