// Words: tokens shaded by their weight, and lines from the token in focus.

const LINES = 40; // most lines drawn
const FAINT = 0.02; // weights below this have no line

/** The tokens of one kind of attention: one list, or queries above keys. */
class Tokens {
  /** `pane` has queries, keys, same, focus and the functions that change it. */
  constructor(pane) {
    this.pane = pane;
    this.lines = el("svg", { class: "lines", "aria-hidden": "true" });
    this.root = el("div", { class: "stage" });
    this.root.addEventListener("mouseover", (event) => this.point(event));
    this.root.addEventListener("mouseleave", () => pane.unpoint());
    this.root.addEventListener("focusin", (event) => this.point(event, true));
    this.root.addEventListener("click", (event) => this.pin(event));
    this.root.addEventListener("keydown", (event) => this.press(event));
  }

  /** Lay out the tokens again. */
  build() {
    const { pane } = this;
    this.lists = {};
    const parts = pane.same
      ? [this.list("queries", pane.caption())]
      : [
          this.list("queries", "What is written: these words look"),
          this.list("keys", "What was read: these are looked at"),
        ];
    this.root.replaceChildren(this.lines, ...parts);
    this.root.classList.toggle("same", pane.same);
  }

  list(side, label) {
    const { pane } = this;
    const picture = pane.pictureOf(side);
    const chips = pane[side].map((piece, i) => this.chip(side, i, piece, picture));
    this.lists[side] = chips;
    const box = el(
      "div",
      { role: "listbox", "aria-label": label, class: "tokens", dir: "auto" },
      ...chips.slice(0, picture ? picture.special : undefined),
    );
    if (picture) box.append(picture.grid(chips.slice(picture.special)));
    const title = el("p", { class: "caption", "aria-hidden": "true" }, label);
    return el("div", { class: `side ${side}` }, ...(side === "keys" ? [box, title] : [title, box]));
  }

  chip(side, index, piece, picture) {
    const { shown, special, starts, spoken } = readPiece(piece);
    const patch = picture && index >= picture.special;
    return el(
      "span",
      {
        role: "option",
        class: `token${starts ? " starts" : ""}${special ? " special" : ""}${patch ? " patch" : ""}`,
        // Markers such as <s> must not set the direction of the text.
        dir: special ? "ltr" : null,
        tabindex: index === 0 ? 0 : -1,
        "aria-selected": "false",
        "aria-label": patch ? `patch ${piece}` : spoken,
        "data-side": side,
        "data-index": index,
      },
      patch ? "" : shown,
    );
  }

  /** Shade every token by its weight for the token in focus. */
  shade(values) {
    const { side, index } = this.pane.focus ?? {};
    const other = this.pane.same ? "queries" : side === "queries" ? "keys" : "queries";
    // With many patches all weights are small, so the largest gets the full colour.
    const full = values && this.pane.shown ? Math.max(...values) : 1;
    const turn = isDark() ? 0.57 : 0.82; // both text colours are readable there
    for (const [name, chips] of Object.entries(this.lists)) {
      chips.forEach((chip, i) => {
        const strength = values && name === other ? Math.sqrt(values[i] / full) : 0;
        chip.style.setProperty("--w", strength.toFixed(3));
        chip.classList.toggle("strong", strength > turn);
        const chosen = name === side && i === index;
        chip.classList.toggle("chosen", chosen);
        chip.setAttribute("aria-selected", chosen);
        if (name === side) chip.tabIndex = chosen ? 0 : -1;
      });
    }
    this.connect(values, side, index, other);
  }

  /** Draw lines from the token in focus. */
  connect(values, side, index, other) {
    const box = this.root.getBoundingClientRect();
    this.lines.setAttribute("width", box.width);
    this.lines.setAttribute("height", box.height);
    this.lines.replaceChildren();
    if (!values || this.lists[side][index].classList.contains("patch")) return;
    const from = this.lists[side][index].getBoundingClientRect();
    for (const i of largest(values, LINES).reverse()) {
      const chip = this.lists[other][i];
      const itself = this.pane.same && i === index;
      if (values[i] < FAINT || itself || chip.classList.contains("patch")) continue;
      const shape = route(from, chip.getBoundingClientRect(), box, this.pane.same);
      const width = 1 + 5 * values[i];
      const line = { d: shape, "stroke-width": width, opacity: 0.25 + 0.75 * values[i] };
      this.lines.append(el("path", line));
    }
  }

