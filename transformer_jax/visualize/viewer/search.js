// The search: hypotheses, their candidates, and the tree of everything that was tried.

const COLUMN = 92; // pixels per step in the tree
const ROW = 24;

/** A recorded search, as `search.py` describes it. */
class Search {
  constructor(search, moved) {
    this.search = search;
    this.moved = moved; // called with the step
    this.step = 0;
    this.children = search.nodes.map(() => new Map());
    search.nodes.forEach(([parent, piece], node) => {
      if (parent >= 0) this.children[parent].set(piece, node);
    });
    const last = search.steps[search.steps.length - 1];
    this.best = last.finished.length ? last.finished[0][0] : 0;
    this.bestPath = new Set(this.path(this.best));
    this.slider = el("input", {
      type: "range",
      min: 0,
      max: search.steps.length - 1,
      value: 0,
      "aria-label": "Step of the search",
      oninput: (event) => this.go(+event.target.value),
    });
    this.count = el("output", {});
    const end = search.steps.length - 1;
    this.bar = el(
      "div",
      { class: "steps", role: "group", "aria-label": "Steps of the search" },
      this.button("First step", "M4 3v10M13 3L6 8L13 13Z", () => 0),
      this.button("Step back", "M11 3L4 8L11 13Z", () => this.step - 1),
      this.slider,
      this.button("Next step", "M5 3L12 8L5 13Z", () => this.step + 1),
      this.button("Last step", "M3 3L10 8L3 13ZM12 3v10", () => end),
      this.count,
    );
    this.living = el("ol", { class: "hypotheses", "aria-label": "The beam: hypotheses that go on" });
    this.finished = el("ol", { class: "hypotheses", "aria-label": "Finished hypotheses" });
    this.plot = el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "The search as a tree" });
    this.note = el("p", { class: "hint" }, this.about());
    this.ended = el("div", {}, el("h4", {}, "Finished"), this.finished);
    this.columns = el("div", {}, el("div", {}, el("h4", {}, this.title()), this.living), this.ended);
    this.root = el(
      "div",
      { class: "search" },
      this.columns,
      this.note,
      el("h4", {}, "Everything that was tried so far"),
      this.plot,
    );
  }

  button(label, shape, step) {
    const icon = el("svg", { width: 16, height: 16, "aria-hidden": "true" }, el("path", { d: shape }));
    return el("button", { type: "button", "aria-label": label, onclick: () => this.go(step()) }, icon);
  }

  title() {
    const { sample, beams } = this.search;
    return sample ? "Being drawn" : beams > 1 ? `The beam (${beams} wide)` : "Greedy: the likeliest";
  }

  about() {
    const { sample, beams, alpha } = this.search;
    if (sample) return "Each piece is drawn at random. Bars show the model's own probabilities.";
    if (beams === 1) return "The likeliest piece is written at each step.";
    return (
      "Of all candidates the ones with the highest total log-probability stay. " +
      `Finished ones are ranked by it over ((5 + length) / 6)^${alpha}.`
    );
  }

  /** Return the nodes from the root to a node. */
  path(node) {
    const found = [];
    for (let at = node; at > 0; at = this.search.nodes[at][0]) found.unshift(at);
    return [0, ...found];
  }

  pieceOf(node) {
    return this.search.pieces[this.search.nodes[node][1]];
  }

  /** Return the pieces of a hypothesis, including a given prefix. */
  textBefore(node) {
    const own = this.path(node).slice(1).map((n) => this.pieceOf(n));
    return [...this.search.prefix, ...own].filter((piece) => piece !== "</s>");
  }

  go(step) {
    this.step = Math.max(0, Math.min(this.search.steps.length - 1, step));
    this.draw();
    this.moved(this.step);
    announce(`${this.count.textContent}. ${this.spoken()}`);
  }

  spoken() {
    const [first] = this.search.steps[this.step].living;
    if (!first) return "The search has ended.";
    const [piece, gain] = first[1][0];
    const written = `“\u2068${textOf(this.textBefore(first[0]))}\u2069”`;
    return `${written}, then ${quote(this.search.pieces[piece])} with ${percent(Math.exp(gain))}`;
  }

  draw() {
    const { steps } = this.search;
    const { living, finished } = steps[this.step];
    this.slider.value = this.step;
    this.count.textContent = `Step ${this.step} of ${steps.length - 1}`;
    this.slider.setAttribute("aria-valuetext", this.count.textContent);
    const empty = el("li", { class: "hint" }, "None: the search has ended.");
    const cards = living.map(([node, candidates]) => this.card(node, candidates));
    this.living.replaceChildren(...(cards.length ? cards : [empty]));
    const ended = finished.map(([node, score]) => this.result(node, score));
    this.finished.replaceChildren(...ended);
    this.ended.hidden = !ended.length;
    this.columns.classList.toggle("columns", ended.length > 0);
    this.drawTree();
  }

  /** One hypothesis with its candidates. */
  card(node, candidates) {
    const total = this.search.nodes[node][2];
    const next = this.search.steps[this.step + 1];
    const going = new Set(next?.living.map(([n]) => n));
    const done = new Set(next?.finished.map(([n]) => n));
    const rows = candidates.map(([piece, gain]) => {
      const child = this.children[node].get(piece);
      const fate = going.has(child) ? "kept" : done.has(child) ? "finished" : "";
      return this.candidate(piece, gain, total + gain, fate);
    });
    const names = ["Next", "Probability", "Total", ""];
    const head = el("tr", {}, ...names.map((n) => el("th", { scope: "col" }, n)));
    return el(
      "li",
      { class: this.bestPath.has(node) ? "best" : "" },
      this.text(node, `log p = ${number(total, 2)}`),
      el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)),
    );
  }

  text(node, figure) {
    const pieces = this.textBefore(node);
    const written = el("span", { class: "text", dir: "auto" }, textOf(pieces) || "(nothing yet)");
    return el("p", {}, written, el("span", { class: "figure" }, figure));
  }

  candidate(piece, gain, total, fate) {
    const { shown, special } = readPiece(this.search.pieces[piece]);
    const share = Math.exp(gain);
    const bar = el("span", { class: "bar", style: { width: `${100 * share}%` } });
    return el(
      "tr",
      { class: fate },
      el("td", { dir: special ? "ltr" : "auto", class: "piece" }, shown),
      el("td", {}, el("span", { class: "track", "aria-hidden": "true" }, bar), percent(share)),
      el("td", {}, number(total, 2)),
      el("td", {}, fate ? `✓ ${fate}` : ""),
    );
  }

  result(node, score) {
    const total = this.search.nodes[node][2];
    const figures = `score ${number(score, 3)}, log p = ${number(total, 2)}`;
    return el("li", { class: node === this.best ? "best" : "" }, this.text(node, figures));
  }

  /** Place the nodes of the first steps, with the best hypothesis on top. */
  layOut() {
    let row = 0;
    const places = new Map();
    const visit = (node, depth) => {
      places.set(node, [12 + depth * COLUMN, 20 + row * ROW]);
      const below = depth < this.step ? [...this.children[node].values()] : [];
      below.sort((a, b) => this.bestPath.has(b) - this.bestPath.has(a) || a - b);
      for (const child of below) visit(child, depth + 1);
      if (!below.length) row += 1;
    };
    visit(0, 0);
    return [places, row * ROW + 16];
  }

  drawTree() {
    const { living, finished } = this.search.steps[this.step];
    const alive = new Set([...living, ...finished].flatMap(([node]) => this.path(node)));
    const ended = new Set(finished.map(([node]) => node));
    const label = "Tree of hypotheses; dashed branches were given up.";
    const [places, height] = this.layOut();
    const width = 12 + (this.step + 1) * COLUMN;
    const picture = el("svg", { width, height, role: "img", "aria-label": label });
    for (const [node, [x, y]] of places) {
      const [parent] = this.search.nodes[node];
      const state = this.bestPath.has(node) ? "best" : alive.has(node) ? "alive" : "dropped";
      if (parent >= 0) {
        const [px, py] = places.get(parent);
        const bend = py === y ? "" : `L${px} ${y - 8}Q${px} ${y} ${px + 8} ${y}`;
        picture.prepend(el("path", { class: state, d: `M${px} ${py}${bend}L${x} ${y}` }));
      }
      picture.append(el("circle", { class: state, cx: x, cy: y, r: ended.has(node) ? 5 : 3 }));
      const shown = node ? readPiece(this.pieceOf(node)).shown : "";
      const words = shown.length > 11 ? `${shown.slice(0, 10)}…` : shown;
      const place = { class: state, x: x - 7, y: y - 5, "text-anchor": "end", direction: "ltr" };
      picture.append(el("text", place, words));
    }
    this.plot.replaceChildren(picture);
    this.plot.scrollLeft = width;
  }
}
