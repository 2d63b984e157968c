// Requests the activity every two seconds and shows it. Text from users is put into text nodes
// only.

import {LEAST_WIDTH, chart, draw, zone} from "./charts.js";

const EVERY_MS = 2000;
const SLOWEST_MS = 15000;
// after this time without a response, the shown data is marked as out of date
const LATE_MS = 6000;
const ROWS = 12;
const TOKEN = "sfq-token";
const STATUS = {online: "Online", draining: "Draining", maintenance: "Maintenance", closed: "Closed", offline: "Offline"};
// how a minute of the utilisation is described by the QPU's status, in addition to "busy"
const MINUTES = {open: "idle", maintenance: "maintenance", draining: "draining", closed: "closed", none: "service not running"};
const VALUES = {
  control_error: "Control error, of the couplers' range",
  readout_false_one: "Read-out error, 0 read as 1",
  readout_false_zero: "Read-out error, 1 read as 0",
  gate_error_one_qubit: "Error of gates of one qubit",
  gate_error_two_qubits: "Error of gates of two qubits",
  t1_seconds: "Relaxation time T1",
  t2_seconds: "Dephasing time T2",
};
const ENDS = {Completed: "✓ Completed", Failed: "✗ Failed", Cancelled: "⊘ Cancelled"};
const $ = (id) => document.getElementById(id);

const state = {etag: "", told: null, all: false, ahead: 0, answered: 0, failures: 0, timer: 0, asking: null};

// ---- making elements

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// text from users may run from right to left, and may be long
const foreign = (text) => make("bdi", {title: text}, text);

function write(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

function notice(id, text) {
  $(id).hidden = !text;
  write(id, text);
}

// renders a part only if it has changed, so as not to interrupt a selection or a screen reader
const shown = new Map();
function show(id, content, render) {
  const key = JSON.stringify(content);
  if (shown.get(id) === key) return;
  shown.set(id, key);
  render();
}

// ---- words

// time by the service's clock; while the service does not respond, that of the last response
const now = () => (isLive() ? Date.now() : state.answered) / 1000 + state.ahead;
const isLive = () => document.body.dataset.link === "live";
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const percent = (part) => `${Math.round(part * 100)} %`;
const precisely = (part) => `${Number((part * 100).toPrecision(2))} %`;
const microseconds = (time) => `${Number((time * 1e6).toPrecision(3))} µs`;
const named = (value) => VALUES[value] ?? value.replaceAll("_", " ");
const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1);

const seconds = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");

const hoursOf = (date) => date.toLocaleTimeString("en-GB", {hour: "2-digit", minute: "2-digit"});

function clock(time) {
  const date = new Date(time * 1000);
  const today = date.toDateString() === new Date().toDateString();
  const hours = hoursOf(date);
  if (today) return hours;
  const year = date.getFullYear() === new Date().getFullYear() ? {} : {year: "numeric"};
  return `${date.toLocaleDateString("en-GB", {day: "numeric", month: "short", ...year})} ${hours}`;
}

function range(starts, ends) {
  if (ends === null) return `from ${clock(starts)} until the QPU is opened`;
  const [from, to] = [starts, ends].map((time) => new Date(time * 1000));
  const end = from.toDateString() === to.toDateString() ? hoursOf(to) : clock(ends);
  return `from ${clock(starts)} until ${end}`;
}

function used(job) {
  const words = [`${span(job.seconds)} on the QPU`];
  if (job.attempt > 1) words.push(`${span(job.lost_seconds)} in lost attempts`);
  if (job.cost !== null) words.push(`cost ${job.cost.toPrecision(3)}`);
  return words.join(" · ");
}

