// What each tier held at most, and for what, within its budget.

function tierBar(tier) {
  const whole = Math.max(tier.budget_bytes, tier.peak_bytes, tier.planned_bytes, 1);
  const uses = tier.uses.filter(use => use.bytes > 0);
  // After all colours come paler ones.
  const colour = u => (u < TIER_COLOURS.length ? TIER_COLOURS[u]
    : `color-mix(in srgb, ${TIER_COLOURS[u % TIER_COLOURS.length]} 45%, var(--card))`);
  const label = tier.budget_bytes > 0
    ? [bytes(tier.peak_bytes), ' of ', bytes(tier.budget_bytes), `, ${percentText(tier.peak_bytes, tier.budget_bytes)}`]
    : [bytes(tier.peak_bytes), ' on disk'];
  const box = el('div', {class: 'tier', 'data-key': tier.name}, el('div', {class: 'label'}, el('b', {}, tier.name), el('span', {}, label)),
    el('div', {class: 'stack', role: 'img', 'aria-label': `${tier.name}: ${uses.map(use => `${use.purpose} ${bytesText(use.bytes)}`).join(', ')}`},
      uses.map((use, u) => el('i', {title: `${use.purpose}: ${bytesText(use.bytes)}`, style: `width:${100 * use.bytes / whole}%;background:${colour(u)}`}))));
  const list = legend(uses.map((use, u) => ({name: `${use.purpose} ${bytesText(use.bytes)}`, colour: colour(u)})));
  list.style.marginTop = '6px';
  box.append(list);
  return box;
}

function showMemory() {
  const box = section('memory', 'Memory', 'What each tier held at its fullest, against its budget. Budgets are hard: nothing of the run is outside them but the program itself.');
  if (memory.tiers.length === 0) return void box.append(el('p', {class: 'empty'}, 'Nothing was allocated yet when this page was written.'));
  for (const tier of memory.tiers) box.append(tierBar(tier));
  const rows = memory.tiers.map(tier => ({key: tier.name, cells: [tier.name, tier.budget_bytes > 0 ? bytes(tier.budget_bytes) : 'disk',
    bytes(tier.planned_bytes), bytes(tier.peak_bytes), tier.origin]}));
  rows.push({key: 'process', cells: ['whole process, as the system counts it (Pss)', '', '', bytes(memory.process_bytes), '']});
  box.append(el('div', {class: 'gap', id: 'tiers'}, table('', [{name: 'tier'}, {name: 'budget', number: true}, {name: 'planned', number: true},
    {name: 'peak used', number: true}, {name: 'the budget is'}], rows)));
}
