// Small charts as SVG: values over time with axes, and with the value under the pointer or chosen by arrow keys. No data of its own.

import { clock, el, fill, moment, svg } from './dom.js';

const EDGE = { left: 52, right: 10, top: 8, bottom: 22 };
const HEIGHT = 170;

/// A line without axes; the numbers stand beside it.
export function spark(values, width = 72, height = 20) {
  const most = Math.max(...values, 1e-9);
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)} ${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`);
  return svg('svg.spark', { viewBox: `0 0 ${width} ${height}`, width, height, 'aria-hidden': 'true' },
    points.length > 1 ? [svg('path.area', { d: `M0 ${height}L${points.join('L')}L${width} ${height}Z` }), svg('path', { d: `M${points.join('L')}` })] : null);
}

export class Chart {
  /// `kind`: points | steps | bars; `log`: a logarithmic axis; `tone`: a class for the colour; `format`: a value as text.
  constructor({ title, about, kind, log = false, tone = '', format, open = () => {} }) {
    Object.assign(this, { kind, log, format, title, open, shown: [], at: -1 });
    this.value = el('b');
    this.legend = el('div.legend.dim', { hidden: true });
    this.drawing = svg('svg', { class: `plot ${kind}`, height: HEIGHT, role: 'img' });
    this.tip = el('div.tip', { hidden: true });
    this.empty = el('p.none.dim');
    this.element = el('figure', { class: `card chart ${tone}` }, el('figcaption', el('span', title), this.value, el('i.break'), el('small.dim', about), this.legend),
      el('div.plotbox', { tabindex: '0', 'aria-label': `${title}: arrow keys show single values` }, this.drawing, this.tip, this.empty));
    const box = this.element.lastChild;
    box.addEventListener('pointermove', event => this.point(event));
    box.addEventListener('pointerleave', () => this.choose(-1));
    box.addEventListener('blur', () => this.choose(-1));
    box.addEventListener('click', () => this.shown[this.at] && this.open(this.shown[this.at]));
    box.addEventListener('keydown', event => this.key(event));
  }

  /// `series`: [{ name, points: [{ time, value, label }] }] in the order of time.
  draw(series, from, to, summary) {
    const width = this.drawing.parentElement.clientWidth;
    if (!width) return;
    const inside = series.map(it => ({ ...it, points: it.points.filter(point => point.time <= to && (point.time >= from)) }));
    const all = inside.flatMap((it, number) => it.points.map(point => ({ ...point, series: it.name, number })));
    this.value.textContent = summary ?? '';
    this.legend.hidden = series.length < 2;
    fill(this.legend, series.map((it, number) => el('span', el('i', { class: `s${number}` }), it.name)));
    this.scale(all, from, to, width);
    this.shown = all.map(point => ({ ...point, x: this.x(point.time), y: this.y(point.value) })).sort((a, b) => a.x - b.x);
    this.at = -1;
    this.tip.hidden = true;
    this.empty.textContent = all.some(point => point.value || this.kind === 'steps') ? '' : 'No data in this period';
    this.drawing.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
    this.drawing.setAttribute('aria-label', `${this.title}: ${summary ?? ''}, ${all.length} values`);
    this.mark = svg('g.mark');
    fill(this.drawing, this.axes(width, from, to), inside.map((it, number) => this.series(it.points, number)), this.mark);
  }

  scale(points, from, to, width) {
    const [left, right] = [EDGE.left, width - EDGE.right];
    const [top, bottom] = [EDGE.top, HEIGHT - EDGE.bottom];
    this.x = time => left + ((time - from) / Math.max(1, to - from)) * (right - left);
    const values = points.map(point => point.value).filter(value => value > 0);
    const most = values.length ? values.reduce((a, b) => Math.max(a, b)) : 1;
    if (this.log) {
      const least = values.length ? values.reduce((a, b) => Math.min(a, b)) : 0.001;
      const low = Math.floor(Math.log10(least));
      const high = Math.max(low + 1, Math.ceil(Math.log10(most)));
      const every = Math.ceil((high - low) / 4);
      this.ticks = [];
      for (let power = low; power <= high; power += every) this.ticks.push(10 ** power);
      this.y = value => bottom - ((Math.log10(Math.max(value, 10 ** low)) - low) / (high - low)) * (bottom - top);
      return;
    }
    const step = nice(Math.max(most, 1) / 3);
    const high = Math.ceil(Math.max(most, 1) / step) * step;
    this.ticks = [];
    for (let value = 0; value <= high + step / 2; value += step) this.ticks.push(value);
    this.y = value => bottom - (value / high) * (bottom - top);
  }

  axes(width, from, to) {
    const lines = this.ticks.map(value => [svg('line', { x1: EDGE.left, x2: width - EDGE.right, y1: this.y(value), y2: this.y(value) }),
      svg('text', { x: EDGE.left - 6, y: this.y(value) + 4, 'text-anchor': 'end' }, this.format(value))]);
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400].map(it => it * 1000);
    const step = steps.find(it => (to - from) / it <= Math.max(2, width / 110)) ?? 86400_000;
    const times = [];
    const zone = new Date(from).getTimezoneOffset() * 60_000;
    for (let time = Math.ceil((from - zone) / step) * step + zone; time <= to; time += step) {
      const text = clock(new Date(time));
      if (this.x(time) > EDGE.left + 14 && this.x(time) < width - 18) times.push(svg('text', { x: this.x(time), y: HEIGHT - 6, 'text-anchor': 'middle' }, step < 60_000 ? text : text.slice(0, 5)));
    }
    return svg('g.axes', lines, times);
  }

  series(points, number) {
    const at = point => [this.x(point.time).toFixed(1), this.y(point.value).toFixed(1)];
    const bottom = HEIGHT - EDGE.bottom;
    let path = '';
    if (this.kind === 'points') path = points.map(point => `M${at(point).join(' ')}h.01`).join('');
    if (this.kind === 'steps') {
      points.forEach((point, index) => {
        const [x, y] = at(point);
        path += index ? `H${x}V${y}` : `M${x} ${y}`;
      });
      if (points.length) path += `H${this.x(points.at(-1).until ?? points.at(-1).time).toFixed(1)}`;
    }
    if (this.kind === 'bars') {
      path = points.filter(point => point.value).map(point => {
        const [x, y] = at(point);
        const width = Math.max(2, this.x(point.until) - x - 1);
        return `M${x} ${bottom}V${Math.min(y, bottom - 2)}h${width.toFixed(1)}V${bottom}z`;
      }).join('');
    }
    return svg('path', { class: `series s${number}`, d: path });
  }

  point(event) {
    const { left, top } = this.drawing.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    const weight = this.kind === 'points' ? 1 : 0;
    let best = -1;
    let distance = Infinity;
    this.shown.forEach((point, index) => {
      const it = (point.x - x) ** 2 + weight * (point.y - y) ** 2;
      if (it < distance) [best, distance] = [index, it];
    });
    this.choose(best);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === 'Enter' && this.shown[this.at]) this.open(this.shown[this.at]);
    if (!step || !this.shown.length) return;
    event.preventDefault();
    event.stopPropagation();
    const from = this.at < 0 ? (step > 0 ? -1 : this.shown.length) : this.at;
    this.choose(Math.max(0, Math.min(this.shown.length - 1, from + step)));
  }

  choose(index) {
    this.at = index;
    const point = this.shown[index];
    this.tip.hidden = !point;
    if (!this.mark) return;
    fill(this.mark, point ? [svg('line', { x1: point.x, x2: point.x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }), svg('circle', { class: `s${point.number}`, cx: point.x, cy: point.y, r: 4 })] : null);
    if (!point) return;
    fill(this.tip, el('b', this.format(point.value)), ` ${point.series ?? ''}`, el('br'), moment(new Date(point.time)), point.label ? [el('br'), point.label] : null);
    const width = this.drawing.clientWidth;
    this.tip.style.left = `${Math.min(Math.max(point.x, 90), width - 90)}px`;
    this.tip.style.top = `${point.y}px`;
    this.tip.classList.toggle('below', point.y < 70);
  }
}

/// 1, 2 or 5 times a power of ten, and whole.
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 5, 10].find(it => it * power >= value) * power;
  return Math.max(1, step);
}

/// How many of these times fall into each of `number` equal spans.
export function buckets(times, from, to, number) {
  const span = (to - from) / number;
  const points = Array.from({ length: number }, (_, index) => ({ time: from + index * span, until: from + (index + 1) * span, value: 0 }));
  for (const time of times) {
    const index = Math.floor((time - from) / span);
    if (index >= 0 && index < number) points[index].value += 1;
  }
  return points;
}
