// The view of one Service: problems, what happens to a connection at each frontend, every endpoint, rates, journal.

import { get } from './api.js';
import { spark } from './chart.js';
import { ago, badge, bytes, copyable, el, fill, icon, link, perSecond, plural, prose, say, seconds, stateOf, svg } from './dom.js';
import { entryRows } from './journal.js';
import { rates, watchRates } from './rates.js';
import { listHash } from './services.js';
import { on, store } from './store.js';

/// Endpoints of a port that are shown at first, and with each request for more.
const FEW = 12;
const MORE = 200;
const ENTRIES = 30;

let root, name, loaded, drawn, journal, limits;
let stop = new AbortController();
let stopRates = () => {};
let lines = [];

export function start(section) {
  root = section;
  new ResizeObserver(drawLines).observe(root);
  on('services', () => name && refresh());
  on('status', () => name && refresh());
  on('journal', () => name && drawJournal());
  on('connection', () => name && store.connection.state === 'live' && refresh());
}

export function show(_, path) {
  name = path.join('/');
  stop.abort();
  stop = new AbortController();
  [loaded, drawn, limits] = [null, '', new Map()];
  fill(root, head('pending', 'Loading'));
  load();
  stopRates();
  stopRates = watchRates(name, drawRates);
}

export function hide() {
  name = null;
  stop.abort();
  stopRates();
}

export function key(event) {
  if (event.key === 'Escape') location.hash = listHash();
  else if (event.key === 't') location.hash = traceLink();
  else return false;
  return true;
}

/// Reads it again when its row or the time of its last change differs, and when nothing waits any more.
let seen = '';
function refresh() {
  const row = store.services.get(name);
  const now = `${name} ${row?.state} ${row?.changed} ${row?.endpoints.used} ${store.connection.since} ${store.status?.inSync}`;
  if (now !== seen) load();
  seen = now;
}

async function load() {
  // The signal of this visit: whoever leaves a Service and comes back has another one.
  const { signal } = stop;
  try {
    const answer = await get(`services/${name.split('/').map(encodeURIComponent).join('/')}`, {}, signal);
    if (!signal.aborted) draw(answer);
  } catch (error) {
    if (signal.aborted) return;
    if (error.code === 404) drawUnknown(error.message);
    else if (!loaded) fill(root, head('pending', 'Waiting'), el('p.empty', error.message));
  }
}

function drawUnknown(message) {
  const names = [...new Set(message.match(/[a-z0-9.-]+\/[a-z0-9.-]*[a-z0-9]/g))].filter(it => store.services.has(it));
  [loaded, drawn] = [null, ''];
  fill(root, head('not handled', 'Unknown'), el('div.empty',
    el('h2', 'There is no such Service'),
    el('p', prose(message)),
    el('ul.similar', names.map(it => el('li', el('a', { href: link(it) }, it)))),
    el('p', el('a', { href: `#/services?q=${encodeURIComponent(name.split('/').at(-1))}` }, 'Search for it'))));
}

function head(state, word) {
  const look = stateOf(state);
  const [namespace, ...rest] = name.split('/');
  return el('div.title',
    el('a.button.round', { href: listHash(), title: 'Back to the list (Esc)', 'aria-label': 'Back to the list' }, icon('back')),
    el('h1', el('span.dim', `${namespace}/`), rest.join('/')), badge(look.level, look.icon, word ?? look.word),
    el('a.button', { href: traceLink(), title: 'Trace a connection (t)' }, icon('right'), 'Trace'));
}

function traceLink() {
  const port = loaded?.ports[0];
  // Before the Service itself is loaded, its row has the ports as well: `53/udp`.
  const [number, protocol] = port ? [port.port, port.protocol] : (store.services.get(name)?.ports[0] ?? '80/tcp').split('/');
  return `#/trace?to=${encodeURIComponent(`${name}:${number}${protocol === 'tcp' ? '' : `/${protocol}`}`)}`;
}

