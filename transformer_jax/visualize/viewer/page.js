// The page: one pane per run, with its controls and views.

const KINDS = {
  encoder: "Encoder",
  decoder: "Decoder",
  cross: "Cross",
};
const VIEWS = {
  words: "Words",
  matrix: "Matrix",
  heads: "All heads",
  search: "Decoding",
  tree: "Tree",
};

const panes = [];
let numbered = 0;

/** One run's answer to one text. */
class Pane {
  constructor(run, item) {
    this.run = run;
    this.item = item;
    this.number = numbered++;
    this.layer = 0;
    this.head = -1;
    this.focus = null;
    this.pinned = false;
    this.byWord = true;
    this.loaded = new Map();
    this.tokens = new Tokens(this);
    this.words = new Words();
    this.matrixView = new Matrix(this);
    this.headsView = new Heads(this);
    this.searchView = item.search && new Search(item.search, (step) => this.follow(step));
    const patches = item.picture ? " patches" : "";
    this.root = el("section", { class: `pane${patches}`, "aria-labelledby": `title${this.number}` });
    this.root.append(this.title(), this.texts(), ...item.answers.map(drawAnswers));
    const names = item.kinds.map((kind) => kind.name);
    this.kind = names.includes("cross") ? names.indexOf("cross") : 0;
    this.views = this.available();
    this.panel = el("div", { role: "tabpanel", id: `panel${this.number}`, class: "panel" });
    if (names.length) this.root.append(this.controls());
    if (item.note) this.root.append(el("p", { class: "hint" }, item.note));
    if (this.views.length) this.root.append(this.tabs(), this.panel);
  }

  available() {
    const { kinds, search, tree } = this.item;
    const found = kinds.length ? ["words", "matrix", "heads"] : [];
    if (search) found.push("search");
    if (tree) found.push("tree");
    return found;
  }

  title() {
    const { name, task, step, weights } = this.run;
    const about = `${task}, step ${step.toLocaleString("en")}, ${weights} parameters`;
    return el("h2", { id: `title${this.number}` }, name, el("small", {}, ` ${about}`));
  }

  texts() {
    const { input, output, score } = this.item;
    const rows = [];
    const add = (name, text, after = null) =>
      rows.push(el("dt", {}, name), el("dd", {}, el("span", { dir: "auto" }, text), after));
    if (input) add("Input", input);
    const figure = score === null ? null : el("span", { class: "figure" }, `score ${number(score, 3)}`);
    add("Output", output, figure);
    return el("dl", { class: "texts" }, ...rows);
  }

  controls() {
    const choices = this.item.kinds.map((kind, i) => {
      const radio = el("input", {
        type: "radio",
        name: `kind${this.number}`,
        value: i,
        checked: i === this.kind,
        onchange: () => this.choose({ kind: i }),
      });
      return el("label", {}, radio, el("span", {}, KINDS[kind.name] ?? kind.name));
    });
    this.radios = choices.map((label) => label.firstChild);
    const change = (name) => (event) => this.choose({ [name]: +event.target.value });
    this.layerBox = el("select", { onchange: change("layer") });
    this.headBox = el("select", { onchange: change("head") });
    this.wordBox = el("input", {
      type: "checkbox",
      checked: true,
      onchange: (event) => this.choose({ byWord: event.target.checked }),
    });
    this.wordLabel = el("label", { hidden: true }, this.wordBox, " Whole words");
    return el(
      "div",
      { class: "controls" },
      el("fieldset", {}, el("legend", {}, "Attention"), ...choices),
      this.wordLabel,
      el("label", {}, "Layer ", this.layerBox),
      el("label", {}, "Head ", this.headBox),
    );
  }

