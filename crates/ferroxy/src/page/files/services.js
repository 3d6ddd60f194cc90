// The view of all Services: search, filters, sorting, and the table. A Service itself is shown by service.js.

import { STATES, bytes, count, el, fill, icon, link, plural, put, redraw, say, stateOf } from './dom.js';
import { List, searchField } from './list.js';
import { rates, watchRates } from './rates.js';
import { on, setInView, store } from './store.js';

const RANK = { refused: 0, problem: 1, pending: 2, ok: 3, 'not handled': 4 };
/// Key, title, what it is sorted by, and the words for that where the head has no room.
const COLUMNS = [
  ['state', 'State', row => RANK[row.state] ?? 5, 'By state'],
  ['name', 'Service', row => row.name, 'By name'],
  ['type', 'Type', row => row.type, 'By type'],
  ['address', 'Address', row => row.addresses[0] ?? '', 'By address'],
  ['ports', 'Ports', row => parseInt(row.ports[0], 10) || 0, 'By port'],
  ['endpoints', 'Endpoints', row => row.endpoints.used, 'By endpoints'],
  ['rate', 'Traffic', row => -(rates.of(row.name)?.bytes ?? -1), 'By traffic'],
  ['problem', 'Problem', row => row.problem || '~', 'By problem'],
];
const DEFAULTS = { q: '', ns: '', state: '', sort: 'state', desc: false };

let search, chips, namespace, sort, direction, summary, head, list, empty;
let wanted = { ...DEFAULTS };
let active = '';
/// All Services in the order wanted; null after a change of either. What is typed only leaves some of them out.
let ordered = null;
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
  sort = el('select', { id: 'sort', class: 'sort', 'aria-label': 'Sort', onchange: () => want({ sort: sort.value, desc: false }) },
    COLUMNS.map(([value, , , words]) => el('option', { value }, words)));
  direction = el('button.sort', { id: 'direction', onclick: () => want({ desc: !wanted.desc }) });
  summary = el('p.dim.summary', { role: 'status' });
  head = el('div.cells.head', { role: 'row' }, COLUMNS.map(([key, title]) => el(`span.c-${key}`, { role: 'columnheader' },
    el('button', { 'data-sort': key, onclick: () => want({ sort: key, desc: wanted.sort === key && !wanted.desc }) }, title))));
  list = new List({ id: 'services', role: 'grid', label: 'Services', tools: [field, chips, namespace, sort, direction, summary], head, make, show: showRow,
    key: row => row.name, isTall: row => row.problem !== '' });
  empty = el('div.empty', { hidden: true });
  fill(section, el('h1.unseen', 'Services'), list.element, empty);
  list.body.addEventListener('click', event => open(event.target.closest('[role=row]'), event));
  setInView(() => (shown ? list.inView().map(row => row.name) : []));
  on('services', () => {
    ordered = null;
    if (shown) draw();
  });
  on('status', () => shown && drawEmpty());
}

