// The view of all Services: search, filters, sorting, and the table. A Service itself is shown by service.js.

import { STATES, bytes, count, el, fill, icon, link, plural, redraw, say, stateOf } from './dom.js';
import { List, searchField } from './list.js';
import { rates, watchRates } from './rates.js';
import { on, setInView, store } from './store.js';

const RANK = { refused: 0, problem: 1, pending: 2, ok: 3, 'not handled': 4 };
/// Key, title, and what it is sorted by.
const COLUMNS = [
  ['state', 'State', row => RANK[row.state] ?? 5],
  ['name', 'Service', row => row.name],
  ['type', 'Type', row => row.type],
  ['address', 'Address', row => row.addresses[0] ?? ''],
  ['ports', 'Ports', row => parseInt(row.ports[0], 10) || 0],
  ['endpoints', 'Endpoints', row => row.endpoints.used],
  ['rate', 'Traffic', row => -(rates.of(row.name)?.bytes ?? -1)],
  ['problem', 'Problem', row => row.problem || '~'],
];
const DEFAULTS = { q: '', ns: '', state: '', sort: 'state', desc: false };

let search, chips, namespace, summary, head, list, empty;
let wanted = { ...DEFAULTS };
let active = '';
let shown = false;
let stopRates = () => {};

export function start(section) {
  const [input, field] = searchField('Search Services', 'Search name, address, port, problem', q => want({ q }));
  search = input;
  namespace = el('select', { id: 'namespace', 'aria-label': 'Namespace', onchange: () => want({ ns: namespace.value }) });
  chips = el('div.chips', { role: 'group', 'aria-label': 'State' }, ['', ...Object.keys(STATES)].map(state => {
    const look = STATES[state] ?? { level: '', word: 'All' };
    return el('button', { class: `chip ${look.level}`, value: state, onclick: () => want({ state }) }, look.icon && icon(look.icon), look.word, el('b'));
  }));
  summary = el('p.dim.summary', { role: 'status' });
  head = el('div.cells.head', { role: 'row' }, COLUMNS.map(([key, title]) => el(`span.c-${key}`, { role: 'columnheader' },
    el('button', { 'data-sort': key, onclick: () => want({ sort: key, desc: wanted.sort === key && !wanted.desc }) }, title))));
  list = new List({ id: 'services', role: 'grid', label: 'Services', tools: [field, chips, namespace, summary], head, make, show: showRow, key: row => row.name });
  empty = el('div.empty', { hidden: true });
  fill(section, el('h1.unseen', 'Services'), list.element, empty);
  list.body.addEventListener('click', event => open(event.target.closest('[role=row]'), event));
  setInView(() => (shown ? list.inView().map(row => row.name) : []));
  on('services', () => shown && draw());
  on('status', () => shown && drawEmpty());
}

export function show(parameters) {
  shown = true;
  wanted = { ...DEFAULTS, ...Object.fromEntries(parameters), desc: parameters.get('desc') === '1' };
  if (search.value !== wanted.q) search.value = wanted.q;
  stopRates();
  stopRates = watchRates(null, () => {
    if (wanted.sort === 'rate') draw();
    else list.refresh();
  });
  draw();
}

export function hide() {
  shown = false;
  stopRates();
}

export function key(event) {
  const moves = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  const typing = event.target === search;
  const step = moves[event.key] ?? (typing ? undefined : { j: 1, k: -1 }[event.key]);
  if (step !== undefined && !(typing && ['Home', 'End'].includes(event.key)) && event.target !== namespace) {
    move(step);
    return true;
  }
  if (event.key === '/' && !typing) {
    search.focus();
    search.select();
    return true;
  }
  if (event.key === 'Enter' && (typing || event.target === list.grid || event.target === document.body)) {
    const name = active || list.items[0]?.name;
    if (name) location.hash = link(name);
    return true;
  }
  if (event.key !== 'Escape') return false;
  if (search.value || wanted.state || wanted.ns) {
    search.value = '';
    want({ q: '', state: '', ns: '' });
  } else search.blur();
  return true;
}