  tabs() {
    this.tabList = this.views.map((view) =>
      el(
        "button",
        {
          type: "button",
          role: "tab",
          id: `${view}${this.number}`,
          "data-view": view,
          "aria-controls": `panel${this.number}`,
          onclick: () => panes.forEach((pane) => pane.open(view)),
        },
        view === "words" && this.item.picture ? "Patches" : VIEWS[view],
      ),
    );
    const list = el("div", { role: "tablist", class: "tabs", "aria-label": "Views" }, ...this.tabList);
    list.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const at = this.tabList.indexOf(event.target);
      if (!move || at < 0) return;
      const next = this.tabList[(at + move + this.tabList.length) % this.tabList.length];
      event.preventDefault();
      next.focus();
      next.click();
    });
    return list;
  }

  /** Show a view, if this run has it. */
  open(view) {
    if (!this.views.includes(view)) return;
    this.view = view;
    for (const tab of this.tabList) {
      const chosen = tab.dataset.view === view;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
    }
    this.panel.setAttribute("aria-labelledby", `${view}${this.number}`);
    const most = this.item.picture ? "largest" : "1";
    const legend = el("p", { class: "legend", "aria-hidden": "true" }, "weight 0", el("span"), most);
    const words = [legend, this.words.root];
    const attention = this.item.kinds.length ? [this.tokens.root, ...words] : [];
    const parts = {
      words: () => attention,
      matrix: () => [this.matrixView.root, ...words],
      heads: () => [this.headsView.root, ...attention],
      search: () => [this.searchView.bar, ...attention, this.searchView.root],
      tree: () => [drawTree(this.item.tree)],
    };
    this.panel.replaceChildren(...parts[view]());
    if (this.searchView && view === "search") this.searchView.draw();
    this.update();
    if (view === "search") this.follow(this.searchView.step);
  }

  /** Change kind, layer or head. */
  choose(change) {
    const { kind, byWord } = this;
    Object.assign(this, change);
    if (this.kind !== kind || this.byWord !== byWord) {
      this.focus = null;
      this.pinned = false;
    }
    return this.update();
  }

  /** Go to the next or previous layer or head; the mean comes before the first head. */
  step(name, by) {
    const { weights } = this;
    const [least, most] = name === "layer" ? [0, weights.layers - 1] : [-1, weights.heads - 1];
    const value = Math.max(least, Math.min(most, this[name] + by));
    if (value === this[name]) return;
    this.choose({ [name]: value }).then(() => {
      const head = this.head < 0 ? "mean of the heads" : `head ${this.head + 1}`;
      announce(`Layer ${this.layer + 1}, ${head}. ${this.words.sentence.textContent}`);
    });
  }

  /** Load the chosen weights, and draw them. */
  async update() {
    const { kinds, tokens, picture } = this.item;
    if (!kinds.length) return;
    const kind = kinds[this.kind];
    if (!this.loaded.has(kind)) this.loaded.set(kind, Weights.read(kind));
    if (picture && !this.picture) this.picture = Picture.read(picture);
    const weights = await this.loaded.get(kind);
    this.shown = await this.picture;
    if (kind !== kinds[this.kind]) return; // another kind was chosen in the meantime
    const changed = this.drawn !== kind || this.drawnByWord !== this.byWord;
    this.drawn = kind;
    this.drawnByWord = this.byWord;
    this.take(kind, weights, tokens);
    this.same = kind.name !== "cross" && kind.queries === kind.keys;
    this.layer = Math.min(this.layer, this.weights.layers - 1);
    this.head = Math.min(this.head, this.weights.heads - 1);
    this.matrix = this.weights.matrix(this.layer, this.head);
    if (changed) this.tokens.build();
    this.focus ??= { side: "queries", index: this.first() };
    this.fill();
    if (this.view === "matrix") this.matrixView.draw();
    if (this.view === "heads") changed || !this.headsView.buttons ? this.headsView.build() : this.headsView.mark();
    this.shade();
  }

  /** Take the weights and tokens of a kind, by piece or by word. */
  take(kind, weights, tokens) {
    const [queries, keys] = [kind.queries, kind.keys].map((axis) => groupWords(tokens[axis]));
    const split = queries.words.length < queries.of.length || keys.words.length < keys.of.length;
    this.wordLabel.hidden = !split;
    this.wordOf = null;
    if (split && this.byWord) {
      // In cross-attention, the row of a word is that of the steps that write the next.
      const last = queries.words.length - 1;
      const writes = queries.of.map((_, i) => (queries.of[i + 1] ?? last + 1) - 1);
      this.wordOf = kind.name === "cross" ? writes : queries.of;
      this.weights = new WordWeights(weights, this.wordOf, keys.of);
      [this.queries, this.keys] = [queries.words, keys.words];
    } else {
      this.weights = weights;
      [this.queries, this.keys] = [kind.queries, kind.keys].map((axis) => tokens[axis]);
    }
  }

  /** Return the token that is shown at first: one from the middle, so that it has lines. */
  first() {
    if (this.pictureOf("queries")) return 0;
    const middle = Math.floor(this.queries.length / 2);
    const plain = [...this.queries.keys()].filter((i) => !readPiece(this.queries[i]).special);
    return plain.find((i) => i >= middle) ?? plain.at(-1) ?? 0;
  }

  fill() {
    const options = (count, name) =>
      [...Array(count).keys()].map((i) => el("option", { value: i }, `${name}${i + 1}`));
    this.layerBox.replaceChildren(...options(this.weights.layers, ""));
    const mean = el("option", { value: -1 }, "mean of all");
    this.headBox.replaceChildren(mean, ...options(this.weights.heads, ""));
    this.layerBox.value = this.layer;
    this.headBox.value = this.head;
    this.radios.forEach((radio, i) => (radio.checked = i === this.kind));
  }

  /** Return the weights between the token in focus and all others. */
  values() {
    if (!this.focus) return null;
    const { side, index } = this.focus;
    const width = this.keys.length;
    if (side === "queries") return this.matrix.subarray(index * width, (index + 1) * width);
    return Float32Array.from(this.queries, (_, i) => this.matrix[i * width + index]);
  }

  shade() {
    const values = this.values();
    if (this.tokens.root.isConnected) this.tokens.shade(values);
    return this.words.show(this, values);
  }

  /** Focus a token; other panes follow if they have the same one. */
  look(side, index, said) {
    this.focus = { side, index };
    const text = this.shade();
    if (said) announce(text);
    for (const other of panes) {
      const equal = other.weights && other[side][index] === this[side][index];
      if (other !== this && other.item.kinds[other.kind]?.name === this.item.kinds[this.kind].name && equal) {
        other.focus = { side, index };
        other.shade();
      }
    }
  }

  say(text, said) {
    this.words.sentence.textContent = text;
    if (said) announce(text);
  }

  pin(side, index) {
    const again = this.pinned && this.focus?.side === side && this.focus.index === index;
    this.pinned = !again;
    this.look(side, index, true);
    this.tokens.root.classList.toggle("pinned", this.pinned);
  }

  unpin() {
    this.pinned = false;
    this.tokens.root.classList.remove("pinned");
  }

  unpoint() {
    if (this.pinned || this.tokens.root.contains(document.activeElement)) return;
    if (this.view !== "search") this.shade(); // the last word stays shown
  }

  /** Show the attention of the best hypothesis in a step of the search. */
  async follow(step) {
    const { offset } = this.item.search;
    if (offset === null) return;
    if (this.item.kinds.every((kind) => kind.name === "encoder")) return;
    if (this.item.kinds[this.kind].name === "encoder") await this.choose({ kind: this.following() });
    await this.loaded.get(this.item.kinds[this.kind]);
    await this.update();
    const place = Math.min(offset + step, (this.wordOf ?? this.queries).length - 1);
    this.look("queries", this.wordOf ? this.wordOf[place] : place, false);
  }

  following() {
    const names = this.item.kinds.map((kind) => kind.name);
    return names.includes("cross") ? names.indexOf("cross") : names.indexOf("decoder");
  }

  caption() {
    const { name } = this.item.kinds[this.kind];
    if (name === "decoder") return "What is written: each word looks at itself and those before it";
    return this.shown ? "What is read: each patch looks at all" : "What is read: each word looks at all";
  }

  /** Return the picture whose patches are the tokens of a side. */
  pictureOf(side) {
    const picture = this.shown;
    const patches = picture && picture.rows * picture.columns;
    if (!picture || this[side].length < patches) return null;
    picture.special = this[side].length - patches;
    return picture;
  }

  /** Return the token that a decoder writes after it has read up to a token. */
  writtenAt(index) {
    const name = this.item.kinds[this.kind].name;
    if (name === "encoder") return null;
    return this.queries[index + 1] ?? null;
  }
}

