// The search: hypotheses, their candidates, and the tree of all that was tried.

const COLUMN = 92; // pixels of a step in the tree
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
    const move = (label, sign, by) =>
      el("button", { type: "button", "aria-label": label, onclick: () => this.go(by()) }, sign);
    const end = search.steps.length - 1;
    const bar = el(
      "div",
      { class: "steps", role: "group", "aria-label": "Steps of the search" },
      move("First step", "⏮", () => 0),
      move("Step back", "◀", () => this.step - 1),
      this.slider,
      move("Next step", "▶", () => this.step + 1),
      move("Last step", "⏭", () => end),
      this.count,
    );
    this.living = el("ol", { class: "hypotheses", "aria-label": "The beam: hypotheses that go on" });
    this.finished = el("ol", { class: "hypotheses", "aria-label": "Finished hypotheses" });
    this.plot = el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "The search as a tree" });
    this.note = el("p", { class: "hint" }, this.about());
    this.ended = el("div", {}, el("h4", {}, "Finished"), this.finished);
    this.root = el(
      "div",
      { class: "search" },
      bar,
      this.note,
      el("div", { class: "columns" }, el("div", {}, el("h4", {}, this.title()), this.living), this.ended),
      el("h4", {}, "Everything that was tried so far"),
      this.plot,
    );
    this.layOut();
  }

  title() {
    const { sample, beams } = this.search;
    return sample ? "Being drawn" : beams > 1 ? `The beam (${beams} wide)` : "Greedy: the likeliest";
  }

  about() {
    const { sample, beams, alpha } = this.search;
    if (sample) return "Each piece is drawn by chance. Bars: the model's own probabilities.";
    if (beams === 1) return "The likeliest piece is written each time.";
    return (
      "Of all candidates the ones with the highest total log-probability stay. " +
      `Finished ones are ranked by it over ((5 + length) / 6)^${alpha}.`
    );
  }

  /** Return the nodes from the beginning to one. */
  path(node) {
    const found = [];
    for (let at = node; at > 0; at = this.search.nodes[at][0]) found.unshift(at);
    return [0, ...found];
  }

  pieceOf(node) {
    return this.search.pieces[this.search.nodes[node][1]];
  }

  /** Return the pieces of a hypothesis, what was given before it included. */
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
    const expected = readPiece(this.search.pieces[piece]).spoken;
    return `“${textOf(this.textBefore(first[0]))}”, then “${expected}” with ${percent(Math.exp(gain))}`;
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
    this.drawTree();
  }

  /** One hypothesis with what may follow it. */
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
      this.text(node, `log p = ${total.toFixed(2)}`),
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
      el("td", {}, total.toFixed(2)),
      el("td", {}, fate ? `✓ ${fate}` : ""),
    );
  }

  result(node, score) {
    const total = this.search.nodes[node][2];
    const figures = `score ${score.toFixed(3)}, log p = ${total.toFixed(2)}`;
    return el("li", { class: node === this.best ? "best" : "" }, this.text(node, figures));
  }

  /** Give every node a place; the whole tree keeps it from step to step. */
  layOut() {
    let row = 0;
    this.places = [];
    const visit = (node, depth) => {
      const below = [...this.children[node].values()];
      below.sort((a, b) => this.bestPath.has(b) - this.bestPath.has(a) || a - b);
      const first = row;
      for (const child of below) visit(child, depth + 1);
      if (!below.length) row += 1;
      this.places[node] = [12 + depth * COLUMN, 14 + first * ROW];
    };
    visit(0, 0);
    this.depth = Math.max(...this.places.map(([x]) => x)) + COLUMN;
    this.height = row * ROW + 12;
  }

  drawTree() {
    const { living, finished } = this.search.steps[this.step];
    const alive = new Set([...living, ...finished].flatMap(([node]) => this.path(node)));
    const ended = new Set(finished.map(([node]) => node));
    const label = `${alive.size - 1} pieces are still in use; dashed branches were given up.`;
    const picture = el("svg", { width: this.depth, height: this.height, role: "img", "aria-label": label });
    this.search.nodes.forEach(([parent], node) => {
      if (this.path(node).length - 1 > this.step) return;
      const state = this.bestPath.has(node) ? "best" : alive.has(node) ? "alive" : "dropped";
      const [x, y] = this.places[node];
      if (parent >= 0) {
        const [px, py] = this.places[parent];
        const middle = px + 14;
        picture.append(el("path", { class: state, d: `M${px} ${py}L${middle} ${y}L${x} ${y}` }));
      }
      picture.append(el("circle", { class: state, cx: x, cy: y, r: ended.has(node) ? 5 : 3 }));
      const shown = node ? readPiece(this.pieceOf(node)).shown : "";
      const words = shown.length > 10 ? `${shown.slice(0, 9)}…` : shown;
      picture.append(el("text", { class: state, x: x + 7, y: y - 4 }, words));
    });
    this.plot.replaceChildren(picture);
    const reached = 12 + this.step * COLUMN + COLUMN;
    this.plot.scrollLeft = Math.max(0, reached - this.plot.clientWidth);
  }
}