/// The way back to the list as it was left.
export function listHash() {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(wanted)) {
    if (value !== DEFAULTS[name]) parameters.set(name, value === true ? '1' : value);
  }
  const text = parameters.toString();
  return `#/services${text ? `?${text}` : ''}`;
}

function want(change) {
  wanted = { ...wanted, ...change };
  history.replaceState(null, '', listHash());
  if ('q' in change || 'state' in change || 'ns' in change) {
    active = '';
    scrollTo(0, Math.min(scrollY, list.element.offsetTop));
  }
  draw();
}

/// What the filters leave, and how many Services each state has under the other filters.
function select() {
  const words = wanted.q.toLowerCase().split(/\s+/).filter(Boolean);
  const numbers = Object.fromEntries(Object.keys(STATES).map(state => [state, 0]));
  const items = [];
  for (const row of store.services.values()) {
    if (wanted.ns && row.namespace !== wanted.ns) continue;
    if (!words.every(word => row.words.includes(word))) continue;
    numbers[row.state] = (numbers[row.state] ?? 0) + 1;
    if (!wanted.state || row.state === wanted.state) items.push(row);
  }
  const [, , by] = COLUMNS.find(([key]) => key === wanted.sort) ?? COLUMNS[0];
  const sign = wanted.desc ? -1 : 1;
  const keyed = items.map(row => ({ row, by: by(row) }));
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  keyed.sort((a, b) => sign * compare(a.by, b.by) || compare(a.row.name, b.row.name));
  return { items: keyed.map(it => it.row), numbers };
}

function draw() {
  const { items, numbers } = select();
  drawChips(numbers);
  drawNamespaces();
  head.querySelectorAll('button').forEach(button => {
    const sorted = button.dataset.sort === wanted.sort;
    button.parentElement.setAttribute('aria-sort', sorted ? (wanted.desc ? 'descending' : 'ascending') : 'none');
  });
  list.element.classList.toggle('counted', Boolean(store.status?.trafficCounted));
  const all = store.services.size;
  const { ended, total } = store.loading;
  list.element.classList.toggle('loading', !ended);
  say(summary, ended ? (items.length === all ? plural(all, 'Service') : `${count(items.length)} of ${count(all)}`)
    : `Loading ${count(all)}${total ? ` of ${count(total)}` : ''}`);
  list.set(items);
  drawEmpty(items.length);
}

function drawChips(numbers) {
  const all = Object.values(numbers).reduce((sum, it) => sum + it, 0);
  for (const chip of chips.children) {
    const number = chip.value ? numbers[chip.value] : all;
    chip.ariaPressed = chip.value === wanted.state;
    chip.hidden = !number && chip.value && chip.value !== wanted.state;
    say(chip.lastChild, count(number));
  }
}

function drawNamespaces() {
  const names = [...new Set([...store.services.values()].map(row => row.namespace))].sort();
  if (wanted.ns && !names.includes(wanted.ns)) names.unshift(wanted.ns);
  const text = names.join(' ');
  if (namespace.dataset.now !== text) {
    namespace.dataset.now = text;
    fill(namespace, el('option', { value: '' }, 'All namespaces'), names.map(name => el('option', { value: name }, name)));
  }
  namespace.value = wanted.ns;
}

function drawEmpty(number = list.items.length) {
  empty.hidden = number > 0 || !store.loading.ended;
  if (empty.hidden) return;
  if (store.services.size) {
    fill(empty, el('h2', 'No Service matches'), el('p', 'Names, addresses, ports, node ports, types and problems are searched; all words must be found.'),
      el('button', { onclick: () => key({ key: 'Escape', target: search }) }, 'Clear the filters'));
    return;
  }
  const source = store.status?.source;
  fill(empty, el('h2', 'This agent knows no Service yet'),
    el('p', source?.alive ? 'Its source of objects answers: the cluster has no Service, or none that this node may see.'
      : 'Its source of objects does not answer. The view Agent has the state of each watch.'),
    el('p', el('a', { href: '#/agent' }, 'State of the watch')));
}

