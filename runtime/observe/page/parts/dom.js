// Elements. Text goes in as text: nothing of the data is ever read as markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}
function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}
function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}
function clear(element) {
  while (element.firstChild) element.firstChild.remove();
}

// A figure that shows rounded, with the exact one for tooltips and programs.
function exact(value, text, unit = '') {
  const whole = typeof value === 'number' && Number.isInteger(value);
  return el('data', {value: String(value), title: `${whole ? grouped(value) : value}${unit ? ` ${unit}` : ''}`}, text);
}
const bytes = value => exact(value, bytesText(value), 'bytes');
const time = value => exact(value, timeText(value), 'ns');
const count = value => exact(value, grouped(value));
const real = (value, digits) => (value === null ? el('span', {}, 'not finite') : exact(value, realText(value, digits)));

// A name or path that may go on in the next line behind its dots, underscores and slashes.
const broken = text => text.split(/(?<=[._/,])/).flatMap((part, i) => (i > 0 ? [el('wbr'), part] : [part]));

function swatch(colour, form = '') {
  return el('span', {class: `swatch ${form}`, style: `background:${colour};border-color:${colour};color:${colour}`});
}
// Entries are {name, colour, form}.
function legend(entries) {
  return el('ul', {class: 'legend'}, entries.map(e => el('li', {}, swatch(e.colour, e.form), e.name)));
}

// Columns are {name, number, bar}; rows are {key, total, cells, remark}, the first cell a heading, and the remark a line
// of its own below the row.
function table(caption, columns, rows) {
  const style = column => (column.number ? 'number' : column.bar ? 'bar' : null);
  const head = el('tr', {}, columns.map(c => el('th', {scope: 'col', class: style(c)}, c.name)));
  const body = rows.map(row => [el('tr', {'data-key': row.key, class: row.total ? 'total' : null},
    row.cells.map((cell, i) => el(i === 0 ? 'th' : 'td',
      {scope: i === 0 ? 'row' : null, class: style(columns[i])}, cell))),
  row.remark ? el('tr', {class: 'remark'}, el('td', {colspan: columns.length}, row.remark)) : null]);
  return el('div', {class: 'scroll'},
    el('table', {}, caption ? el('caption', {}, caption) : null, el('thead', {}, head), el('tbody', {}, body)));
}

// What `make` returns is made when it is first looked at.
function folded(title, make, tall = true) {
  const box = el('details', {}, el('summary', {}, title));
  box.addEventListener('toggle', () => {
    if (box.open && box.childElementCount === 1) box.append(tall ? el('div', {class: 'tall', tabindex: 0}, make()) : make());
  });
  return box;
}

// A bar as long as a share, in the colour of its series.
function shareBar(share, colour) {
  if (!(share > 0)) return '';
  return el('span', {class: 'share', style: `width:${Math.max(0, Math.min(100, share * 100))}%;background:${colour}`});
}

// --- Sections ---

const contents = [];
// Adds an empty one and its line in the contents; `badge` stands behind that.
function section(id, title, lead, badge) {
  const box = el('section', {id, 'aria-labelledby': `${id}-title`}, el('h2', {id: `${id}-title`}, title),
    lead ? el('p', {class: 'lead'}, lead) : null);
  document.getElementById('sections').append(box);
  contents.push({id, title, badge});
  return box;
}
function addContents() {
  const row = el('div', {class: 'row'}, contents.map(c => el('a', {href: `#${c.id}`}, c.title,
    c.badge ? el('span', {class: 'count'}, ` ${c.badge}`) : null)));
  document.getElementById('contents').append(row);
}

// --- The tip that follows the pointer ---

const tip = document.getElementById('tip');
function showTip(pageX, pageY, title, rows) {
  clear(tip);
  tip.append(el('b', {}, title));
  for (const row of rows) {
    tip.append(el('div', {class: 'row'}, row.colour ? swatch(row.colour, row.form) : el('span'), el('span', {}, row.name),
      el('span', {}, row.text)));
  }
  tip.hidden = false;
  const width = tip.offsetWidth;
  const right = window.scrollX + document.documentElement.clientWidth;
  const left = pageX + 16 + width > right ? pageX - 16 - width : pageX + 16;
  tip.style.left = `${Math.max(window.scrollX + 4, left)}px`;
  tip.style.top = `${pageY + 14}px`;
}
function hideTip() {
  tip.hidden = true;
}
