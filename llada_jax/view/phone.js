// The modelled time on a phone: of the whole run, and of the current forward pass lane by lane.
const LANES = { npu: "NPU", staging: "staging", cpu: "CPU" };

class PhoneView {
  constructor(parent) {
    this.host = element(parent, "div", "phone");
    this.title = element(this.host, "h3");
    this.strip = drawn(this.host, "svg", { height: 20 });
    this.detail = element(this.host, "h3");
    this.lanes = drawn(this.host, "svg", { height: 84 });
  }

  // Seconds from the start to the end of each forward, behind a 0.
  static ends(phone) {
    const ends = [0];
    for (const kind of phone.order) ends.push(ends.at(-1) + phone.kinds[kind].seconds);
    return ends;
  }

  draw(phone, step) {
    this.host.hidden = !phone;
    if (!phone) return;
    const ends = PhoneView.ends(phone), whole = ends.at(-1), until = Math.min(step, ends.length - 1);
    const [low, high] = phone.interval.map((each) => each.toFixed(2));
    this.title.textContent = `${phone.name}, modelled: ${ends[until].toFixed(2)} s of `
      + `${whole.toFixed(2)} s (${low} to ${high})`;
    this.width = this.host.clientWidth;
    this.strip.replaceChildren();
    for (let index = 0; index < phone.order.length; index++) {
      const name = index + 1 === until ? "at" : index < until ? "past" : "future";
      drawn(this.strip, "rect", { class: name, x: (this.width * ends[index]) / whole, y: 2, height: 16,
        width: Math.max(0.5, (this.width * (ends[index + 1] - ends[index])) / whole - 1) });
    }
    this.lanes.replaceChildren();
    this.detail.textContent = "";
    if (until) this.drawLanes(phone.kinds[phone.order[until - 1]], until);
  }

  drawLanes({ seconds, tasks }, step) {
    this.detail.textContent = `forward ${step}: ${(1000 * seconds).toFixed(1)} ms`;
    const scale = (this.width - 58) / (1000 * seconds);
    Object.entries(LANES).forEach(([lane, title], number) => {
      const y = 4 + 27 * number;
      drawn(this.lanes, "text", { x: 2, y: y + 15 }, title);
      drawn(this.lanes, "line", { x1: 56, x2: this.width - 2, y1: y + 23, y2: y + 23 });
      for (const [name, at, start, length] of tasks) {
        if (at !== lane) continue;
        const rect = drawn(this.lanes, "rect", { class: lane, y, height: 21,
          x: 56 + scale * start,
          width: Math.max(0.4, scale * length - 0.4) });
        drawn(rect, "title", {}, `${name}: ${length} ms from ${start} ms`);
      }
    });
  }
}
