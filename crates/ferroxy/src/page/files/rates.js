// Live rates: the difference of two readings of the traffic counters. It asks only while a view wants them.

import { get } from './api.js';
import { store } from './store.js';

const EVERY = 2000;
/// Samples that a small chart shows.
const SAMPLES = 60;

/// By key (a Service, `Service port` or `Service port endpoint`): rates per second, and earlier ones.
const known = new Map();

export const rates = {
  of: key => known.get(key),
  /// Whether the agent counts at all; null while unknown.
  counted: null,
};

/// Reads the counters of one Service (or of all: null) again and again, and calls `then` after each reading. Returns how to stop.
export function watchRates(service, then) {
  const stop = new AbortController();
  let last = null;
  known.clear();
  const read = async () => {
    const begun = performance.now();
    if (!document.hidden && store.connection.state === 'live' && store.status?.trafficCounted !== false) {
      try {
        const reading = await get('traffic', service ? { name: service } : {}, stop.signal);
        if (stop.signal.aborted) return;
        rates.counted = reading.counted;
        const sums = total(reading, Boolean(service));
        if (last) difference(last, { at: reading.monotonicSeconds, sums }, Boolean(service));
        last = { at: reading.monotonicSeconds, sums };
        then();
      } catch { /* The connection is watched elsewhere; the next reading may succeed. */ }
    } else if (store.status) rates.counted = store.status.trafficCounted;
    if (stop.signal.aborted) return;
    // A reading that takes long is repeated less often.
    setTimeout(read, Math.max(EVERY, (performance.now() - begun) * 10));
  };
  read();
  return () => stop.abort();
}

function total(reading, apart) {
  const sums = new Map();
  const put = (key, item) => {
    const sum = sums.get(key) ?? { bytes: 0, packets: 0, connections: 0 };
    sum.bytes += item.bytes + item.replyBytes;
    sum.packets += item.packets + item.replyPackets;
    sum.connections += item.connections ?? 0;
    sums.set(key, sum);
  };
  for (const item of reading.items) {
    put(item.service, item);
    if (apart) put(`${item.service} ${item.port}`, item);
  }
  for (const item of reading.endpoints ?? []) put(`${item.service} ${item.port} ${item.endpoint}`, item);
  return sums;
}

function difference(before, after, remember) {
  const passed = after.at - before.at;
  if (passed <= 0) return;
  for (const key of known.keys()) if (!after.sums.has(key)) known.delete(key);
  for (const [key, sum] of after.sums) {
    const old = before.sums.get(key);
    const rate = { earlier: known.get(key)?.earlier ?? [] };
    // A counter that began again, or a new one: nothing to compare with yet.
    for (const name of ['bytes', 'packets', 'connections']) rate[name] = old && sum[name] >= old[name] ? (sum[name] - old[name]) / passed : 0;
    if (remember) rate.earlier.push(rate.bytes);
    if (rate.earlier.length > SAMPLES) rate.earlier.shift();
    known.set(key, rate);
  }
}