  point(event, said = false) {
    const chip = event.target.closest("[role=option]");
    if (!chip) return;
    if (said || !this.pane.pinned) this.pane.look(chip.dataset.side, +chip.dataset.index, said);
  }

  pin(event) {
    const chip = event.target.closest("[role=option]");
    if (chip) this.pane.pin(chip.dataset.side, +chip.dataset.index);
  }

  press(event) {
    const chip = event.target.closest("[role=option]");
    if (!chip || event.ctrlKey || event.altKey || event.metaKey) return;
    const chips = this.lists[chip.dataset.side];
    const index = +chip.dataset.index;
    const picture = this.pane.pictureOf(chip.dataset.side);
    const forward = getComputedStyle(chip.parentElement).direction === "rtl" ? -1 : 1;
    const row = picture?.columns ?? 0;
    const moves = { ArrowRight: forward, ArrowLeft: -forward, Home: -index };
    moves.End = chips.length - 1 - index;
    if (picture) Object.assign(moves, { ArrowDown: row, ArrowUp: -row });
    if (event.key in moves) {
      chips[index + moves[event.key]]?.focus();
    } else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      this.pane.step("layer", event.key === "ArrowUp" ? 1 : -1);
    } else if (event.key === "PageUp" || event.key === "PageDown") {
      this.pane.step("head", event.key === "PageDown" ? 1 : -1);
    } else if (event.key === "Enter" || event.key === " ") {
      this.pane.pin(chip.dataset.side, index);
    } else if (event.key === "Escape") {
      this.pane.unpin();
    } else return;
    event.preventDefault();
  }
}

/** Return the path between two tokens: an arc above a line, or a curve to another. */
function route(from, to, box, same) {
  const [x1, x2] = [from, to].map((r) => (r.left + r.right) / 2 - box.left);
  if (same && Math.abs(from.top - to.top) < 4) {
    const y = from.top - box.top;
    const rise = Math.min(34, 8 + Math.abs(x1 - x2) / 5);
    return `M${x1} ${y}C${x1} ${y - rise} ${x2} ${y - rise} ${x2} ${y}`;
  }
  const down = from.top < to.top;
  const y1 = (down ? from.bottom : from.top) - box.top;
  const y2 = (down ? to.top : to.bottom) - box.top;
  const middle = (y1 + y2) / 2;
  return `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`;
}

/** Describe a token's attention as a sentence and as a table. */
class Words {
  constructor() {
    this.sentence = el("p", { class: "summary" }, "Point at a word.");
    this.body = el("tbody");
    this.head = el("tr");
    const table = el("table", {}, el("thead", {}, this.head), this.body);
    const hint = el("summary", {}, "These weights as a table");
    this.details = el("details", { class: "weights" }, hint, table);
    this.details.addEventListener("toggle", () => this.fill());
    this.root = el("div", {}, this.sentence, this.details);
  }

  /** Show a row (or column) of weights; return the sentence. */
  show(pane, values) {
    this.given = [pane, values];
    if (!values) {
      this.sentence.textContent = "Point at a word.";
      return this.fill();
    }
    const { side, index } = pane.focus;
    const others = pane.same || side === "keys" ? pane.queries : pane.keys;
    const named = largest(values, 4)
      .filter((i) => values[i] >= 0.01)
      .map((i) => `${quote(others[i])} ${percent(values[i])}`);
    const own = quote(pane[side][index]);
    const list = named.join(", ") || "nothing in particular";
    const text = side === "queries" ? `${own} looks at ${list}` : `${own} is looked at by ${list}`;
    const next = side === "queries" ? pane.writtenAt(index) : null;
    this.sentence.textContent = next ? `${text}. It writes ${quote(next)}.` : text;
    this.fill();
    return this.sentence.textContent;
  }

  fill() {
    if (!this.details.open || !this.given) return;
    const [pane, values] = this.given;
    const { side } = pane.focus ?? {};
    const others = pane.same || side === "keys" ? pane.queries : pane.keys;
    const names = ["Place", "Piece", "Weight"];
    this.head.replaceChildren(...names.map((n) => el("th", { scope: "col" }, n)));
    const rows = [...(values ?? [])].map((value, i) =>
      el(
        "tr",
        {},
        el("td", {}, String(i + 1)),
        el("td", { dir: "auto" }, readPiece(others[i]).shown),
        el("td", {}, value.toFixed(4)),
      ),
    );
    this.body.replaceChildren(...rows);
  }
}
