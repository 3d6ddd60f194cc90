// The view of the journal: what the agent did lately, newest first, with a filter and a pause.

import { clock, count, el, fill, icon, link, moment, say, seconds } from './dom.js';
import { List, searchField } from './list.js';
import { on, store } from './store.js';

const LEVELS = { refused: 'bad', failed: 'bad', drift: 'warn', verdict: 'warn', removed: 'info', started: 'info', node: 'info', source: 'info', reconfigured: 'info', changed: 'idle' };

const TITLES = [['time', 'Time'], ['kind', 'Kind'], ['service', 'Service'], ['text', 'What'], ['latency', 'API to kernel'], ['took', 'Took'], ['operations', 'Operations']];

let search, kind, pauseButton, summary, list, empty;
let wanted = { q: '', kind: '' };
let shown = false;
/// The last entry to show while paused.
let pausedAt = null;

export function start(section) {
  const [input, field] = searchField('Search the journal', 'Search Service or text', q => want({ q }));
  search = input;
  kind = el('select', { 'aria-label': 'Kind', onchange: () => want({ kind: kind.value }) },
    el('option', { value: '' }, 'All kinds'), Object.keys(LEVELS).sort().map(it => el('option', { value: it }, it)));
  pauseButton = el('button', { id: 'pause', 'aria-pressed': 'false', onclick: pause });
  summary = el('p.dim.summary', { role: 'status' });
  const head = el('div.entry.head', { role: 'row' }, TITLES.map(([name, it]) => el(`span.j-${name}`, { role: 'columnheader' }, it)));
  list = new List({ id: 'journal', role: 'table', label: 'Journal', tools: [field, kind, pauseButton, summary], head,
    make: () => el('div.entry.row', { role: 'row' }), show: showEntry, key: entry => entry.number });
  empty = el('p.empty', { hidden: true });
  fill(section, el('h1.unseen', 'Journal'), list.element, empty);
  on('journal', () => shown && draw());
}

export function show(parameters) {
  shown = true;
  wanted = { q: parameters.get('q') ?? '', kind: parameters.get('kind') ?? '' };
  search.value = wanted.q;
  kind.value = wanted.kind;
  draw();
}

export function hide() {
  shown = false;
}

export function key(event) {
  const typing = event.target === search;
  if (event.key === '/' && !typing) search.focus();
  else if (event.key === 'p' && !typing) pause();
  else if (event.key === 'Escape') {
    search.value = '';
    want({ q: '', kind: '' });
    kind.value = '';
    search.blur();
  } else return false;
  return true;
}

/// Entries as rows with a head, for the view of a Service.
export function entryRows(entries) {
  const rows = entries.map(entry => {
    const row = el('div.entry.row', { role: 'row' });
    showEntry(row, entry);
    return row;
  });
  return el('div.entries', { role: 'table', 'aria-label': 'Entries of the journal' },
    el('div.entry.head', { role: 'row' }, TITLES.map(([name, it]) => el(`span.j-${name}`, { role: 'columnheader' }, it))), rows);
}

function want(change) {
  wanted = { ...wanted, ...change };
  const parameters = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value)).toString();
  history.replaceState(null, '', `#/journal${parameters ? `?${parameters}` : ''}`);
  draw();
}

function pause() {
  pausedAt = pausedAt === null ? store.journal.at(-1)?.number ?? 0 : null;
  draw();
}

function draw() {
  const words = wanted.q.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = entry => (!wanted.kind || entry.kind === wanted.kind) && words.every(word => entry.words.includes(word));
  const all = store.journal.filter(fits);
  const items = (pausedAt === null ? all : all.filter(entry => entry.number <= pausedAt)).reverse();
  const newer = all.length - items.length;
  const paused = pausedAt !== null;
  pauseButton.setAttribute('aria-pressed', String(paused));
  const label = paused ? (newer ? `Resume, ${count(newer)} new` : 'Resume') : 'Pause';
  if (pauseButton.textContent !== label) fill(pauseButton, icon(paused ? 'play' : 'pause'), label);
  say(summary, `${count(items.length)} entries`);
  empty.hidden = items.length > 0;
  say(empty, store.journal.length ? 'No entry matches.' : 'Nothing has changed since the agent started.');
  list.set(items);
}

function showEntry(element, entry) {
  const cell = (name, ...content) => el('span', { role: 'cell', class: `j-${name}` }, ...content);
  fill(element,
    cell('time', el('time', { datetime: entry.time, title: moment(entry.date) }, clock(entry.date))),
    cell('kind', el('span', { class: `kind ${LEVELS[entry.kind] ?? 'idle'}` }, entry.kind)),
    cell('service', entry.service ? el('a', { href: link(entry.service) }, entry.service) : '–'),
    cell('text', entry.text),
    cell('latency', entry.apiToKernelSeconds === null ? '' : seconds(entry.apiToKernelSeconds)),
    cell('took', entry.tookSeconds === null ? '' : seconds(entry.tookSeconds)),
    cell('operations', entry.operations ? count(entry.operations) : ''));
  element.querySelector('.j-text').title = entry.text;
}
