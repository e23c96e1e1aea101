// The canvas of a run after any number of its forwards.
class Replay {
  constructor(run) {
    Object.assign(this, run);
    this.count = this.events.length;
    this.names = Object.fromEntries(Object.entries(run.kinds).map(([name, kind]) => [kind, name]));
    this.isMasked = new Set(run.masked);
    this.ended = new Set(run.ends);
  }

  *eventsOf(forward) {
    const flat = this.events[forward];
    for (let i = 0; i < flat.length; i += 5) {
      yield { position: flat[i], kind: flat[i + 1], state: flat[i + 2], place: flat[i + 3],
        confidence: flat[i + 4] / 1000 };
    }
  }

  // The cells before the first forward, and after each: the same ones, changed in place.
  *frames() {
    const { MASKED, PROMPT } = this.states, SCORE = this.kinds.SCORE;
    const cells = this.tokens.map((place, position) =>
      this.isMasked.has(position) ? { state: MASKED, place: null, confidence: 0 }
        : { state: PROMPT, place, confidence: 1 });
    yield cells;
    for (let forward = 0; forward < this.count; forward++) {
      for (const cell of cells) cell.changed = cell.predicted = undefined;
      for (const event of this.eventsOf(forward)) {
        const cell = cells[event.position];
        if (event.kind === SCORE) {
          cell.predicted = event;
          continue;
        }
        if (event.state >= 0) cell.state = event.state;
        cell.place = event.state === MASKED ? null : event.place;
        cell.confidence = event.confidence;
        cell.changed = event;
      }
      yield cells;
    }
  }

  at(step) {
    for (const cells of this.frames())
      if (step-- === 0) return cells;
  }

  // What became of one position, forward by forward.
  storyOf(position) {
    this.stories ??= this.everyStory();
    return this.stories[position];
  }

  everyStory() {
    const stories = this.tokens.map(() => []);
    this.events.forEach((_, forward) => {
      for (const event of this.eventsOf(forward))
        stories[event.position].push({ forward: forward + 1, ...event });
    });
    return stories;
  }

  // Numbers of the forward that led to a step; none led to the first.
  forward(step) {
    if (step === 0) return null;
    return Object.fromEntries(Object.entries(this.forwards).map(
      ([name, values]) => [name, values && values[step - 1]]));
  }

  blockOf(position) {
    return Math.floor((position - this.origin) / this.block_length);
  }

  shown(place) {
    if (place === null) return "";
    if (this.ended.has(this.ids[place])) return "∎";
    return this.pieces[place].replaceAll("\n", "⏎").replaceAll("\t", " ");
  }
}

function element(parent, tag, className = "", text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  parent.append(made);
  return made;
}

function drawn(parent, tag, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  parent.append(made);
  return made;
}
