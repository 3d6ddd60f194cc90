// Starts the page: routes, keys, colours and the token form. Views draw themselves; store.js talks to the agent.

import * as agent from './agent.js';
import { setToken } from './api.js';
import { el, icon } from './dom.js';
import * as header from './header.js';
import * as journal from './journal.js';
import * as service from './service.js';
import * as services from './services.js';
import { retryNow, run } from './store.js';
import * as trace from './trace.js';

const VIEWS = { services, service, trace, journal, agent };
const TABS = ['services', 'trace', 'journal', 'agent'];
const TITLES = { services: '', trace: 'Trace', journal: 'Journal', agent: 'Agent' };
const THEMES = ['auto', 'light', 'dark'];
const find = id => document.getElementById(id);

let current = null;
const scrolled = new Map();

/// `#/view/path?parameters`; anything else is the list of Services.
function route() {
  const [path, parameters = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const [first, ...rest] = path.split('/');
  const name = first in VIEWS && (first !== 'service' || rest.length === 2) ? first : 'services';
  if (current) {
    scrolled.set(current, scrollY);
    VIEWS[current].hide();
  }
  const moved = current !== name;
  // What had the focus is hidden now: keyboard and screen reader go on with the new view.
  if (current && moved) find('main').focus({ preventScroll: true });
  current = name;
  for (const view of Object.keys(VIEWS)) find(`view-${view}`).hidden = view !== name;
  for (const tab of document.querySelectorAll('nav a')) {
    const here = tab.dataset.view === (name === 'service' ? 'services' : name);
    if (here) tab.setAttribute('aria-current', 'page');
    else tab.removeAttribute('aria-current');
  }
  header.setPlace(TITLES[name] ?? rest.map(decoded).join('/'));
  VIEWS[name].show(new URLSearchParams(parameters), rest.map(decoded));
  if (moved) scrollTo(0, name === 'services' ? scrolled.get(name) ?? 0 : 0);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function keydown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || find('help').open || !find('token').hidden) return;
  const typing = ['INPUT', 'SELECT', 'TEXTAREA'].includes(event.target.tagName);
  if (current && VIEWS[current].key(event)) {
    event.preventDefault();
    return;
  }
  if (typing) return;
  if (TABS[event.key - 1]) location.hash = `#/${TABS[event.key - 1]}`;
  else if (event.key === '?') find('help').showModal();
  else if (event.key === 'd') nextTheme();
  else return;
  event.preventDefault();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const words = { auto: 'automatic', light: 'light', dark: 'dark' }[theme];
  find('theme').replaceChildren(icon({ auto: 'auto', light: 'sun', dark: 'moon' }[theme]));
  find('theme').title = `Colours: ${words} (d)`;
  find('theme').setAttribute('aria-label', `Colours: ${words}`);
}

function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  setTheme(theme);
  try {
    localStorage.setItem('ferroxy-theme', theme);
  } catch { /* Without storage the choice lasts as long as the page. */ }
}

function storedTheme() {
  try {
    return localStorage.getItem('ferroxy-theme');
  } catch {
    return null;
  }
}

setTheme(THEMES.includes(storedTheme()) ? storedTheme() : 'auto');
for (const [name, view] of Object.entries(VIEWS)) {
  const section = el('section.view', { id: `view-${name}`, hidden: true });
  find('main').append(section);
  view.start(section);
}
header.start();
document.querySelector('.skip').addEventListener('click', event => {
  event.preventDefault();
  find('main').focus();
});
find('theme').addEventListener('click', nextTheme);
find('help-open').addEventListener('click', () => find('help').showModal());
find('token-form').addEventListener('submit', event => {
  event.preventDefault();
  setToken(find('token-value').value.trim());
  find('token-value').value = '';
  retryNow();
});
addEventListener('hashchange', route);
addEventListener('keydown', keydown);
history.scrollRestoration = 'manual';
route();
run();
