// Charts over time, with scales. Units are CSS pixels, so text has the same size at any width.

const LEFT = 52, RIGHT = 8, TOP = 8, BOTTOM = 20;
const TEXT = 12;
// minimum width of a chart: its margins and some space between them
export const LEAST_WIDTH = LEFT + RIGHT + TEXT;
const LABEL = 64;
const STEPS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800];

export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// the time zone of the viewer at a time
export function zone(time) {
  const minutes = -new Date(time * 1000).getTimezoneOffset();
  if (!minutes) return "UTC";
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `UTC${minutes < 0 ? "−" : "+"}${hours}${rest ? `:${String(rest).padStart(2, "0")}` : ""}`;
}

// step between the ticks of values: 1, 2 or 5 times a power of ten, so that `count` steps reach
// the largest value
function valueStep(most, count) {
  const unit = 10 ** Math.floor(Math.log10(most / count));
  return unit * [1, 2, 5, 10].find((times) => unit * times * count >= most * 0.999);
}

// the ticks of a time scale, at round times of the viewer's clock
function timeTicks(first, last, count) {
  const step = STEPS.find((one) => (last - first) / one <= count) ?? last - first;
  const ahead = -new Date(first * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let tick = Math.ceil((first + ahead) / step) * step - ahead; tick <= last; tick += step) ticks.push(tick);
  return ticks.length ? ticks : [last];
}

function timeLabel(time, length) {
  const date = new Date(time * 1000);
  if (length > 86400) return date.toLocaleDateString("en-GB", {day: "numeric", month: "short"});
  const two = {hour: "2-digit", minute: "2-digit"};
  return date.toLocaleTimeString("en-GB", length < 180 ? {...two, second: "2-digit"} : two);
}

export const percentage = (value) => `${Number((100 * value).toPrecision(3))} %`;

// A chart with scales. `write` converts values to text, by default ratios to percentages;
// `paint` returns the elements of the chart from the functions x and y, which scale times and
// values.
export function chart({label, width, height, first, last, most, count = 2, write = percentage}, paint) {
  const step = valueStep(most, count);
  const top = Math.ceil(most / step - 0.001) * step;
  const [right, bottom] = [width - RIGHT, height - BOTTOM];
  const x = (time) => LEFT + (right - LEFT) * (last > first ? (time - first) / (last - first) : 1);
  const y = (value) => bottom - (bottom - TOP) * value / top;
  const scales = [];
  for (let value = 0; value <= top * 1.001; value += step) {
    const words = write(value);
    scales.push(
      draw("line", {class: "grid", x1: LEFT, x2: right, y1: y(value), y2: y(value)}),
      draw("text", {x: LEFT - 6, y: y(value) + TEXT / 3, "text-anchor": "end"}, words));
  }
  for (const tick of timeTicks(first, last, (right - LEFT) / LABEL)) {
    const words = timeLabel(tick, last - first);
    const half = words.length * TEXT * 0.3;
    const middle = Math.min(Math.max(x(tick), LEFT + half), width - half);
    scales.push(
      draw("line", {class: "tick", x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4}),
      draw("text", {x: middle, y: height - 3, "text-anchor": "middle"}, words));
  }
  scales.push(draw("text", {x: 0, y: height - 3}, zone(last)));
  const size = {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label};
  return draw("svg", size, ...paint(x, y, {bottom, top: TOP, left: LEFT, right}), ...scales);
}