function draw(answer) {
  const text = JSON.stringify([answer, store.services.get(name)?.state]);
  if (text === drawn) return;
  [loaded, drawn] = [answer, text];
  redraw();
}

function redraw() {
  const { standing, findings, diagnostics, ports } = loaded;
  const reason = standing['not handled'];
  // What works as designed is a note, and no problem.
  const notes = reason ? findings : findings.filter(it => it.severity === 'note');
  const problems = findings.filter(it => !notes.includes(it));
  const state = reason ? 'not handled' : problems.length || diagnostics.length ? 'problem' : store.services.get(name)?.state ?? 'ok';
  journal = el('section.card', { 'aria-label': 'Journal of this Service' });
  fill(root, head(state), facts(),
    problems.map(finding), invalid(diagnostics), notes.map(it => el('p.note', prose(`${it.problem} ${it.fix}`))), counting(),
    ports.map(portCard), journal);
  if (!problems.length && !diagnostics.length && !reason) {
    root.querySelector('.facts').prepend(el('span.good-text', icon('check'), 'No problem found on this node'));
  }
  drawLines();
  drawRates();
  drawJournal();
}

function facts() {
  const row = store.services.get(name);
  const items = [
    row?.type,
    loaded.programmed && `Programmed in the kernel: ${loaded.programmed}`,
    loaded.probe && `Probe: ${loaded.probe}`,
    loaded.verdictsUnknown && `Results of the probe are not known: ${loaded.verdictsUnknown}`,
    ...loaded.traits.map(it => `${it.name}: ${it.value}`),
  ];
  return el('p.facts', items.filter(Boolean).map(it => el('span', it)));
}

const finding = ({ problem, fix }) => el('div.finding', icon('alert'),
  el('div', el('p', prose(problem)), fix ? el('p.try', el('b', 'Try '), prose(fix)) : null));

const invalid = diagnostics => (diagnostics.length ? el('div.finding', icon('alert'),
  el('div', el('p', 'Invalid objects'), el('ul', diagnostics.map(it => el('li', it))))) : null);

function counting() {
  return el('p.note.off', { id: 'not-counted', hidden: true }, 'Traffic is not counted. Start the agent with ', el('code', '--traffic-metrics'),
    ' in nftables, userspace or winuserspace mode to see live rates here.');
}

function portCard(port, number) {
  const title = `${port.port}/${port.protocol}`;
  const parts = [port.name, port.family, `target ${port.targetPort}`, port.affinitySeconds && `session affinity ${seconds(port.affinitySeconds)}`];
  const order = it => (it.usedForCluster || it.usedForLocal ? 0 : 1);
  const endpoints = [...port.endpoints].sort((a, b) => order(a) - order(b));
  const limit = limits.get(number) ?? FEW;
  const more = endpoints.length - limit;
  const used = endpoints.filter(it => order(it) === 0).length;
  const card = el('section.card.port', { 'aria-label': `Port ${title}` },
    el('header', el('h2', title), el('p.dim', parts.filter(Boolean).join(' · ')), el('p.rate', { 'data-rate': `${name} ${port.name}` })),
    el('div.flow',
      el('div.fronts', el('h3', plural(port.frontends.length, 'frontend')), port.frontends.map(frontend)),
      svg('svg.lines', { 'aria-hidden': 'true' }),
      el('div.ends', el('h3', plural(port.endpoints.length, 'endpoint'), el('span.dim', `, ${used} used`)),
        endpoints.length ? null : el('p.dim', 'No endpoints: no EndpointSlice of this Service has this port.'),
        el('ul', endpoints.slice(0, limit).map(it => endpoint(it, port.name))),
        more > 0 ? el('button', { onclick: () => { limits.set(number, limit + MORE); redraw(); } }, `Show ${Math.min(more, MORE)} of ${more} more`) : null)));
  return card;
}

