// Figures as the program writes them elsewhere (base/units.cpp), and ticks for axes of them.

// toFixed, but a half goes to the even digit, as it does in C++.
function fixed(value, digits) {
  const scale = 10 ** digits;
  const scaled = value * scale;
  const below = Math.floor(scaled);
  if (scaled - below === 0.5 && below % 2 === 0) return (below / scale).toFixed(digits);
  return value.toFixed(digits);
}

function grouped(number) {
  return String(Math.round(number)).replace(/\B(?=(\d{3})+$)/g, ',');
}

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
function bytesText(bytes) {
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit + 1 < BYTE_UNITS.length) {
    value /= 1024;
    ++unit;
  }
  return unit === 0 ? `${Math.round(bytes)} B` : `${fixed(value, value < 10 ? 2 : 1)} ${BYTE_UNITS[unit]}`;
}

const three = value => String(Number(value.toPrecision(3)));
function timeText(ns) {
  const whole = Math.round(ns);
  if (whole < 1e3) return `${whole} ns`;
  if (whole < 1e6) return `${three(whole / 1e3)} us`;
  if (whole < 1e9) return `${three(whole / 1e6)} ms`;
  if (whole < 100e9) return `${three(whole / 1e9)} s`;
  const seconds = Math.round(whole / 1e9);
  const pad = number => String(number).padStart(2, '0');
  if (seconds >= 86400) return `${grouped(Math.floor(seconds / 86400))} d ${pad(Math.floor(seconds / 3600) % 24)} h`;
  if (seconds >= 3600) return `${grouped(Math.floor(seconds / 3600))} h ${pad(Math.floor(seconds / 60) % 60)} min`;
  return `${Math.floor(seconds / 60)} min ${pad(seconds % 60)} s`;
}

// Of values of which only the order is known: losses, norms, rates.
function realText(value, digits = 4) {
  if (value === null || value === undefined) return 'not finite';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace('e+', 'e');
  return fixed(value, digits);
}

function percentText(part, whole) {
  return whole > 0 ? `${fixed(100 * part / whole, 1)} %` : '-';
}
function ratioText(part, whole) {
  return whole > 0 ? fixed(part / whole, 3) : '-';
}
function counted(number, noun) {
  return `${grouped(number)} ${noun}${number === 1 ? '' : 's'}`;
}
function momentText(seconds) {
  return `${new Date(seconds * 1000).toISOString().slice(0, 19).replace('T', ' ')} UTC`;
}

// "host -> device" with an arrow that stays beside the word before it.
const arrowed = text => text.replace(/ -> /g, '\u00a0\u2192 ');

// --- Axes ---

// 1, 2 or 5 times a power of ten, about `count` of them from `from` to `to`.
function niceStep(range, count) {
  const rough = range / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const digit = rough / power;
  return power * (digit > 7 ? 10 : digit > 3.2 ? 5 : digit > 1.4 ? 2 : 1);
}
function linearTicks(from, to, count) {
  if (!(to > from)) return [from];
  const step = niceStep(to - from, count);
  const ticks = [];
  for (let n = Math.ceil(from / step - 1e-9); n * step <= to + step * 1e-9; ++n) ticks.push(n * step);
  return ticks;
}
function decadeTicks(from, to) {
  const ticks = [];
  for (let e = Math.floor(Math.log10(from)); 10 ** e <= to * 1.0001; ++e) {
    for (const digit of [1, 2, 5]) {
      const tick = digit * 10 ** e;
      if (tick >= from * 0.9999 && tick <= to * 1.0001) ticks.push(tick);
    }
  }
  return ticks.length > 8 ? ticks.filter(tick => Math.abs(Math.log10(tick) % 1) < 1e-9) : ticks;
}
// As many decimals as tell the ticks apart.
function tickText(value, step) {
  const size = Math.abs(value);
  if (size < step * 1e-6) return '0';
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(1).replace('e+', 'e').replace('.0e', 'e');
  return value.toFixed(Math.max(0, Math.min(8, -Math.floor(Math.log10(step) + 1e-9))));
}

// In what an axis up to `most` is labelled.
function byteScale(most) {
  let unit = 0;
  let factor = 1;
  while (most / factor >= 1024 && unit + 1 < BYTE_UNITS.length) {
    factor *= 1024;
    ++unit;
  }
  return {factor, name: BYTE_UNITS[unit]};
}
function timeScale(most) {
  if (most < 1e3) return {factor: 1, name: 'ns'};
  if (most < 1e6) return {factor: 1e3, name: 'us'};
  if (most < 1e9) return {factor: 1e6, name: 'ms'};
  return {factor: 1e9, name: 's'};
}
const PLAIN_SCALE = {factor: 1, name: ''};
