// Makes elements and formats values. Text goes into text nodes only: nothing here reads HTML from a string.

const SVG = 'http://www.w3.org/2000/svg';

/// An element: `el('a.class', { href: '#', onclick: f }, 'text', child, …)`. Attributes and children that are null or false
/// are left out.
export function el(tag, ...rest) {
  const [name, ...classes] = tag.split('.');
  const element = dress(document.createElement(name), classes, rest);
  if (name === 'button' && !element.hasAttribute('type')) element.type = 'button';
  return element;
}

export function svg(tag, ...rest) {
  const [name, ...classes] = tag.split('.');
  return dress(document.createElementNS(SVG, name), classes, rest);
}

function dress(element, classes, [first, ...children]) {
  const isPlain = first && Object.getPrototypeOf(first) === Object.prototype;
  element.classList.add(...classes);
  for (const [name, value] of Object.entries(isPlain ? first : {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  add(element, isPlain ? children : [first, ...children]);
  return element;
}

function add(element, children) {
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

/// Replaces the content of an element.
export function fill(element, ...children) {
  element.textContent = '';
  add(element, children);
  return element;
}

/// Sets the text only if it differs, so that a selection survives.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/// Sets an attribute only if it differs: also the same value would cost the browser time.
export function put(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

const ICONS = {
  check: 'M3 8.5l3.2 3.2L13 5',
  alert: 'M8 2 1.5 13.5h13zM8 6.5v3.2M8 11.6v.4',
  cross: 'M4 4l8 8M12 4l-8 8',
  clock: 'M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 5v3.2l2.2 1.5',
  minus: 'M4 8h8',
  right: 'M3 8h9M8.5 4.5 12 8l-3.5 3.5',
  back: 'M13 8H4M7.5 4.5 4 8l3.5 3.5',
  sun: 'M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1',
  moon: 'M13.5 9.6A5.8 5.8 0 0 1 6.4 2.5a5.8 5.8 0 1 0 7.1 7.1z',
  auto: 'M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 2v12M8 4.5h3.5M8 7h5M8 9.5h5M8 12h3',
  copy: 'M6 6V3h7v7h-3M3 6h7v7H3z',
  search: 'M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.3 10.3 14 14',
  pause: 'M5.5 3.5v9M10.5 3.5v9',
  play: 'M5 3.5v9l7-4.5z',
};

/// Makes another icon of one.
export function redraw(icon, name) {
  put(icon.firstChild, 'd', ICONS[name]);
}

export function icon(name) {
  return svg('svg', { class: `icon ${name}`, viewBox: '0 0 16 16', 'aria-hidden': 'true' }, svg('path', { d: ICONS[name] }));
}

/// How the states of a Service look: level for the colour, icon, and a word for people.
export const STATES = {
  problem: { level: 'bad', icon: 'alert', word: 'Problem' },
  refused: { level: 'bad', icon: 'cross', word: 'Refused' },
  pending: { level: 'warn', icon: 'clock', word: 'Pending' },
  ok: { level: 'good', icon: 'check', word: 'OK' },
  'not handled': { level: 'idle', icon: 'minus', word: 'Not handled' },
};

export const stateOf = name => STATES[name] || { level: 'idle', icon: 'minus', word: String(name) };

export function badge(level, name, text) {
  return el('span', { class: `badge ${level}` }, icon(name), el('span', text));
}

/// Something to copy with a click, such as a command line or an address.
export function copyable(text) {
  const copy = () => navigator.clipboard.writeText(text).then(() => button.replaceChildren(icon('check')), () => {});
  const button = el('button.copy', { title: 'Copy', 'aria-label': `Copy ${text}`, hidden: !navigator.clipboard, onclick: copy }, icon('copy'));
  return el('span.copyable', el('code', text), button);
}

/// The words of a message; what stands between backticks is code.
export function prose(text) {
  return String(text).split('`').map((part, index) => (index % 2 ? el('code', part) : part));
}

const digits = new Intl.NumberFormat('en');

export const count = number => (number === null || number === undefined ? '–' : digits.format(number));

export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? '' : 's'}`;

const tenths = value => value.toFixed(1).replace('.0', '');

export function seconds(value) {
  if (value === null || value === undefined) return '–';
  if (value < 0.001) return `${Math.max(0, Math.round(value * 1e6))} µs`;
  if (value < 0.01) return `${tenths(value * 1e3)} ms`;
  if (value < 1) return `${Math.round(value * 1e3)} ms`;
  if (value < 10) return `${tenths(value)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} d`;
}

export function bytes(value) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let at = 0;
  while (value >= 999.5 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

export const perSecond = value => (value >= 100 || value === 0 ? count(Math.round(value)) : value.toFixed(1));

const times = new Intl.DateTimeFormat('en-GB', { timeStyle: 'medium' });

export const clock = date => times.format(date);

export const moment = date => `${date.toLocaleDateString('en-CA')} ${clock(date)}`;

/// A time that grows older by itself: page.js writes these again each second.
export function ago(text) {
  return el('time.ago', { datetime: text, title: moment(new Date(text)) }, '…');
}

export const link = name => `#/service/${name.split('/').map(encodeURIComponent).join('/')}`;