/// Which endpoints the sentence about a frontend speaks of: those of policy Cluster, and those on this node.
export function leads(route) {
  return { local: /to \d+ endpoints? on this node/.test(route), cluster: /to \d+ endpoints?\b(?! on this node)/.test(route) };
}

function frontend({ kind, address, route }) {
  const { local, cluster } = leads(route);
  const level = !local && !cluster ? 'bad' : /dropped/.test(route) ? 'warn' : 'good';
  return el('div', { class: `front ${level}`, 'data-local': String(local), 'data-cluster': String(cluster) },
    el('p', el('span.kind', kind), copyable(address)), el('p.route', route));
}

function endpoint(it, port) {
  const used = it.usedForCluster || it.usedForLocal;
  const look = used ? ['good', 'check', it.usedForCluster ? 'used' : 'used for policy Local'] : ['idle', 'minus', 'not used'];
  const place = [it.local ? 'this node' : it.node ?? 'no known node', it.zone].filter(Boolean).join(', ');
  return el('li', { class: used ? 'end' : 'end off', 'data-cluster': String(it.usedForCluster), 'data-local': String(it.usedForLocal) },
    el('p', el('code.address', it.address), badge(...look), el('span.dim', [it.pod, place].filter(Boolean).join(' · ')),
      el('span.rate', { 'data-rate': `${name} ${port} ${it.address}` })),
    why(it));
}

/// Why it is not used; and what its probe says, even if it is.
function why({ reason, down }) {
  if (!down) return reason ? el('p.why', reason) : null;
  return el('p.why', el('span', reason ?? `fails its probe: ${down.fault}`, ', for ', ago(down.since), reason ? '' : '; still in use'));
}

/// The connections between frontends and endpoints, drawn between the two columns.
function drawLines() {
  for (const flow of root.querySelectorAll('.flow')) {
    const drawing = flow.querySelector('svg.lines');
    const box = drawing.getBoundingClientRect();
    if (!box.width) continue;
    drawing.setAttribute('viewBox', `0 0 ${box.width} ${box.height}`);
    const middle = element => {
      const it = element.getBoundingClientRect();
      return it.top + it.height / 2 - box.top;
    };
    const paths = [];
    for (const front of flow.querySelectorAll('.front')) {
      for (const end of flow.querySelectorAll('.end')) {
        const both = kind => front.dataset[kind] === 'true' && end.dataset[kind] === 'true';
        if (!both('cluster') && !both('local')) continue;
        const [a, b, half] = [middle(front), middle(end), box.width / 2];
        paths.push(svg('path', { d: `M0 ${a}C${half} ${a} ${half} ${b} ${box.width} ${b}` }));
      }
    }
    drawing.classList.toggle('many', paths.length > 24);
    fill(drawing, paths);
  }
}

function drawRates() {
  if (!name || !loaded) return;
  const note = root.querySelector('#not-counted');
  if (note) note.hidden = rates.counted !== false;
  for (const place of root.querySelectorAll('[data-rate]')) {
    const rate = rates.of(place.dataset.rate);
    if (!rate) continue;
    const text = `${bytes(rate.bytes)}/s`;
    if (place.tagName === 'SPAN') say(place, text);
    else fill(place, spark(rate.earlier), el('b', text), ` ${perSecond(rate.packets)} packets/s, ${perSecond(rate.connections)} new connections/s`);
  }
}

function drawJournal() {
  if (!loaded || !journal) return;
  const entries = store.journal.filter(entry => entry.service === name).slice(-ENTRIES).reverse();
  const text = entries.map(entry => entry.number).join();
  if (journal.dataset.now === text && journal.firstChild) return;
  journal.dataset.now = text;
  fill(journal, el('header', el('h2', 'Recent changes'), el('p.dim', el('a', { href: `#/journal?q=${encodeURIComponent(name)}` }, 'in the journal'))),
    entries.length ? entryRows(entries) : el('p.dim', 'Nothing since the agent started, as far as the journal goes back.'));
}
