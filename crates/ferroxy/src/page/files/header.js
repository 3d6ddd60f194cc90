// What is above every view: the node, its health at a glance, whether the page is live, and what to do when it is not.

import { spark } from './chart.js';
import { ago, clock, count, el, fill, icon, plural, say, seconds } from './dom.js';
import { now, on, retryNow, store } from './store.js';

const COLOURS = { good: '#2e9e5b', info: '#3b82c4', warn: '#d79a2b', bad: '#d64b40' };
const WORDS = { connecting: 'Connecting', live: 'Live', gone: 'Reconnecting', busy: 'Busy', token: 'Token needed', denied: 'Refused' };
const find = id => document.getElementById(id);

/// Problems on this node, and what the view is about: both are in the title of the tab.
let problems = 0;
let place = '';

export function start() {
  on('status', draw);
  on('journal', draw);
  on('services', draw);
  on('connection', drawConnection);
  setInterval(tick, 1000);
}

/// The view has changed to this one.
export function setPlace(words) {
  place = words;
  drawTitle();
}

function drawTitle() {
  const words = [place, store.status?.node, 'Ferroxy'].filter(Boolean).join(' · ');
  document.title = `${problems ? `(${count(problems)}) ` : ''}${words}`;
}

/// The worst of what the status says: level, and a few words.
export function health(status) {
  const { source, queue } = status;
  const waiting = queue.services + queue.large;
  if (source.ended) return ['bad', 'Watch ended', 'Changes no longer arrive: restart the agent'];
  if (!source.alive) return ['bad', source.watches.length ? 'Watch broken' : 'Files unreadable', 'Rules stay as they are'];
  if (!status.healthy) return ['bad', 'Unhealthy', 'See the log of the agent'];
  if (status.failing.length) return ['warn', 'Retrying', `Fails: ${status.failing.map(it => it.step).join(', ')}`];
  if (!status.ready) return ['info', 'Starting', 'The first sync is not done'];
  if (!status.inSync) return ['info', 'Syncing', waiting ? `${plural(waiting, 'Service')} waiting` : 'Changes are on their way'];
  return ['good', 'In sync', null];
}

function draw() {
  const { status } = store;
  if (!status) return;
  say(find('node'), status.node);
  say(find('mode'), status.mode);
  find('mode').hidden = false;
  say(find('version'), status.version);
  const counted = [...store.services.values()].filter(row => row.state === 'problem' || row.state === 'refused').length;
  problems = store.loading.ended ? counted : status.services.problems ?? counted;
  const [level] = health(status);
  const all = level === 'good' && problems ? 'warn' : level;
  drawTitle();
  find('favicon').href = `data:image/svg+xml,${encodeURIComponent(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path d="M8 1l6 3.5v7L8 15l-6-3.5v-7z" fill="${COLOURS[all]}"/></svg>`)}`;
  if (store.connection.state !== 'token') find('glance').hidden = false;
  tiles(status).forEach(show);
  tick();
}

function tiles(status) {
  const { source, queue, latency } = status;
  const [level, word, words] = health(status);
  const alive = source.watches.filter(it => it.alive).length;
  const latest = source.watches.map(it => it.lastActivitySeconds).filter(it => it !== null);
  const waiting = queue.services + queue.large + queue.inputs;
  const waits = store.queue.slice(-40).map(it => it.value);
  const delays = store.journal.slice(-200).map(it => it.apiToKernelSeconds).filter(it => it !== null).slice(-40);
  const programming = store.journal.slice(-200).map(it => it.tookSeconds).filter(it => it !== null).slice(-40);
  const lastDrift = store.journal.findLast(it => it.kind === 'drift');
  return [
    ['problems', '#/services', problems ? 'bad' : 'good', 'Problems', count(problems), `of ${plural(status.services.known, 'Service')}`],
    ['sync', '#/agent', level, 'Sync', word, words ?? (status.lastSync ? ['last ', ago(status.lastSync), ' ago'] : 'not yet')],
    ['watch', '#/agent', !source.alive ? 'bad' : alive < source.watches.length ? 'warn' : 'good', 'Watch',
      source.watches.length ? `${alive} of ${source.watches.length} alive` : source.alive ? 'Alive' : 'Not alive',
      latest.length ? ['active ', ago(new Date(now() - Math.min(...latest) * 1000).toISOString()), ' ago'] : 'manifests'],
    ['queue', '#/agent', waiting ? 'info' : 'good', 'Queue', count(waiting), 'waiting', waits],
    latency.count ? ['latency', '#/agent', 'good', 'API to kernel', seconds(latency.p50Seconds), `p99 ${seconds(latency.p99Seconds)}`, delays]
      : ['latency', '#/agent', 'good', 'Programming', seconds(programming.at(-1)), 'last change', programming],
    ['drift', '#/journal?kind=drift', lastDrift && now() - lastDrift.date < 300_000 ? 'warn' : 'good', 'Drift repairs', count(status.driftRepairs),
      lastDrift ? ['last ', ago(lastDrift.time), ' ago'] : 'none recently'],
  ];
}

/// Writes a tile; the element stays, and with it the focus.
function show([id, href, level, title, value, words, values]) {
  const glance = find('glance');
  const tile = find(`tile-${id}`) ?? glance.appendChild(el('a', { id: `tile-${id}` }));
  tile.className = `tile ${level}`;
  tile.href = href;
  fill(tile, el('span.dim', el('i', { 'aria-hidden': 'true' }), title), el('b', value), el('small.dim', words),
    values?.some(it => it > 0) ? spark(values, 64, 22) : null);
}

function drawConnection() {
  const { state } = store.connection;
  const live = find('live');
  live.dataset.state = state;
  say(live.lastElementChild, WORDS[state]);
  document.body.dataset.connection = state;
  const asks = state === 'token';
  find('token').hidden = !asks;
  find('glance').hidden = asks || !store.status;
  if (asks) {
    say(find('token-error'), sessionStorage.getItem('ferroxy-token') ? 'The agent does not accept this token.' : '');
    find('token-value').focus();
  }
  drawBanner();
}

function drawBanner() {
  const banner = find('banner');
  const { state, message, since, retryAt } = store.connection;
  banner.hidden = !['gone', 'busy', 'denied'].includes(state);
  if (banner.hidden) {
    banner.dataset.now = '';
    return;
  }
  const wait = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
  const next = retryAt ? (wait ? `Next attempt in ${wait} s.` : 'Trying again.') : 'Trying again.';
  if (banner.dataset.now !== state + message) {
    banner.dataset.now = state + message;
    const title = { gone: 'The agent does not answer', busy: 'The agent is busy', denied: 'The agent refuses this page' }[state];
    const stale = store.status && since ? `What you see is from ${clock(new Date(since))} and may be outdated.` : 'Nothing was loaded yet.';
    fill(banner, icon('alert'), el('p', el('b', title), el('span', ` ${state === 'gone' ? stale : message} `), el('span.next')),
      el('button', { onclick: retryNow }, 'Try now'));
  }
  say(banner.querySelector('.next'), state === 'gone' && !store.status ? `Does ferroxy run, with --page-address? ${next}` : next);
}

function tick() {
  for (const time of document.querySelectorAll('time.ago')) say(time, seconds(Math.max(1, Math.round((now() - new Date(time.dateTime)) / 1000))));
  if (!find('banner').hidden) drawBanner();
}
