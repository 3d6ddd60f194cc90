// The view of the tracer: a form, and the path of a packet through the rules as the agent interprets them.

import { get } from './api.js';
import { badge, copyable, el, fill, icon, link, prose } from './dom.js';
import { on, store } from './store.js';

const SUGGESTIONS = 40;
/// Endpoints that are listed.
const MOST = 50;
const VERDICTS = {
  endpoints: ['good', 'check'],
  reject: ['bad', 'cross', 'Rejected', 'The client gets an error at once (connection refused).'],
  drop: ['bad', 'cross', 'Dropped', 'The client waits until its own timeout.'],
  pass: ['idle', 'minus', 'Not translated', 'No Service is served at this address and port on this node: the packet goes on unchanged.'],
};

let from, to, device, names, result, answer, path;
let stop = new AbortController();
let shown = false;
let asked = null;
let failed = false;

export function start(section) {
  const input = (id, attributes) => el('input', { id, spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off', ...attributes });
  from = input('trace-from', { required: true, value: 'node', placeholder: '10.244.1.9 or node' });
  to = input('trace-to', { required: true, list: 'trace-names', placeholder: 'shop/cart:80, 10.96.0.80:80, [fd00::80]:53/udp', oninput: suggest });
  device = input('trace-interface', { placeholder: 'guessed from the address' });
  names = el('datalist', { id: 'trace-names' });
  const field = (label, control, hint) => el('div.field', el('label', { for: control.id }, label), control, el('small.dim', hint));
  const form = el('form.card.form', { 'aria-label': 'Packet to trace' },
    field('From', from, 'An address, or node for this node itself'),
    field('To', to, 'Service and port, or address and port; /udp or /sctp at the end'),
    field('Interface', device, 'Where it comes in; optional'),
    el('button', { type: 'submit', class: 'primary' }, 'Trace'), names);
  form.addEventListener('submit', event => {
    event.preventDefault();
    const parameters = new URLSearchParams({ from: from.value.trim(), to: to.value.trim() });
    if (device.value.trim()) parameters.set('interface', device.value.trim());
    // The keyboard of a phone would cover the answer.
    if (matchMedia('(pointer: coarse)').matches) document.activeElement.blur();
    const hash = `#/trace?${parameters}`;
    if (location.hash === hash) show(parameters);
    else location.hash = hash;
  });
  answer = el('div', { role: 'status' });
  path = el('div');
  result = el('div', { id: 'path', hidden: true }, answer, path);
  fill(section, el('h1', 'Trace a connection'),
    el('p.dim.lead', 'What the rules of this node do to the first packet of a connection. Nothing is sent.'), form, result);
  on('connection', () => shown && failed && store.connection.state === 'live' && run());
}

export function show(parameters) {
  shown = true;
  for (const [input, name] of [[from, 'from'], [to, 'to'], [device, 'interface']]) {
    if (parameters.has(name)) input.value = parameters.get(name);
  }
  suggest();
  if (parameters.has('to') && parameters.get('to')) {
    asked = { from: from.value || 'node', to: to.value, interface: device.value };
    run().then(reveal);
  } else to.focus({ preventScroll: true });
}

export function hide() {
  shown = false;
  stop.abort();
}

export function key(event) {
  if (event.key === '/' && event.target.tagName !== 'INPUT') to.focus();
  else if (event.key === 'Escape' && event.target.tagName === 'INPUT') event.target.blur();
  else if (event.key === 'Escape') location.hash = parent();
  else return false;
  return true;
}

function suggest() {
  const text = to.value.toLowerCase();
  const fitting = [];
  for (const row of store.services.values()) {
    for (const port of row.ports) {
      const [number, protocol] = port.split('/');
      const name = `${row.name}:${number}${protocol === 'tcp' ? '' : `/${protocol}`}`;
      if (name.includes(text)) fitting.push(name);
    }
    if (fitting.length >= SUGGESTIONS) break;
  }
  fill(names, fitting.slice(0, SUGGESTIONS).map(value => el('option', { value })));
}

async function run() {
  stop.abort();
  stop = new AbortController();
  const question = asked;
  failed = false;
  result.setAttribute('aria-busy', 'true');
  try {
    const trace = await get('trace', question, stop.signal);
    if (question === asked) draw(trace);
  } catch (error) {
    if (question !== asked || (error.code === 0 && stop.signal.aborted)) return;
    failed = error.code === 0 || error.code === 503;
    fill(answer, el('div.finding', icon('alert'), el('div', el('p', prose(error.message)))));
    fill(path);
  }
  result.hidden = false;
  result.removeAttribute('aria-busy');
}

/// Scrolls to the answer, unless all of it can be seen.
function reveal() {
  const box = answer.getBoundingClientRect();
  if (shown && (box.top < 0 || box.bottom > innerHeight)) result.scrollIntoView();
}

function draw(trace) {
  const [level, sign, word, words] = VERDICTS[trace.verdict] ?? ['idle', 'minus', trace.verdict, ''];
  const number = trace.endpoints.length;
  const title = word ?? (number === 1 ? 'One endpoint' : `One of ${number} endpoints`);
  const chance = number > 1 ? 'With equal chance.' : '';
  const about = `${trace.source} to ${trace.destination}/${trace.protocol}`;
  const steps = trace.steps.map((step, index) => el('li.step',
    el('span.dot', { 'aria-hidden': 'true' }, String(index + 1)),
    el('div.card', el('p', el('code.where', step.chain), el('span.effect', step.effect)), el('pre', step.rule))));
  fill(answer, el('section', { class: `card verdict ${level}`, 'aria-label': 'Verdict' },
    el('p.effect', badge(level, sign, title), el('span.dim', words ?? chance)),
    number ? el('ul.targets', trace.endpoints.slice(0, MOST).map(target), number > MOST && el('li', `and ${number - MOST} more`)) : null,
    named() ? el('p', el('a', { href: link(named()) }, `Service ${named()}`)) : null));
  fill(path, el('ol.path', { 'aria-label': 'Path of the packet' },
    el('li.step.begin', el('span.dot', { 'aria-hidden': 'true' }, icon('right')), el('div', el('p.effect', 'Packet'), el('p', el('code', about)))),
    steps.length ? steps : el('li.step', el('span.dot'), el('div', el('p.dim', 'No rule of Ferroxy matches this packet.'))),
    el('li', { class: `step last ${level}` }, el('span.dot', { 'aria-hidden': 'true' }, icon(sign)), el('p.effect', title))),
  el('p.dim.command', 'The same in a terminal: ', copyable(command())));
}

function target({ endpoint, masqueraded }) {
  return el('li', icon('right'), el('code', endpoint),
    masqueraded ? badge('warn', 'alert', 'masqueraded: sees this node’s address') : el('span.dim', 'sees the sender’s own address'));
}

/// The Service that the question named, if it did.
function named() {
  const name = asked?.to.replace(/:[^:]*$/, '');
  return store.services.has(name) ? name : null;
}

function parent() {
  return named() ? link(named()) : '#/services';
}

function command() {
  const quoted = text => (/^[\w.:/-]+$/.test(text) ? text : `'${text.replaceAll('\'', '')}'`);
  return ['ferroxy trace', quoted(asked.from), quoted(asked.to), asked.interface ? `--interface ${quoted(asked.interface)}` : ''].filter(Boolean).join(' ');
}
