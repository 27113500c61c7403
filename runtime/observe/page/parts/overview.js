// The top of the page: what ran, how it ended, and the figures that come first.

function themeButton() {
  const root = document.documentElement;
  const system = matchMedia('(prefers-color-scheme: dark)');
  let chosen = null;  // null: as the system has it
  const button = el('button', {type: 'button', id: 'theme'});
  const apply = () => {
    const dark = chosen === null ? system.matches : chosen === 'dark';
    root.dataset.theme = dark ? 'dark' : 'light';
    button.textContent = dark ? 'Light' : 'Dark';
    button.title = `Show this page in ${dark ? 'light' : 'dark'} colours`;
  };
  system.addEventListener('change', apply);
  button.addEventListener('click', () => {
    chosen = root.dataset.theme === 'dark' ? 'light' : 'dark';
    apply();
  });
  apply();
  return button;
}

function stateText() {
  const done = run.resumed_at_step + totals.steps;
  const steps = run.planned_steps > 0 ? `${grouped(done)} of ${counted(run.planned_steps, 'step')}` : counted(done, 'step');
  if (data.state === 'starting') return `starting, no step done yet`;
  return `${data.state}, ${steps}`;
}
// At the mean time per step.
function leftText() {
  const left = run.planned_steps - run.resumed_at_step - totals.steps;
  if (data.state !== 'running' || totals.steps === 0 || left <= 0) return null;
  const ns = left * totals.total_ns / totals.steps;
  return ns < 1e9 ? 'less than a second left' : `about ${timeText(Math.round(ns / 1e9) * 1e9)} left`;
}

// --- The name of the run: of where it saves to, else of its first nvme path, else of the model ---

// As a shell has them.
function wordsOf(command) {
  const words = command.match(/(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+/gs) ?? [];
  return words.map(word => word.replace(/'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)/gs,
    (_, single, double, one) => single ?? (double === undefined ? one : double.replace(/\\(.)/gs, '$1'))));
}
function saveFolder() {
  const fact = run.facts.find(([name]) => name === 'command');
  const words = fact ? wordsOf(fact[1]) : [];
  let folder = '';
  words.forEach((word, i) => {
    if (word === '--save') folder = words[i + 1] ?? '';
    if (word.startsWith('--save=')) folder = word.slice('--save='.length);
  });
  return folder;
}
function firstNvmePath() {
  for (const [key, value] of run.configuration) {
    if (!key.endsWith('.nvme_path')) continue;
    try {
      const first = [JSON.parse(value)].flat()[0];
      if (typeof first === 'string') return first;
    } catch {
      // Shown shortened: it has no name to give.
    }
  }
  return '';
}
const lastComponent = path => path.split('/').filter(part => part !== '' && part !== '.' && part !== '..').pop() ?? '';
// The page has this before the trainer is made and describes itself.
const modelText = () => (run.facts.length > 0 && run.facts[0][0] === 'model' ? run.facts[0][1].replace(/: [\d,]+ parameters$/, '') : run.model);
function runName() {
  return lastComponent(saveFolder()) || lastComponent(firstNvmePath()) || lastComponent(modelText().split(': ')[0]) || 'Terrace run';
}

function showHead() {
  const head = document.getElementById('top');
  document.title = `${runName()} - Terrace run`;
  const left = leftText();
  const meta = el('div', {class: 'meta'}, el('span', {class: `pill ${data.state}`, id: 'state'}, stateText()),
    left ? el('span', {id: 'left'}, left) : null, run.parameters > 0 ? el('span', {}, `${grouped(run.parameters)} parameters`) : null,
    run.started_at ? el('span', {}, `started ${momentText(Date.parse(run.started_at) / 1000)}`) : null,
    el('span', {}, `written ${momentText(data.written_at)}`), el('span', {}, `terrace ${run.version}`));
  head.append(el('div', {class: 'bar'}, el('div', {class: 'brand'}, el('b', {}, 'Terrace'), ' run report'), themeButton()),
    el('h1', {}, runName()), el('p', {class: 'shape', id: 'shape'}, modelText()), meta);
  if (data.state_text) head.append(el('p', {class: `message ${data.state}`, id: 'state-text'}, data.state_text));
  if (data.state === 'running' || data.state === 'starting') {
    head.append(el('p', {class: 'message running'},
      'This page is of a run that had not ended when it was written. Load it again for what has happened since; when the run is over and this still stands here, it was ended from outside.'));
  }
}

function tile(name, figure, beside, {id, words, meter} = {}) {
  return el('div', {class: 'tile', id}, el('div', {class: 'name'}, name),
    el('div', {class: `figure ${words ? 'words' : ''}`}, figure),
    meter === undefined ? null : el('div', {class: 'meter'}, el('i', {style: `width:${Math.min(100, meter * 100)}%`})),
    el('div', {class: 'beside'}, beside));
}

function lossTile() {
  const evaluations = marks.evaluations.items;
  const held = evaluations.length > 0 ? evaluations[evaluations.length - 1] : null;
  const beside = held ? ['held-out ', real(held[1]), ` at step ${grouped(held[0])}`]
    : run.unigram_loss > 0 ? ['unigram loss of the data ', real(run.unigram_loss)] : 'no held-out loss';
  return tile('Training loss, last step', real(lastStep.loss), beside, {id: 'tile-loss'});
}

function movedTile() {
  let moved = 0;
  let least = 0;
  data.links.forEach((link, i) => {
    moved += totals.links[i] + totals.rest.links[i];
    least += link.least * totals.steps;
  });
  if (moved === 0) return tile('Bytes over the least possible', '-', 'nothing is moved', {id: 'tile-moved'});
  return tile('Bytes over the least possible', least === 0 ? '-' : exact(moved / least, ratioText(moved, least)),
    [bytes(moved / totals.steps), ' per step'], {id: 'tile-moved'});
}

function tierTile(tier) {
  const budget = tier.budget_bytes;
  return tile(`${tier.name[0].toUpperCase()}${tier.name.slice(1)} memory, peak`, bytes(tier.peak_bytes),
    [`${percentText(tier.peak_bytes, budget)} of the budget of `, bytes(budget)],
    {id: `tile-${tier.name}`, meter: tier.peak_bytes / budget});
}

function showTiles() {
  const tiles = [];
  if (lastStep) {
    const mean = totals.total_ns / totals.steps;
    tiles.push(lossTile(),
      tile('Time per step', time(mean), `${grouped(totals.tokens / (totals.total_ns / 1e9 || 1))} tokens/s`, {id: 'tile-time'}),
      tile('Bound by', totals.resources.binding_name, `busy for ${percentText(bindingNs(), totals.resources.total_ns)} of the time`,
        {id: 'tile-bound', words: true}),
      movedTile());
  }
  for (const tier of memory.tiers) if (tier.budget_bytes > 0) tiles.push(tierTile(tier));
  if (tiles.length > 0) document.getElementById('sections').append(el('div', {class: 'tiles'}, tiles));
}

function bindingNs() {
  const use = totals.resources;
  return {processor: use.processor_ns, h2d: use.h2d_ns, d2h: use.d2h_ns}[use.binding] ?? use.disk_ns;
}
