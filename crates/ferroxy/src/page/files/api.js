// Asks the agent: requests of /api/v1 with the token, and its stream of events. It keeps no data of the cluster.

const KEY = 'ferroxy-token';
/// A request that takes longer counts as unanswered.
const PATIENCE = 20_000;
/// The stream carries a comment every 15 seconds at least; a silent one is dead.
const SILENCE = 40_000;

/// `code` 0: no answer at all.
export class ApiError extends Error {
  constructor(code, message, body = {}, retryAfter = 0) {
    super(message);
    Object.assign(this, { code, body, retryAfter });
  }
}

export function setToken(token) {
  sessionStorage.setItem(KEY, token);
}

export async function get(path, parameters = {}, signal = undefined) {
  const limit = AbortSignal.timeout(PATIENCE);
  const response = await request(path, parameters, signal ? AbortSignal.any([signal, limit]) : limit);
  try {
    return await response.json();
  } catch {
    throw new ApiError(0, 'The answer of the agent ended early.');
  }
}

/// Calls `on(event, data)` for each event, with `open` before the first, until the stream ends, which is an error.
export async function events(after, signal, on) {
  const dead = new AbortController();
  let timer;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => dead.abort(), SILENCE);
  };
  alive();
  try {
    const response = await request('events', { after }, AbortSignal.any([signal, dead.signal]));
    on('open');
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      alive();
      const parts = (text + value).split('\n\n');
      text = parts.pop();
      parts.forEach(part => deliver(part, on));
    }
  } catch (error) {
    if (error instanceof ApiError || signal.aborted) throw error;
  } finally {
    clearTimeout(timer);
  }
  throw new ApiError(0, 'The agent closed the connection.');
}

function deliver(part, on) {
  let event = 'message';
  const data = [];
  for (const line of part.split('\n')) {
    if (line.startsWith('event:')) event = line.slice(6).trim();
    if (line.startsWith('data:')) data.push(line.slice(5));
  }
  if (data.length) on(event, JSON.parse(data.join('\n')));
}

async function request(path, parameters, signal) {
  // Relative: the page also works behind a proxy that puts it into a folder.
  const url = new URL(`api/v1/${path}`, location.href.split('#')[0]);
  for (const [name, value] of Object.entries(parameters)) {
    [value].flat().filter(it => it !== '' && it !== null && it !== undefined).forEach(it => url.searchParams.append(name, it));
  }
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { 'X-Ferroxy-Token': token } : {};
  let response;
  try {
    response = await fetch(url, { headers, signal, cache: 'no-store' });
  } catch {
    throw new ApiError(0, 'The agent does not answer.');
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const message = body.message || `The agent answered ${response.status}.`;
  throw new ApiError(response.status, message, body, Number(response.headers.get('Retry-After')) || 0);
}