function span(seconds) {
  if (seconds < 1) return "< 1 s";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

// splits the purpose of a workflow's step into the step and the run
function purpose(text) {
  const [, run, step] = text.match(/^([0-9][^:]*Z-[0-9][^:]*):(\/.*)$/s) ?? [];
  return step ? [step, `run ${run}`] : [text, ""];
}

const title = (job) => foreign(job.label ? purpose(job.label)[0] : `Job ${job.short_id}`);

function details(job) {
  const words = [job.short_id, job.class, plural(job.shots, "shot"), job.kind];
  if (state.told.sees === "all") words.splice(2, 0, job.user);
  if (job.attempt > 1) words.push(`attempt ${job.attempt}`);
  return (job.label ? words : words.slice(1)).join(" · ");
}

function classes(others) {
  const told = Object.entries(others.classes).map(([name, jobs]) => `${jobs} ${name}`);
  const known = Object.values(others.classes).reduce((sum, jobs) => sum + jobs, 0);
  const words = told.length ? [`${told.join(", ")} ${known === 1 ? "job" : "jobs"} of other users`] : [];
  if (others.jobs > known) words.push(`${plural(others.jobs - known, known ? "further job" : "job")}, not listed`);
  return words.join("; ");
}

// ---- the parts of the page

// during a maintenance window, shows "maintenance" even if an operator has closed the QPU
function statusOf({status, windows}) {
  const inWindow = windows.some(({starts}) => starts <= now());
  return inWindow && (status === "draining" || status === "closed") ? "maintenance" : status;
}

function showDevice(device) {
  const status = statusOf(device);
  document.title = `${device.name}: ${status}`;
  write("name", device.name);
  const lacks = device.out_of_service ? ` (${device.out_of_service} out of service)` : "";
  write("kind", `${device.technology} · ${plural(device.qubits, "qubit")}${lacks}`);
  $("status").dataset.status = status;
  write("status", STATUS[status] ?? status);
  showReason(device);
  show("maintenance", [device.windows, status], () => showWindows(device.windows));
}

// the reason is also shown if the service does not respond, with the time of the last response
function showReason(device) {
  const reason = device.in_maintenance ? "" : sentence(device.reason || device.trouble);
  const by = device.closed_by ? ` (${STATUS[statusOf(device)].toLowerCase()} by ${device.closed_by})` : "";
  notice("reason", reason && [reason + by, asOf()].filter(Boolean).join(" · "));
}

const asOf = () => (isLive() || !state.told ? "" : `as of ${seconds(now())}`);

function showWindows(windows) {
  $("maintenance").hidden = !windows.length;
  $("maintenance").replaceChildren(...windows.map(({starts, ends, message}) => {
    const words = `${starts <= now() ? "In maintenance" : "Maintenance planned"} ${range(starts, ends)}`;
    const mark = asOf() ? [` · ${asOf()}`] : [];
    return make("li", {}, words, ...(message ? [": ", foreign(message)] : []), ...mark);
  }));
}

function showRunning(running) {
  const box = $("running");
  if (running === null) {
    const status = statusOf(state.told.device);
    const words = {online: "idle", maintenance: "in maintenance"}[status] ?? status;
    box.replaceChildren(make("p", {}, `None: the QPU is ${words}`));
    return;
  }
  if (!running.id) {
    const [name] = Object.keys(running.classes);
    box.replaceChildren(make("strong", {}, `A ${name} job of another user`), make("p", {}, "Only its owner and admins see its details."));
    if (state.told.sees === "counts") box.firstChild.textContent = `A ${name} job`;
    return;
  }
  box.replaceChildren(
    make("strong", {"data-job": running.id}, title(running)),
    make("p", {}, details(running)),
    make("progress", {"aria-label": "Expected progress", max: "1", value: "0"}),
    make("p", {id: "since"}),
  );
  tick();
}

// hatched, since colours alone would not distinguish the kinds of minutes
const fillOf = (kind) => (["busy", "open"].includes(kind) ? {class: kind} : {fill: `url(#${kind}-hatch)`});

function showUse({until, minutes, statuses, mean}) {
  const count = minutes.length;
  const begin = (minute) => until - (count - 1 - minute) * 60;
  const known = minutes.filter((part) => part !== null);
  write("mean", known.length ? percent(mean) : "–");
  const covered = known.length < count ? `, over the ${plural(known.length, "minute")} that the service ran` : "";
  write("covered", `busy on average${covered}`);
  // a minute without a recorded status counts as open
  const kinds = minutes.map((part, minute) => (part === null ? "none" : statuses[minute] ?? "open"));
  const found = Object.keys(MINUTES).filter((kind) => kinds.includes(kind));
  const others = found.filter((kind) => kind !== "open").map((kind) =>
    `; ${MINUTES[kind]} in ${plural(kinds.filter((one) => one === kind).length, "minute")}`);
  const extent = known.length ? `: ${percent(mean)} on average, ${percent(Math.min(...known))} at least, ${percent(Math.max(...known))} at most` : "";
  const label = `Busy part of each minute since ${clock(begin(0))}${extent}${others.join("")}`;
  const size = {label, width: $("minutes").clientWidth, height: 120, first: begin(0), last: begin(count), most: 1};
  $("minutes").replaceChildren(chart(size, (x, y, {top, bottom}) => minutes.flatMap((part, minute) => {
    const [left, width] = [x(begin(minute)), x(begin(minute + 1)) - x(begin(minute))];
    const words = [clock(begin(minute)), part === null ? MINUTES.none : `${percent(part)} busy`];
    if (!["none", "open"].includes(kinds[minute])) words.push(MINUTES[kinds[minute]]);
    return [
      draw("rect", {class: "busy", x: left + 0.5, width: Math.max(width - 1, 1), y: y(part ?? 0), height: y(0) - y(part ?? 0)}),
      // drawn after the bar, so that both are visible
      draw("rect", {...fillOf(kinds[minute]), x: left, width, y: top, height: bottom - top}, draw("title", {}, words.join(", "))),
    ];
  })));
  $("minutes").append(legend(["busy", ...found].map((kind) => [
    draw("rect", {...fillOf(kind), width: 14, height: 14}), MINUTES[kind] ?? kind])));
}

function legend(entries) {
  return make("ul", {class: "legend"}, ...entries.map(([symbol, words]) =>
    make("li", {}, draw("svg", {width: 14, height: 14, "aria-hidden": "true"}, symbol), ` ${words}`)));
}

function showWaiting(waiting) {
  const total = Object.values(waiting).reduce((sum, jobs) => sum + jobs, 0);
  const names = [...new Set(["production", "test", "development", ...Object.keys(waiting)])];
  const pairs = [["waiting", total], ...names.map((name) => [name, waiting[name] ?? 0])];
  $("waiting").replaceChildren(...pairs.map(([name, jobs]) =>
    make("div", {"data-count": name}, make("dt", {}, name === "waiting" ? "pending" : name), make("dd", {}, String(jobs)))));
}

function showLine(told) {
  const hidden = Math.max(0, told.line.length - ROWS);
  const rows = (state.all ? told.line : told.line.slice(0, ROWS)).map(lineRow);
  if (!rows.length) {
    const total = Object.values(told.waiting).reduce((sum, jobs) => sum + jobs, 0);
    const words = total ? "Enter your token below to see your own jobs." : "No pending jobs.";
    rows.push(make("tr", {class: "empty"}, make("td", {colspan: "3"}, words)));
  }
  $("line").tBodies[0].replaceChildren(...rows);
  const more = $("more");
  more.hidden = !hidden;
  more.setAttribute("aria-expanded", String(state.all));
  write("more", state.all ? "Show fewer" : `Show ${hidden} more ${hidden === 1 ? "row" : "rows"}`);
}

const noteOf = ({note}) => (note ? [make("small", {}, foreign(note))] : []);

function lineRow(job) {
  if (!job.id) return make("tr", {class: "others"}, make("td"), make("td", {colspan: "2"}, classes(job)));
  return make("tr", {"data-job": job.id},
    make("td", {class: "number"}, String(job.position)),
    make("td", {}, title(job), make("small", {}, details(job)), ...noteOf(job)),
    make("td", {class: "when", ...(job.starts === null ? {} : {"data-starts": job.starts})}, job.starts === null ? "–" : ""));
}

function showEnded(jobs) {
  const rows = jobs.map((job) => make("tr", {"data-job": job.id},
    make("td", {}, title(job), make("small", {}, `${details(job)} · ${used(job)}`), ...noteOf(job)),
    make("td", {class: "when"}, ENDS[job.state] ?? job.state, make("small", {}, clock(job.ended)))));
  if (!rows.length) {
    const words = state.told.sees === "counts" ? "Enter your token below to see your own jobs." : "None yet.";
    rows.push(make("tr", {class: "empty"}, make("td", {colspan: "2"}, words)));
  }
  $("ended").tBodies[0].replaceChildren(...rows);
}

function showLeases(leases) {
  const rest = leases.held - leases.shown.length;
  const others = rest && leases.shown.length ? `; ${rest} by other users` : "";
  const waiting = leases.waiting ? `; ${plural(leases.waiting, "pending request")}` : "";
  write("held", `${leases.held} of ${leases.vqpus} held${others}${waiting}`);
  $("leases").hidden = !leases.shown.length;
  $("leases").tBodies[0].replaceChildren(...leases.shown.map((lease) => {
    const [name, run] = purpose(lease.job || lease.user);
    const more = [lease.class, lease.job && lease.user, lease.slurm_job_id && `Slurm job ${lease.slurm_job_id}`, run];
    if (lease.qpu_seconds) more.push(`${span(lease.qpu_seconds)} on the QPU`);
    return make("tr", {},
      make("td", {}, foreign(name), make("small", {}, more.filter(Boolean).join(" · "))),
      make("td", {class: "when"}, clock(lease.opened),
        make("small", {}, lease.ends === null ? "no end" : `ends ${clock(lease.ends)}`)));
  }));
}

function showCalibration(told) {
  if (!told) {
    write("calibration", "This device does not report its calibration.");
    $("values").replaceChildren();
    return;
  }
  write("calibration", `Calibrated ${clock(told.made)}`);
  notice("drift", told.alarms.length ? `Drift alarm: ${told.alarms.map(named).join("; ")}` : "");
  if (!told.values.length) {
    $("values").replaceChildren(make("p", {class: "empty"}, "This device reports no errors."));
    return;
  }
  $("values").replaceChildren(...told.values.map((value) => valueChart(value, told)), legend([
    [draw("path", {d: "M0 7H14"}), "error"],
    [draw("line", {class: "renewal", x1: 7, x2: 7, y2: 14}), "recalibrated"],
  ]));
}

function valueChart(value, {times, renewals}) {
  const [first, last] = [times[0], times.at(-1)];
  const most = Math.max(...value.history, 1e-9);
  const time = value.name.endsWith("_seconds");
  const words = time ? microseconds : precisely;
  const label = `${named(value.name)} since ${clock(first)}: from ${words(Math.min(...value.history))} to ` +
    `${words(most)}, now ${words(value.value)}; recalibrated ${plural(renewals.length, "time")}`;
  const size = {label, width: $("minutes").clientWidth, height: 90, first, last, most, ...(time && {write: microseconds})};
  return make("div", {class: "value"},
    make("b", {}, named(value.name)),
    make("b", {"data-value": value.name}, words(value.value)),
    make("div", {class: "chart"}, chart(size, (x, y, {left, top, bottom}) => [
      ...renewals.map((time) => draw("line", {class: "renewal", x1: x(time), x2: x(time), y1: top, y2: bottom})),
      // a single reading is drawn as a horizontal line
      draw("path", {d: (times.length > 1 ? "" : `M${left} ${y(value.value)}H${x(last)}`) +
        value.history.map((part, n) => `${n ? "L" : "M"}${x(times[n])} ${y(part)}`).join("")}),
    ])));
}

function showViewer(told) {
  const words = {
    counts: "Without a token only counts are shown.",
    own: `Signed in as ${told.viewer}: your own jobs are shown, others as counts.`,
    all: `Signed in as ${told.viewer}: all jobs are shown.`,
  };
  write("who", words[told.sees]);
  $("sign-in").hidden = told.sees !== "counts";
  $("sign-out").hidden = !sessionStorage.getItem(TOKEN);
}

function showQueue(told) {
  show("line", [told.line, told.waiting, state.all], () => showLine(told));
}

function showCharts(told) {
  const width = $("minutes").clientWidth;
  // nothing is drawn if there is no space, as in a window without width
  if (width < LEAST_WIDTH) return;
  show("use", [told.utilisation, width], () => showUse(told.utilisation));
  show("calibration", [told.calibration, width], () => showCalibration(told.calibration));
}

function showAll(told) {
  showDevice(told.device);
  show("running", [told.running, statusOf(told.device)], () => showRunning(told.running));
  showCharts(told);
  show("waiting", told.waiting, () => showWaiting(told.waiting));
  showQueue(told);
  show("ended", told.ended, () => showEnded(told.ended));
  show("leases", told.leases, () => showLeases(told.leases));
  show("viewer", [told.viewer, told.sees], () => showViewer(told));
  tick();
}

// updates the parts that change with time, without a new response
function tick() {
  if (isLive() && Date.now() - state.answered > LATE_MS) link("gone", "the service does not answer");
  if (isLive()) write("clock", seconds(now()));
  for (const cell of document.querySelectorAll("[data-starts]")) {
    const text = span(Number(cell.dataset.starts) - now());
    if (cell.textContent !== text) cell.textContent = text;
  }
  const running = state.told?.running;
  if (running?.id && $("since")) {
    const passed = Math.max(0, now() - running.started);
    const expected = Math.max(running.ends - running.started, 1e-9);
    document.querySelector("progress").value = Math.min(passed / expected, 1);
    const left = running.ends - now();
    write("since", `${span(passed)} on the QPU, ${left > 0 ? `about ${span(left)} left` : "longer than expected"}`);
  }
}

// ---- requests

function link(name, words) {
  document.body.dataset.link = name;
  const mark = asOf();
  write("word", isLive() ? "Live" : `${sentence(mark ? `${mark}, ${words}` : words)}.`);
  for (const heading of document.querySelectorAll("h2")) {
    heading.querySelector("small")?.remove();
    if (mark) heading.append(make("small", {}, ` ${mark}`));
  }
  if (isLive()) showDevice(state.told.device);
  else {
    if (mark) {
      showReason(state.told.device);
      show("maintenance", [state.told.device.windows, mark], () => showWindows(state.told.device.windows));
    }
    const word = name === "refused" ? "Refused" : "No answer";
    $("status").dataset.status = "offline";
    write("status", word);
    document.title = `${$("name").textContent}: ${word.toLowerCase()}`;
  }
  tick();
}

function hear() {
  state.failures = 0;
  state.answered = Date.now();
  if (!isLive()) link("live");
}

async function ask() {
  const token = sessionStorage.getItem(TOKEN);
  const headers = {};
  if (token) headers.Authorization = `Bearer ${token}`;
  if (state.etag) headers["If-None-Match"] = state.etag;
  const signal = AbortSignal.any([state.asking.signal, AbortSignal.timeout(10000)]);
  const answer = await fetch("v1/activity", {headers, cache: "no-store", signal});
  const date = Date.parse(answer.headers.get("Date"));
  // how far the service's clock, which is exact to the second, is ahead of the viewer's clock
  const ahead = (date - Date.now()) / 1000;
  if (Math.abs(ahead - state.ahead) > 2) state.ahead = ahead;
  if (answer.status === 304) {
    hear();
    return;
  }
  const told = await answer.json();
  if (answer.status === 401 && token) {
    forget(`Refused: ${told.detail}`);
    await ask();
    return;
  }
  if (!answer.ok) {
    const error = new Error(told.detail);
    error.wait = 1000 * Number(answer.headers.get("Retry-After"));
    throw error;
  }
  state.etag = answer.headers.get("ETag");
  state.told = told;
  hear();
  showAll(told);
}

async function look() {
  clearTimeout(state.timer);
  if (state.asking) return;
  state.asking = new AbortController();
  const mine = state.asking;
  let wait = EVERY_MS;
  try {
    await ask();
  } catch (error) {
    if (mine.signal.aborted) return;
    state.failures += 1;
    wait = Math.max(error.wait || 0, Math.min(SLOWEST_MS, EVERY_MS * 1.5 ** (state.failures - 1)));
    if (error.wait === undefined) link("gone", "the service does not answer");
    else link("refused", `the service refuses: ${error.message}`);
    // not in "word", which screen readers read aloud at each change
    write("clock", `Next attempt at ${seconds((Date.now() + wait) / 1000)}`);
  } finally {
    if (mine === state.asking) state.asking = null;
  }
  // not while the page is hidden; at a random time, so that viewers do not request all at once
  if (!document.hidden) state.timer = setTimeout(look, wait * (0.9 + 0.2 * Math.random()));
}

function lookAgain() {
  state.asking?.abort();
  state.asking = null;
  state.etag = "";
  look();
}

function forget(why = "") {
  sessionStorage.removeItem(TOKEN);
  state.etag = "";
  notice("refused", why);
  $("sign-in").hidden = false;
  $("sign-out").hidden = true;
}

$("more").addEventListener("click", () => {
  state.all = !state.all;
  showQueue(state.told);
  tick();
});
$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, $("token").value.trim());
  $("token").value = "";
  notice("refused", "");
  lookAgain();
});
$("sign-out").addEventListener("click", () => {
  forget();
  lookAgain();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  tick();
  look();
});
new ResizeObserver(() => state.told && showCharts(state.told)).observe($("minutes"));
const [place, offset] = [Intl.DateTimeFormat().resolvedOptions().timeZone, zone(Date.now() / 1000)];
write("zone", `Times in ${place === offset ? place : `${place} (${offset})`}`);
setInterval(tick, 1000);
look();
