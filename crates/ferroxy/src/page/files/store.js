// What the page knows of the agent: status, Services, journal; loaded once, then kept current by events. It draws nothing.

import { ApiError, events, get } from './api.js';

/// Entries of the journal kept here; the agent keeps fewer.
const ENTRIES = 5000;
const SAMPLES = 900;
/// Services of one page, and names of one question, as the API limits them.
const PAGE = 1000;
const NAMES = 200;
/// Changed Services are read again at most this often, NAMES at a time, so that a busy cluster costs the agent little.
const REFRESH = 1000;
/// The status is sent when it changes; ages in it grow without that, so it is read again after this time.
const QUIET = 15_000;

export const store = {
  /// connecting | live | gone | busy | token | denied
  connection: { state: 'connecting', message: '', retryAt: 0, since: 0 },
  status: null,
  services: new Map(),
  /// Until the list was read once: of how many.
  loading: { total: null, ended: false },
  journal: [],
  /// Length of the queue: { time, value }.
  queue: [],
  /// CPU seconds used per second, from two status readings.
  cpu: null,
  /// What differs between the node's clock and this one, in milliseconds.
  skew: 0,
};

/// The node's clock.
export const now = () => Date.now() + store.skew;

const listeners = new Map();
const due = new Set();

/// Calls `listener` soon after something of this topic changed: connection, status, services, journal.
export function on(topic, listener) {
  if (!listeners.has(topic)) listeners.set(topic, new Set());
  listeners.get(topic).add(listener);
  return () => listeners.get(topic).delete(listener);
}

function changed(topic) {
  if (due.has(topic)) return;
  due.add(topic);
  setTimeout(() => {
    due.delete(topic);
    for (const listener of listeners.get(topic) || []) listener();
  }, topic === 'connection' ? 0 : 120);
}

/// Names whose rows are on the screen: they are read again first.
let inView = () => [];
export const setInView = names => { inView = names; };

const dirty = new Set();
let reloadWanted = false;
let wake = () => {};
let attempt = 0;
let opened = false;
let learned = 0;
/// The number of Services for which the list was read again, because it had another one.
let recounted = -1;

/// Connects, and connects again for ever.
export async function run() {
  for (;;) {
    const stop = new AbortController();
    try {
      await connected(stop);
    } catch (error) {
      lost(error instanceof ApiError ? error : new ApiError(0, String(error.message || error)));
    }
    stop.abort();
    await pause();
  }
}

/// Ends the pause before the next attempt.
export function retryNow() {
  wake();
}

async function connected(stop) {
  const status = await get('status', {}, stop.signal);
  const restarted = store.status && store.status.started !== status.started;
  learn(status);
  if (restarted) store.journal = [];
  const last = await readJournal(stop.signal);
  opened = false;
  await patiently(() => reload(stop.signal), stop.signal);
  await Promise.race([events(last, stop.signal, heard), refresh(stop.signal)]);
}

/// The stream of events is open.
function live() {
  opened = true;
  attempt = 0;
  set({ state: 'live', message: '', retryAt: 0, since: Date.now() });
}

function lost(error) {
  attempt += 1;
  const states = { 401: 'token', 403: 'denied', 503: 'busy' };
  const state = states[error.code] || 'gone';
  const backoff = Math.min(15, 2 ** (attempt - 1)) * (0.8 + Math.random() * 0.4);
  const wait = state === 'token' ? Infinity : Math.max(error.retryAfter, backoff) * 1000;
  const since = store.connection.state === 'live' ? Date.now() : store.connection.since;
  set({ state, message: error.message, retryAt: Date.now() + wait, since });
}

function set(connection) {
  store.connection = connection;
  changed('connection');
}

function pause() {
  const wait = store.connection.retryAt - Date.now();
  return new Promise(resolve => {
    const timer = wait < Infinity ? setTimeout(resolve, wait) : null;
    wake = () => {
      clearTimeout(timer);
      // Whether a token is wrong is known after the next answer.
      const { state } = store.connection;
      set({ ...store.connection, state: state === 'token' ? 'connecting' : state, retryAt: 0 });
      resolve();
    };
  });
}

