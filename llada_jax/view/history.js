// Every forward as a line of pixels, one for each position: the whole run at a glance.
class HistoryView {
  constructor(parent, replay, onStep, onChoose) {
    this.replay = replay;
    element(parent, "h3", "", "all forwards, from top to bottom, by position");
    this.host = element(parent, "div", "history");
    this.canvas = element(this.host, "canvas");
    this.mark = element(this.host, "i");
    const places = (event) => {
      const box = this.host.getBoundingClientRect();
      const share = (at, from, size, count) =>
        Math.min(count - 1, Math.max(0, Math.floor((count * (at - from)) / size)));
      onChoose(share(event.clientX, box.left, box.width, replay.tokens.length));
      if (event.buttons & 1)
        onStep(1 + share(event.clientY, box.top, box.height, replay.count));
    };
    this.host.addEventListener("pointermove", places);
    this.host.addEventListener("pointerdown", places);
    this.paint();
  }

  paint() {
    const { replay } = this, width = replay.tokens.length, height = replay.count;
    const { PROMPT, MASKED, VISIBLE } = replay.states;
    Object.assign(this.canvas, { width, height });
    const line = Math.max(1, Math.min(14, Math.floor(300 / height)));
    this.canvas.style.height = `${Math.min(300, line * height)}px`;
    const pen = this.canvas.getContext("2d");
    const probe = element(this.host, "b");
    const colour = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    const colours = Object.fromEntries(["paper", "line", "masked", "draft", "visible-line", "npu",
      "fresh"].map((name) => [name, colour(name)]));
    probe.remove();
    let step = 0;
    for (const cells of replay.frames()) {
      const now = replay.forward(step++);
      if (now) cells.forEach((cell, position) => {
        const inside = position >= now.start && position < now.stop;
        let name = { [PROMPT]: "line", [MASKED]: "paper", [VISIBLE]: "visible-line" }[cell.state]
          || "npu";
        if (cell.state === MASKED && inside)
          name = replay.blockOf(position) > now.block ? "draft" : "masked";
        pen.globalAlpha = cell.state === PROMPT || cell.state === MASKED || inside ? 1 : 0.55;
        pen.fillStyle = colours[cell.changed ? "fresh" : name];
        pen.fillRect(position, step - 2, 1, 1);
      });
    }
  }

  draw(step) {
    const share = 100 / this.replay.count;
    this.mark.hidden = step === 0;
    this.mark.style.top = `${share * (step - 1)}%`;
    this.mark.style.height = `${share}%`;
  }
}
