// Finds text on the page whose contrast is below level AA (4.5, or 3 for large text): what it says, and the ratio.
(() => {
  const parse = text => {
    const numbers = text.match(/-?[\d.]+/g).map(Number);
    const scale = text.startsWith('color(') ? 255 : 1;
    return [...numbers.slice(0, 3).map(it => it * scale), numbers[3] ?? 1];
  };
  const over = (top, below) => top.slice(0, 3).map((it, index) => it * top[3] + below[index] * (1 - top[3]));
  const background = element => {
    const layers = [];
    for (let it = element; it; it = it.parentElement) layers.push(parse(getComputedStyle(it).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const light = color => {
    const [r, g, b] = color.map(it => it / 255).map(it => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility() || element.closest('svg, .unseen, .skip, option')) continue;
    const style = getComputedStyle(element);
    const below = background(element);
    const [a, b] = [light(over(parse(style.color), below)), light(below)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    if (ratio < needed) bad.push(`${element.className} "${node.data.trim().slice(0, 30)}": ${ratio.toFixed(2)}`);
  }
  return bad;
})()
