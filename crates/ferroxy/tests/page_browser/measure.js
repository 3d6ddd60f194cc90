// Watches what the list of Services costs: rows in the document, changes of the document, rows that were added or moved in it, sorting of
// long lists, and times. `measure()` returns what there was since the last call.
(() => {
  const rows = document.querySelector('#services .rows');
  const fresh = () => ({ rows: 0, changes: 0, moves: 0, longSorts: 0, frames: [], tasks: [] });
  let now = fresh();
  const count = () => { now.rows = Math.max(now.rows, rows.childElementCount); };
  const watched = new MutationObserver(list => {
    now.changes += list.length;
    for (const it of list) if (it.target === rows) now.moves += it.addedNodes.length;
    count();
  });
  watched.observe(document.body, { childList: true, subtree: true, attributes: true, characterData: true });
  new PerformanceObserver(list => now.tasks.push(...list.getEntries().map(it => it.duration))).observe({ type: 'longtask' });
  const { sort } = Array.prototype;
  Array.prototype.sort = function counted(...rest) {
    if (this.length > 1000) now.longSorts += 1;
    return sort.apply(this, rest);
  };
  let last = performance.now();
  const frame = time => {
    now.frames.push(time - last);
    last = time;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
  window.measure = async () => {
    // Until everything is drawn, and long tasks are reported.
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 100))));
    count();
    const { frames, tasks, ...counts } = now;
    now = fresh();
    return { ...counts, frames: frames.length, longestFrame: Math.max(0, ...frames), longFrames: frames.filter(it => it > 50).length, longTasks: tasks };
  };
  return true;
})()