function learn(status) {
  const before = store.status;
  store.status = status;
  learned = Date.now();
  store.skew = new Date(status.started).getTime() + status.uptimeSeconds * 1000 - Date.now();
  const passed = before && before.started === status.started ? status.uptimeSeconds - before.uptimeSeconds : 0;
  if (passed >= 1) store.cpu = Math.max(0, status.process.cpuSeconds - before.process.cpuSeconds) / passed;
  const { services, large, inputs } = status.queue;
  store.queue.push({ time: now(), value: services + large + inputs });
  if (store.queue.length > SAMPLES) store.queue.shift();
  if (!store.loading.ended) store.loading.total = status.services.known;
  changed('status');
}

/// Reads what is new, and returns the number of the last entry.
async function readJournal(signal) {
  let last = store.journal.at(-1)?.number ?? 0;
  for (let times = 0; times < 10; times += 1) {
    const part = await get('journal', { after: last, limit: 2000 }, signal);
    part.items.forEach(note);
    last = part.items.at(-1)?.number ?? Math.max(last, part.last ?? 0);
    if (part.items.length === 0 || last >= part.last) break;
  }
  return last;
}

function note(entry) {
  entry.date = new Date(entry.time);
  entry.words = `${entry.kind} ${entry.service ?? ''} ${entry.text}`.toLowerCase();
  store.journal.push(entry);
  if (store.journal.length > ENTRIES + 500) store.journal.splice(0, 500);
  changed('journal');
}

function heard(event, data) {
  if (event === 'open') live();
  if (event === 'status') learn(data);
  if (event === 'lost') reloadWanted = true;
  if (event !== 'journal' || data.number <= (store.journal.at(-1)?.number ?? 0)) return;
  note(data);
  if (['node', 'reconfigured', 'started'].includes(data.kind)) reloadWanted = true;
  // Read again in any case: a Service without anything on this node may still exist.
  if (data.service) dirty.add(data.service);
}

/// Reads changed Services again, a portion each second, and all of them where needed.
async function refresh(signal) {
  for (;;) {
    if (reloadWanted) {
      reloadWanted = false;
      dirty.clear();
      await patiently(() => reload(signal), signal);
    } else if (dirty.size && !document.hidden) {
      const first = inView().filter(name => dirty.has(name));
      const names = [...new Set([...first, ...dirty])].slice(0, NAMES);
      names.forEach(name => dirty.delete(name));
      const list = await patiently(() => get('services', { name: names }, signal), signal);
      merge(names, list.items);
    } else if (miscounted()) {
      recounted = store.status.services.known;
      reloadWanted = true;
    } else if (Date.now() - learned > QUIET && !document.hidden) learn(await get('status', {}, signal));
    await new Promise(resolve => setTimeout(resolve, REFRESH));
    if (signal.aborted) return;
  }
}

/// Services that this node does not handle come and go without an entry in the journal; the status counts them.
function miscounted() {
  const { known } = store.status.services;
  return known !== store.services.size && known !== recounted;
}

/// Asks again while the agent is busy.
async function patiently(ask, signal) {
  for (let wait = 1; ; wait = Math.min(15, wait * 2)) {
    try {
      const answer = await ask();
      if (store.connection.state === 'busy' && opened) live();
      return answer;
    } catch (error) {
      if (error.code !== 503 || signal.aborted) throw error;
      set({ ...store.connection, state: 'busy', message: error.message, retryAt: Date.now() + wait * 1000 });
      await new Promise(resolve => setTimeout(resolve, Math.max(wait, error.retryAfter) * 1000));
    }
  }
}

async function reload(signal) {
  const first = !store.loading.ended;
  const services = first ? store.services : new Map();
  let after = '';
  do {
    const list = await get('services', { after, limit: PAGE }, signal);
    for (const item of list.items) services.set(item.name, row(item));
    after = list.next;
    if (first) changed('services');
  } while (after);
  store.services = services;
  store.loading.ended = true;
  changed('services');
}

function merge(names, items) {
  const found = new Map(items.map(item => [item.name, item]));
  for (const name of names) {
    const item = found.get(name);
    if (item) store.services.set(name, Object.assign(row(item), { changed: Date.now() }));
    else store.services.delete(name);
  }
  changed('services');
}

/// A Service as the table has it: with the words that a search finds.
function row(item) {
  const [namespace, ...rest] = item.name.split('/');
  const problem = item.problem?.replace(`Service ${item.name}: `, '') ?? item.notHandled ?? '';
  const words = [item.name, item.type, ...item.addresses, ...item.ports, ...item.nodePorts, item.state, problem];
  return Object.assign(item, { namespace, problem, short: rest.join('/'), words: words.join(' ').toLowerCase() });
}
