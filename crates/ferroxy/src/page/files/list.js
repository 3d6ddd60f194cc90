// A table of any length of which only the rows on the screen exist. The window scrolls it; rows have the height `--row`, or `--tall`.

import { el, icon } from './dom.js';

/// Rows beyond the edge of the screen, above and below.
const MARGIN = 6;

/// A field for words to search, in its frame.
export function searchField(label, placeholder, search) {
  const input = el('input', { type: 'search', placeholder, 'aria-label': label, spellcheck: 'false', autocomplete: 'off', oninput: () => search(input.value) });
  return [input, el('label.search', icon('search'), input, el('kbd', '/'))];
}

export class List {
  /// `role`: grid or table; `tools` and `head`: what stays above the rows; `make()` makes an empty row, `show(row, item, index)`
  /// fills it, `key(item)` names an item as long as it is the same, `isTall(item)`: its row needs more room.
  constructor({ id, role, label, tools, head, make, show, key, isTall = () => false }) {
    Object.assign(this, { make, show, key, isTall, items: [], rows: new Map(), spare: [], reused: new Set(), tops: null, length: -1, due: false });
    this.body = el('div.rows', { role: 'rowgroup' });
    this.head = el('div.sticky', el('div.toolbar', tools), el('div.headgroup', { role: 'rowgroup', id: `${id}-head` }, head));
    this.grid = el('div', { role, 'aria-label': label, 'aria-owns': `${id}-head`, tabindex: role === 'grid' ? '0' : null }, this.body);
    this.element = el('div.table', { id }, this.head, this.grid);
    addEventListener('scroll', () => this.soon(), { passive: true });
    addEventListener('resize', () => {
      this.tops = null;
      this.soon();
    });
  }

  /// Draws with the next frame: the window may scroll several times until then.
  soon() {
    if (this.due || this.body.closest('[hidden]')) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.draw();
    });
  }

  set(items) {
    this.items = items;
    this.tops = null;
    this.grid.ariaRowCount = items.length + 1;
    this.draw(true);
  }

  /// Fills the rows on the screen again.
  refresh() {
    this.draw(true);
  }

  /// The items on the screen, with those just beyond it.
  inView() {
    return [...this.rows.values()].map(row => row.item);
  }

  /// Scrolls until an item is between the sticky head and the lower edge.
  reveal(index) {
    this.measure();
    const covered = Math.max(0, this.head.getBoundingClientRect().bottom);
    const above = this.body.getBoundingClientRect().top;
    const [top, end] = [above + this.tops[index], above + this.tops[index + 1]];
    if (top < covered) scrollBy(0, top - covered);
    else if (end > innerHeight) scrollBy(0, end - innerHeight + 8);
    this.draw();
  }

  /// Where each row begins; the last number is the length of all.
  measure() {
    if (this.tops) return;
    const style = getComputedStyle(this.body);
    const [row, tall] = ['--row', '--tall'].map(name => parseFloat(style.getPropertyValue(name)) || 40);
    this.tops = new Float64Array(this.items.length + 1);
    this.items.forEach((item, index) => { this.tops[index + 1] = this.tops[index] + (this.isTall(item) ? tall : row); });
  }

  /// The first row that ends below this offset.
  at(offset) {
    let [low, high] = [0, this.items.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tops[middle + 1] > offset) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  draw(again = false) {
    if (this.body.closest('[hidden]')) return;
    this.measure();
    const { items, tops } = this;
    if (this.length !== tops[items.length]) {
      this.length = tops[items.length];
      this.body.style.height = `${this.length}px`;
    }
    const { top } = this.body.getBoundingClientRect();
    const first = Math.max(0, this.at(-top) - MARGIN);
    const end = Math.min(items.length, this.at(innerHeight - top) + 1 + MARGIN);
    const wanted = new Map();
    for (let index = first; index < end; index += 1) wanted.set(this.key(items[index]), index);
    for (const [key, row] of this.rows) {
      if (wanted.has(key)) continue;
      this.rows.delete(key);
      this.spare.push(row);
    }
    for (const [key, index] of wanted) this.place(key, index, again);
    this.spare.splice(0).forEach(row => row.element.remove());
    this.arrange(wanted);
  }

  /// Rows are placed by their offset; assistive technology reads them in the order of the document. A row that moves there costs the
  /// browser as much as a new one: either those move that show another item now, or the others, whichever are fewer.
  arrange(wanted) {
    const few = this.reused.size * 2 < wanted.size;
    let next = this.body.firstChild;
    for (const key of wanted.keys()) {
      const { element } = this.rows.get(key);
      while (few && next !== element && this.reused.has(next) && !this.reused.has(element)) {
        const moved = next;
        next = next.nextSibling;
        this.body.append(moved);
      }
      if (element === next) next = next.nextSibling;
      else this.body.insertBefore(element, next);
    }
    this.reused.clear();
  }

  place(key, index, again) {
    let row = this.rows.get(key);
    const isNew = !row;
    if (isNew) {
      row = this.spare.shift() || { element: this.body.appendChild(this.make()) };
      this.rows.set(key, row);
      this.reused.add(row.element);
    }
    const item = this.items[index];
    if (isNew || again || row.item !== item || row.index !== index) this.show(row.element, item, index);
    row.element.classList.toggle('tall', this.isTall(item));
    const top = this.tops[index];
    if (row.top !== top) row.element.style.transform = `translateY(${top}px)`;
    Object.assign(row, { item, index, top });
  }
}