/// The parts of a row are made once and written again and again: scrolling must stay smooth.
function make() {
  const cell = (name, ...content) => el(`span.c-${name}`, { role: 'gridcell' }, ...content);
  const text = () => document.createTextNode('');
  const dim = () => el('span.dim', text());
  const [namespace, short, address, addresses, ports, morePorts, endpoints] = [dim(), text(), text(), dim(), text(), dim(), text()];
  const [sign, word, anchor] = [icon('minus'), el('span.unseen'), el('a', { tabindex: '-1' }, namespace, short)];
  const meter = el('i', { 'aria-hidden': 'true' }, el('i'));
  const row = el('div', { role: 'row', class: 'cells row' }, cell('state', sign, word), cell('name', anchor), cell('type'),
    cell('address', address, addresses), cell('ports', ports, morePorts), cell('endpoints', meter, endpoints), cell('rate'), cell('problem'));
  row.parts = { sign, word, anchor, namespace, short, address, addresses, ports, morePorts, meter, endpoints };
  return row;
}

function showRow(element, row, index) {
  const [state, , type, address, ports, endpoints, rate, problem] = element.children;
  const { parts } = element;
  const look = stateOf(row.state);
  element.id = `row-${index}`;
  element.dataset.name = row.name;
  element.setAttribute('aria-rowindex', index + 2);
  element.setAttribute('aria-selected', String(row.name === active));
  element.classList.toggle('changed', Date.now() - (row.changed ?? 0) < 1500);
  state.className = `c-state ${look.level}`;
  state.title = look.word;
  redraw(parts.sign, look.icon);
  say(parts.word, look.word);
  parts.anchor.href = link(row.name);
  say(parts.namespace, `${row.namespace}/`);
  parts.short.data = row.short;
  say(type, row.type);
  address.title = row.addresses.join(', ');
  parts.address.data = row.addresses[0] ?? '–';
  say(parts.addresses, more((row.addressCount ?? row.addresses.length) - 1));
  ports.title = [...row.ports, ...row.nodePorts.map(it => `node ${it}`)].join(', ');
  parts.ports.data = row.ports[0] ?? '–';
  say(parts.morePorts, more((row.portCount ?? row.ports.length) + row.nodePorts.length - 1));
  const { used, total } = row.endpoints;
  parts.meter.className = `meter ${used === 0 ? 'none' : used < total ? 'some' : 'all'}`;
  parts.meter.hidden = row.state === 'not handled';
  parts.meter.firstChild.style.width = `${total ? Math.round((used / total) * 100) : 0}%`;
  parts.endpoints.data = `${count(used)}/${count(total)}`;
  endpoints.title = `${used} of ${total} endpoints are used`;
  const now = rates.of(row.name);
  say(rate, now ? `${bytes(now.bytes)}/s` : '');
  problem.title = row.problem;
  say(problem, row.problem);
}

const more = number => (number > 0 ? ` +${number}` : '');

function move(step) {
  const { items } = list;
  if (!items.length) return;
  const at = items.findIndex(row => row.name === active);
  const index = Math.max(0, Math.min(items.length - 1, at < 0 ? (step === Infinity ? items.length : 0) : at + step));
  active = items[index].name;
  list.reveal(index);
  list.refresh();
  list.grid.setAttribute('aria-activedescendant', `row-${index}`);
  list.grid.focus({ preventScroll: true });
}

function open(row, event) {
  if (!row || event.target.closest('a') || getSelection().toString()) return;
  active = row.dataset.name;
  location.hash = link(active);
}
