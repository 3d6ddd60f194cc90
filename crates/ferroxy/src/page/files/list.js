// A table of any length of which only the rows on the screen exist. The window scrolls it; rows have one height, `--row`.

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
  /// fills it, `key(item)` names an item as long as it is the same.
  constructor({ id, role, label, tools, head, make, show, key }) {
    Object.assign(this, { make, show, key, items: [], rows: new Map(), spare: [], height: 0, length: -1, due: false });
    this.body = el('div.rows', { role: 'rowgroup' });
    this.head = el('div.sticky', el('div.toolbar', tools), el('div.headgroup', { role: 'rowgroup', id: `${id}-head` }, head));
    this.grid = el('div', { role, 'aria-label': label, 'aria-owns': `${id}-head`, tabindex: role === 'grid' ? '0' : null }, this.body);
    this.element = el('div.table', { id }, this.head, this.grid);
    addEventListener('scroll', () => this.soon(), { passive: true });
    addEventListener('resize', () => {
      this.height = 0;
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
    const top = this.body.getBoundingClientRect().top + index * this.height;
    if (top < covered) scrollBy(0, top - covered);
    else if (top + this.height > innerHeight) scrollBy(0, top + this.height - innerHeight + 8);
    this.draw();
  }

  measure() {
    this.height ||= parseFloat(getComputedStyle(this.body).getPropertyValue('--row')) || 40;
  }

  draw(again = false) {
    if (this.body.closest('[hidden]')) return;
    this.measure();
    const { items, height } = this;
    if (this.length !== items.length * height) {
      this.length = items.length * height;
      this.body.style.height = `${this.length}px`;
    }
    const top = this.body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / height) - MARGIN);
    const end = Math.min(items.length, Math.ceil((innerHeight - top) / height) + MARGIN);
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

  /// Rows are placed by their offset; assistive technology reads them in the order of the document.
  arrange(wanted) {
    let next = this.body.firstChild;
    for (const key of wanted.keys()) {
      const { element } = this.rows.get(key);
      if (element === next) next = next.nextSibling;
      else this.body.insertBefore(element, next);
    }
  }

  place(key, index, again) {
    let row = this.rows.get(key);
    const isNew = !row;
    if (isNew) {
      row = this.spare.pop() || { element: this.body.appendChild(this.make()) };
      this.rows.set(key, row);
    }
    const item = this.items[index];
    if (isNew || again || row.item !== item || row.index !== index) this.show(row.element, item, index);
    const top = index * this.height;
    if (row.top !== top) row.element.style.transform = `translateY(${top}px)`;
    Object.assign(row, { item, index, top });
  }
}
