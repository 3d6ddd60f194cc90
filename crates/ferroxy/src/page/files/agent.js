// The view of the agent itself: charts of latency, changes, drift and queue; its watches and its process.

import { Chart, buckets } from './chart.js';
import { ago, badge, bytes, count, el, fill, icon, link, moment, prose, seconds } from './dom.js';
import { now, on, store } from './store.js';

const SPANS = [['5 min', 300], ['15 min', 900], ['1 h', 3600], ['All', 0]];
const BARS = 60;

let charts, cards, failing, spans;
let span = 900;
let shown = false;
let timer;

export function start(section) {
  const toService = point => { if (point.service) location.hash = link(point.service); };
  charts = {
    latency: new Chart({ title: 'Sync latency', about: 'Of each change, on a logarithmic axis', kind: 'points', log: true, format: seconds, open: toService }),
    changes: new Chart({ title: 'Changes', about: 'Services programmed', kind: 'bars', format: count }),
    queue: new Chart({ title: 'Queue', about: 'Services and events that wait, since this page was opened', kind: 'steps', format: count }),
    drift: new Chart({ title: 'Drift', about: 'Repairs of rules that another program changed', kind: 'bars', tone: 'warn', format: count }),
  };
  spans = el('div.chips', { role: 'group', 'aria-label': 'Time' }, SPANS.map(([word, value]) => el('button.chip', { value, onclick: () => choose(value) }, word)));
  cards = el('div.cards');
  failing = el('div', { role: 'status' });
  fill(section, el('div.title', el('h1', 'Agent'), spans), failing,
    el('div.charts', Object.values(charts).map(chart => chart.element)), cards);
  for (const topic of ['status', 'journal', 'connection']) on(topic, () => shown && draw());
  addEventListener('resize', () => shown && drawCharts());
  choose(span);
}

export function show() {
  shown = true;
  clearInterval(timer);
  timer = setInterval(() => !document.hidden && drawCharts(), 5000);
  draw();
}

export function hide() {
  shown = false;
  clearInterval(timer);
}

export function key() {
  return false;
}

function draw() {
  drawCharts();
  if (!store.status) return;
  fill(failing, store.status.failing.map(fault));
  fill(cards, watches(store.status.source), facts(store.status));
}

function choose(length) {
  span = length;
  for (const chip of spans.children) chip.ariaPressed = chip.value === String(span);
  drawCharts();
}

function drawCharts() {
  // Someone reads a value just now.
  if (Object.values(charts).some(chart => chart.at >= 0)) return;
  const to = now();
  const oldest = store.journal[0]?.date.getTime() ?? to;
  const from = span ? to - span * 1000 : Math.min(oldest, to - 60_000);
  const points = field => store.journal.filter(entry => entry[field] !== null && entry[field] !== undefined)
    .map(entry => ({ time: entry.date.getTime(), value: entry[field], label: entry.service ?? entry.kind, service: entry.service }));
  const { latency } = store.status ?? {};
  charts.latency.draw([{ name: 'programming', points: points('tookSeconds') }, { name: 'API to kernel', points: points('apiToKernelSeconds') }], from, to,
    latency?.count ? `p50 ${seconds(latency.p50Seconds)}, p99 ${seconds(latency.p99Seconds)}` : '');
  const bars = kinds => buckets(store.journal.filter(entry => kinds.includes(entry.kind)).map(entry => entry.date.getTime()), from, to, BARS);
  const sum = series => count(series.reduce((total, point) => total + point.value, 0));
  const changes = bars(['changed', 'removed']);
  charts.changes.draw([{ name: 'changes', points: changes }], from, to, sum(changes));
  const queue = store.queue.map((point, index, all) => ({ ...point, until: all[index + 1]?.time ?? to }));
  charts.queue.draw([{ name: 'waiting', points: queue }], Math.max(from, Math.min(queue[0]?.time ?? from, to - 60_000)), to, queue.length ? count(queue.at(-1).value) : '');
  const drift = bars(['drift']);
  charts.drift.draw([{ name: 'repairs', points: drift }], from, to, `${count(store.status?.driftRepairs)} since the start`);
}

const fault = ({ step, reason, since }) => el('div.finding', icon('alert'), el('div', el('p', `${step} fails and is retried, for `, ago(since)), el('p', prose(reason))));

function watches(source) {
  const alive = it => (it.alive ? badge('good', 'check', 'alive') : badge('bad', 'cross', 'not alive'));
  const rows = source.watches.map(it => el('tr', el('th', { scope: 'row' }, it.resource), el('td', alive(it)),
    el('td', it.lastActivitySeconds === null ? '–' : ago(new Date(now() - it.lastActivitySeconds * 1000).toISOString()))));
  return el('section.card', { id: 'watch', 'aria-label': 'State of the watch' },
    el('header', el('h2', 'Watch'), source.ended ? badge('bad', 'cross', 'ended') : alive(source)),
    rows.length ? el('table', { 'aria-label': 'Watches' }, el('thead', el('tr', ['Resource', 'State', 'Last activity'].map(it => el('th', { scope: 'col' }, it)))), el('tbody', rows))
      : el('p.dim', 'The source of objects is a directory of manifests: nothing is watched at an API server.'));
}

function facts(status) {
  const rows = [
    ['Node', status.node], ['Mode', status.mode], ['Ferroxy', status.version], ['Kubernetes', status.kubernetesVersion],
    ['Started', `${moment(new Date(status.started))}, ${seconds(status.uptimeSeconds)} ago`],
    ['Memory', bytes(status.process.memoryBytes)],
    ['CPU', `${seconds(status.process.cpuSeconds)} in total${store.cpu === null ? '' : `, ${(store.cpu * 100).toFixed(1)} % of a core now`}`],
    ['Services', `${count(status.services.known)} known, ${count(status.services.programmed)} programmed, ${count(status.services.refused)} refused`],
    ['Traffic', status.trafficCounted ? 'counted' : 'not counted (--traffic-metrics)'],
  ];
  return el('section.card', { 'aria-label': 'Process' }, el('header', el('h2', 'Process')),
    el('table', { 'aria-label': 'Process' }, el('tbody', rows.filter(([, value]) => value).map(([name, value]) => el('tr', el('th', { scope: 'row' }, name), el('td', value))))));
}