export function show(parameters) {
  shown = true;
  wanted = { ...DEFAULTS, ...Object.fromEntries(parameters), desc: parameters.get('desc') === '1' };
  ordered = null;
  if (search.value !== wanted.q) search.value = wanted.q;
  stopRates();
  stopRates = watchRates(null, () => {
    if (wanted.sort === 'rate') {
      ordered = null;
      draw();
    } else list.refresh();
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
  if (step !== undefined && !(typing && ['Home', 'End'].includes(event.key)) && event.target.tagName !== 'SELECT') {
    move(step);
    return true;
  }
  if (event.key === '/' && !typing) {
    search.focus();
    search.select();
    return true;
  }
  if (event.key === 'Enter' && (typing || !event.target.closest('a, button, select'))) {
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
  if ('sort' in change || 'desc' in change) ordered = null;
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
  if (!ordered) order();
  for (const row of ordered) {
    if (wanted.ns && row.namespace !== wanted.ns) continue;
    if (!words.every(word => row.words.includes(word))) continue;
    numbers[row.state] = (numbers[row.state] ?? 0) + 1;
    if (!wanted.state || row.state === wanted.state) items.push(row);
  }
  return { items, numbers };
}

function order() {
  const [, , by] = COLUMNS.find(([key]) => key === wanted.sort) ?? COLUMNS[0];
  const sign = wanted.desc ? -1 : 1;
  const keyed = [...store.services.values()].map(row => ({ row, by: by(row) }));
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  keyed.sort((a, b) => sign * compare(a.by, b.by) || compare(a.row.name, b.row.name));
  ordered = keyed.map(it => it.row);
  drawNamespaces();
}

function draw() {
  const { items, numbers } = select();
  drawChips(numbers);
  namespace.value = wanted.ns;
  drawSort();
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

/// In the head of the table, and for a phone, which has no room for a head.
function drawSort() {
  const way = wanted.desc ? 'descending' : 'ascending';
  head.querySelectorAll('button').forEach(button => {
    button.parentElement.setAttribute('aria-sort', button.dataset.sort === wanted.sort ? way : 'none');
  });
  const counted = Boolean(store.status?.trafficCounted);
  list.element.classList.toggle('counted', counted);
  list.element.dataset.by = wanted.sort;
  sort.querySelector('[value=rate]').hidden = !counted;
  sort.value = wanted.sort;
  say(direction, wanted.desc ? '↓' : '↑');
  direction.setAttribute('aria-label', `Sorted ${way}: change`);
  direction.title = direction.ariaLabel;
}

function drawNamespaces() {
  const names = [...new Set([...store.services.values()].map(row => row.namespace))].sort();
  if (wanted.ns && !names.includes(wanted.ns)) names.unshift(wanted.ns);
  const text = names.join(' ');
  if (namespace.dataset.now !== text) {
    namespace.dataset.now = text;
    fill(namespace, el('option', { value: '' }, 'All namespaces'), names.map(name => el('option', { value: name }, name)));
  }
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
  put(element, 'id', `row-${index}`);
  put(element, 'data-name', row.name);
  put(element, 'aria-rowindex', String(index + 2));
  put(element, 'aria-selected', String(row.name === active));
  element.classList.toggle('changed', Date.now() - (row.changed ?? 0) < 1500);
  put(state, 'class', `c-state ${look.level}`);
  put(state, 'title', look.word);
  redraw(parts.sign, look.icon);
  say(parts.word, look.word);
  put(parts.anchor, 'href', link(row.name));
  say(parts.namespace, `${row.namespace}/`);
  write(parts.short, row.short);
  say(type, row.type);
  put(address, 'title', row.addresses.join(', '));
  write(parts.address, row.addresses[0] ?? '–');
  say(parts.addresses, more((row.addressCount ?? row.addresses.length) - 1));
  put(ports, 'title', [...row.ports, ...row.nodePorts.map(it => `node ${it}`)].join(', '));
  write(parts.ports, row.ports[0] ?? '–');
  say(parts.morePorts, more((row.portCount ?? row.ports.length) + row.nodePorts.length - 1));
  const { used, total } = row.endpoints;
  put(parts.meter, 'class', `meter ${used === 0 ? 'none' : used < total ? 'some' : 'all'}`);
  if (parts.meter.hidden !== (row.state === 'not handled')) parts.meter.hidden = !parts.meter.hidden;
  const width = `${total ? Math.round((used / total) * 100) : 0}%`;
  if (parts.width !== width) parts.meter.firstChild.style.width = parts.width = width;
  write(parts.endpoints, `${count(used)}/${count(total)}`);
  put(endpoints, 'title', `${used} of ${total} endpoints are used`);
  const now = rates.of(row.name);
  say(rate, now ? `${bytes(now.bytes)}/s` : '');
  put(problem, 'title', row.problem);
  say(problem, row.problem);
}

/// The text of a text node.
function write(node, text) {
  if (node.data !== text) node.data = text;
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