/** Show an item: every run's answer to one text. */
function show(item) {
  panes.splice(0, panes.length, ...item.map((one, i) => new Pane(page.runs[i], one)));
  const place = document.getElementById("panes");
  place.replaceChildren(...panes.map((pane) => pane.root));
  place.classList.toggle("beside", panes.length > 1);
  for (const pane of panes) if (pane.views.length) pane.open(pane.views[0]);
}

function redraw() {
  for (const pane of panes) if (pane.view && pane.drawn) pane.update();
}

/** Draw in the colours of another theme. */
function repaint() {
  for (const pane of panes) pane.headsView.buttons = null;
  redraw();
}

const themes = ["automatic", "light", "dark"];
let theme = 0;

document.getElementById("theme").addEventListener("click", (event) => {
  theme = (theme + 1) % themes.length;
  event.target.textContent = `Theme: ${themes[theme]}`;
  if (theme) document.documentElement.dataset.theme = themes[theme];
  else delete document.documentElement.dataset.theme;
  repaint();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

const chooser = document.getElementById("texts");
if (page.items.length > 1) {
  chooser.hidden = false;
  const box = chooser.querySelector("select");
  const named = page.items.map(([first], i) =>
    el("option", { value: i, dir: "auto" }, first.input.slice(0, 60) || `Picture ${i + 1}`),
  );
  box.append(...named);
  box.addEventListener("change", () => show(page.items[+box.value]));
}

show(page.items[0]);
let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(redraw, 100);
});
