// One position: its predictions over time, with their confidence.
const NEAR = 40; // events that are listed before the forward at hand, and behind it
const MOST_DOTS = 120;

class InspectorView {
  constructor(parent, replay) {
    this.replay = replay;
    element(parent, "h3", "", "position (hover, or [ and ])");
    this.host = element(parent, "div", "inspector");
  }

  draw(step, cells, position) {
    const { replay, host } = this, cell = cells[position];
    host.replaceChildren();
    if (!cell) return;
    const state = Object.keys(replay.states).find((name) => replay.states[name] === cell.state);
    const block = replay.blockOf(position), said = [`position ${position}`];
    said.push(state.toLowerCase());
    if (state !== "PROMPT") said.push(`block ${block}`);
    const place = cell.place ?? cell.predicted?.place;
    if (place !== undefined)
      said.push(`${cell.place === null ? "predicted " : ""}${JSON.stringify(replay.pieces[place])}`
        + ` (${replay.ids[place]})`);
    element(host, "p", "", said.join(" · "));
    const story = replay.storyOf(position);
    if (!story.length) return;
    const list = element(host, "ol");
    const here = story.findLastIndex(({ forward }) => forward <= step);
    for (const event of story.slice(Math.max(0, here - NEAR), here + NEAR)) {
      const line = element(list, "li", event.forward === step ? "now" : event.forward > step
        ? "later" : "");
      const what = replay.names[event.kind].toLowerCase().padEnd(8);
      line.textContent = `${String(event.forward).padStart(4)} ${what} `
        + `${event.confidence.toFixed(3)} ${replay.shown(event.place)}`;
      if (event.forward <= step) list.scrollTop = line.offsetTop - list.offsetTop - 30;
    }
    this.plot(story, step);
  }

  plot(story, step) {
    const plot = drawn(this.host, "svg", {}), width = plot.getBoundingClientRect().width - 8;
    const x = (forward) => 28 + ((width - 28) * forward) / this.replay.count;
    const y = (confidence) => 86 - 78 * confidence;
    for (const level of [0, 0.5, 1]) {
      drawn(plot, "line", { x1: 28, x2: width, y1: y(level), y2: y(level) });
      drawn(plot, "text", { x: 2, y: y(level) + 4 }, level.toFixed(1));
    }
    drawn(plot, "line", { class: "at", x1: x(step), x2: x(step), y1: 4, y2: 90 });
    const measured = story.filter(({ confidence }) => confidence > 0);
    drawn(plot, "polyline", {
      points: measured.map((each) => `${x(each.forward)},${y(each.confidence)}`).join(" "),
    });
    if (measured.length > MOST_DOTS) return;
    for (const each of measured)
      drawn(plot, "circle", { cx: x(each.forward), cy: y(each.confidence), r: 2 });
  }
}
