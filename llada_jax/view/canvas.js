// The canvas as chips, in blocks, and the rows of a forward as a bar.
class CanvasView {
  constructor(parent, replay, onChoose) {
    this.replay = replay;
    const host = element(parent, "div", "canvas");
    this.blocks = new Map();
    this.chips = replay.tokens.map((place, position) => {
      const block = position < replay.origin && replay.origin > 0 ? -1 : replay.blockOf(position);
      if (!this.blocks.has(block))
        this.blocks.set(block, element(host, "span", block < 0 ? "" : "block"));
      const chip = element(this.blocks.get(block), "span", "chip");
      const text = replay.shown(place);
      chip.style.minWidth = chip.style.maxWidth = `calc(${Math.max(1, [...text].length)}ch + 2px)`;
      chip.dataset.position = position;
      if (text.endsWith("⏎")) element(this.blocks.get(block), "br");
      return chip;
    });
    host.addEventListener("mouseover", ({ target }) => {
      if (target.dataset.position !== undefined) onChoose(Number(target.dataset.position));
    });
    element(parent, "h3", "", "rows of this forward");
    this.bar = element(parent, "div", "rows");
    this.rowNames = element(parent, "div", "row-names");  // a narrow segment has no space for its name
  }

  draw(step, cells, showsGuesses, chosen) {
    const { replay } = this, { PROMPT, MASKED, VISIBLE } = replay.states;
    const now = replay.forward(step);
    this.chips.forEach((chip, position) => {
      const cell = cells[position], names = ["chip"];
      names.push({ [PROMPT]: "prompt", [MASKED]: "masked", [VISIBLE]: "visible" }[cell.state]
        || "stable");
      const inside = now && position >= now.start && position < now.stop;
      if (inside) names.push("inside");
      let text = replay.shown(cell.place);
      if (text === "∎") names.push("ended");
      if (cell.state === MASKED) {
        if (inside && replay.blockOf(position) > now.block) names.push("draft");
        if (cell.predicted && showsGuesses) {
          names.push("guess");
          text = replay.shown(cell.predicted.place);
        }
      } else if (cell.predicted) names.push(inside ? "shadow" : "refreshed");
      if (cell.changed) names.push("fresh");
      if (position === chosen) names.push("chosen");
      chip.className = names.join(" ");
      chip.textContent = text;
    });
    for (const [block, span] of this.blocks)
      if (block >= 0) span.className = now && block === now.block ? "block current" : "block";
    this.drawBar(now);
  }

  drawBar(now) {
    this.bar.replaceChildren();
    this.rowNames.replaceChildren();
    if (!now) return;
    const { start, stop, rows, shadow_rows, draft_rows, live_rows } = now;
    const beside = live_rows - (stop - start) - shadow_rows;
    const segments = [
      ["window", stop - start - draft_rows, ""], ["drafts", draft_rows, "drafts"],
      ["shadows", shadow_rows, "shadows"], ["refreshes", beside, "refreshes"],
      ["padding", rows - live_rows, "padding"],
    ];
    for (const [name, count, className] of segments) {
      if (count <= 0) continue;
      element(this.bar, "span", className).style.flexGrow = count;
      const label = element(this.rowNames, "span");
      element(label, "i", className);
      label.append(`${name} ${count}`);
    }
  }
}

function aboutOf({ model, sampler }) {
  const staged = sampler.accept === "staged";
  const settings = Object.entries(sampler).filter(([name, value]) =>
    value !== null && value !== 0 && (staged || !name.startsWith("theta")));
  return `${model.family}, ${model.n_layers} layers of width ${model.width}: `
    + settings.map(([name, value]) => `${name} ${value}`).join(", ");
}

function statusOf(replay, step, cells) {
  const { MASKED, PROMPT } = replay.states, now = replay.forward(step);
  const tokens = cells.filter(({ state }) => state !== MASKED && state !== PROMPT).length;
  const told = [`forward ${step} of ${replay.count}`, `${tokens} of ${replay.masked.length} tokens`];
  if (now) {
    told.push(`${(tokens / step).toFixed(2)} a forward`, `block ${now.block}`,
      `window ${now.start} to ${now.stop - 1}`, `${now.cache_length} cached positions read`,
      `${now.head_rows} scored`);
    if (now.refreshed) told.push(`${now.refreshed} refreshed`);
    if (now.seconds) told.push(`${(1000 * now.seconds).toFixed(1)} ms here`);
  }
  return told.join(" · ");
}
