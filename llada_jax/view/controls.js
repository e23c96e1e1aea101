// The slider and the keyboard, which move one or two runs to the same forward pass.
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const state = { step: 0, chosen: null, timer: null };

const views = data.runs.map((run) => {
  const section = element(byId("runs"), "section"), replay = new Replay(run);
  element(section, "h2", "", run.title);
  element(section, "p", "about", aboutOf(run));
  const status = element(section, "p", "status");
  const choose = (position) => { state.chosen = position; draw(); };
  return {
    run, replay, status,
    canvas: new CanvasView(section, replay, choose),
    inspector: new InspectorView(section, replay),
    history: new HistoryView(section, replay, goTo, choose),
    phone: new PhoneView(section),
  };
});
const longest = Math.max(...views.map(({ replay }) => replay.count));
const phoneOf = (run) => (run.phones || []).find(({ name }) => name === byId("phone").value);
for (const name of new Set(data.runs.flatMap(({ phones }) => phones || []).map(({ name }) => name)))
  byId("phone").add(new Option(name));
const hasPhones = byId("phone").length > 0;
byId("phone-label").hidden = byId("clock-label").hidden = !hasPhones;
byId("clock-label").hidden ||= views.length < 2;

// In phone time, each run is shown at the moment at which the slowest one ends its forward pass.
function slowest() {
  const known = views.filter(({ run }) => phoneOf(run));
  return known.reduce((a, b) =>
    PhoneView.ends(phoneOf(a.run)).at(-1) >= PhoneView.ends(phoneOf(b.run)).at(-1) ? a : b);
}

function stepOf({ run, replay }) {
  const phone = phoneOf(run);
  if (!byId("clock").checked || !phone) return Math.min(state.step, replay.count);
  const now = PhoneView.ends(phoneOf(slowest().run))[state.step] ?? Infinity;
  return PhoneView.ends(phone).findLastIndex((end) => end <= now + 1e-9);
}

function draw() {
  const last = byId("clock").checked && hasPhones ? slowest().replay.count : longest;
  state.step = Math.max(0, Math.min(last, state.step));
  byId("scrub").max = last;
  byId("scrub").value = state.step;
  byId("counter").textContent = `forward ${state.step} / ${last}`;
  for (const view of views) {
    const step = stepOf(view), cells = view.replay.at(step);
    view.status.textContent = statusOf(view.replay, step, cells);
    view.canvas.draw(step, cells, byId("guesses").checked, state.chosen);
    view.inspector.draw(step, cells, state.chosen);
    view.history.draw(step);
    view.phone.draw(phoneOf(view.run), step);
  }
}

function goTo(step) {
  state.step = step;
  draw();
}

function pause() {
  clearInterval(state.timer);
  state.timer = null;
  byId("play").textContent = "▶ play";
}

function play() {
  if (state.timer) return pause();
  if (state.step >= byId("scrub").max) state.step = 0;
  byId("play").textContent = "❚❚ pause";
  const wait = Math.min(500, Math.max(30, 8000 / byId("scrub").max));
  state.timer = setInterval(() => {
    goTo(state.step + 1);
    if (state.step >= byId("scrub").max) pause();
  }, wait);
}

function turnDark() {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark"
    || (!document.documentElement.style.colorScheme && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.style.colorScheme = isDark ? "light" : "dark";
  for (const { history } of views) history.paint();
}

function toggle(id) {
  if (!byId(id).parentElement.hidden) byId(id).click();
}

const most = Math.max(...views.map(({ replay }) => replay.tokens.length)) - 1;
const move = (by) => {
  state.chosen = Math.max(0, Math.min(most, (state.chosen ?? views[0].replay.masked[0] - by) + by));
  draw();
};
const KEYS = {
  ArrowLeft: (event) => goTo(state.step - (event.shiftKey ? 10 : 1)),
  ArrowRight: (event) => goTo(state.step + (event.shiftKey ? 10 : 1)),
  Home: () => goTo(0),
  End: () => goTo(longest),
  " ": play,
  "[": () => move(-1),
  "]": () => move(1),
  p: () => toggle("guesses"),
  t: () => toggle("clock"),
  d: turnDark,
};
document.addEventListener("keydown", (event) => {
  if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.tagName === "SELECT") return;
  event.preventDefault();
  KEYS[event.key](event);
});
byId("scrub").addEventListener("input", () => goTo(Number(byId("scrub").value)));
byId("back").addEventListener("click", () => goTo(state.step - 1));
byId("on").addEventListener("click", () => goTo(state.step + 1));
byId("play").addEventListener("click", play);
byId("dark").addEventListener("click", turnDark);
addEventListener("resize", draw);
for (const id of ["guesses", "clock", "phone"]) byId(id).addEventListener("change", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  views.forEach(({ history }) => history.paint()));
for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
  if (name === "forward") state.step = Number(value) || 0;
  if (name === "position") state.chosen = Number(value) || 0;
  if (name === "phone") byId("phone").value = value;
}
draw();
