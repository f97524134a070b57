// The page: text on one side, its translation on the other. The model runs in a worker.

const PAUSE = 200; // milliseconds without typing, after which lines are translated
const WIDTHS = [1, 2, 4, 8];
const LOOKED = 3; // source words that are named for a word
const LEAST_SHARE = 0.05; // of the attention, to be named
const KEPT = 2000; // answers that are kept

const one = (id) => document.getElementById(id);
const about = JSON.parse(one("data").textContent);

function el(tag, attributes = {}, ...content) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...content);
  return made;
}

// The worker, and the questions that it has not answered

/** A worker with its own model, of which questions are asked by number. */
class Worked {
  constructor(bytes, plain) {
    const code = new Blob([one("worker").textContent], { type: "text/javascript" });
    this.worker = new Worker(URL.createObjectURL(code));
    this.waiting = new Map();
    this.count = 0;
    this.worker.onmessage = ({ data: { number, result, failure } }) => {
      const { resolve, reject } = this.waiting.get(number);
      this.waiting.delete(number);
      if (failure === undefined) resolve(result);
      else reject(new Error(failure));
    };
    this.worker.onerror = (event) => {
      for (const { reject } of this.waiting.values()) reject(new Error(event.message));
    };
    this.ready = this.ask({ about, bytes, plain }, [bytes]);
  }

  ask(question, moved = []) {
    const number = this.count++;
    return new Promise((resolve, reject) => {
      this.waiting.set(number, { resolve, reject });
      this.worker.postMessage({ number, ...question }, moved);
    });
  }

  async translate(line, options) {
    await this.ready;
    return this.ask({ line, options });
  }
}

/** Decode the weights, whose text is then no longer needed. */
function takeWeights() {
  const element = one("weights");
  const letters = atob(element.textContent.trim());
  element.remove();
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes.buffer;
}

const worked = new Worked(takeWeights(), location.hash === "#plain");

/** Translate lines; `options` override those of the run: beams, alpha, n_best and others. */
window.translate = (lines, options = {}) => Promise.all(lines.map((line) => worked.translate(line, options)));

// What is shown of a line

/** A line of the text with its translation. */
class Line {
  constructor() {
    this.root = el("li", {}, el("p", { class: "words target" }, "…"));
    this.words = [];
    this.rows = []; // of each target word, the attention to the words of its part
  }

  /** Take another text; what is shown stays, but paler, until it is translated. */
  change(line, key) {
    this.line = line;
    this.key = key;
    this.reply = null;
    this.root.className = "waiting";
    return this;
  }

  show(reply) {
    this.reply = reply;
    this.root.className = "";
    this.root.replaceChildren();
    this.words = [];
    this.rows = [];
    if (reply.error) {
      this.root.append(el("p", { class: "words source", dir: "auto" }, this.line), el("p", { class: "error" }, `Not translated: ${reply.error}.`));
      return;
    }
    if (!reply.parts.length) {
      this.root.remove();
      return;
    }
    this.sources = el("p", { class: "words source", dir: "auto" });
    this.targets = el("p", { class: "words target", dir: "auto" });
    if (about.language) this.targets.lang = about.language;
    for (const part of reply.parts) this.addPart(part);
    this.looks = el("span", { class: "looks" });
    const facts = el("p", { class: "facts" }, el("span", {}, `score ${number(reply.score)}`), this.looks);
    this.root.append(this.sources, this.targets, facts);
    if (reply.others.length) this.root.append(drawOthers(reply.others));
    if (reply.unknown.length) {
      this.root.append(el("p", { class: "warning" }, `The model does not know ${reply.unknown.join(" ")}: the answer may be invented.`));
    }
    this.choose(null);
  }

  addPart({ source, target, attention }) {
    const read = source.map((word) => el("span", { class: "word" }, word));
    for (const word of read) this.sources.append(word, " ");
    target.forEach((word, t) => {
      const button = el("button", { class: "word", type: "button", tabindex: "-1" }, word);
      button.addEventListener("focus", () => this.choose(button));
      button.addEventListener("mouseenter", () => this.choose(button));
      button.addEventListener("mouseleave", () => this.choose(this.kept()));
      this.words.push(button);
      this.rows.push({ read, source, shares: attention[t] ?? [] });
      this.targets.append(button, " ");
    });
    if (this.words.length) this.words[0].tabIndex = 0;
  }

  /** The word that has the focus, and stays chosen while the pointer is elsewhere. */
  kept() {
    return this.words.find((word) => word === document.activeElement) ?? null;
  }

  /** Shade the source words by the attention that a target word paid to them. */
  choose(button) {
    for (const word of this.sources.children) setShade(word, 0);
    for (const word of this.words) word.classList.toggle("chosen", word === button);
    this.looks.textContent = "";
    if (!button) return;
    for (const word of this.words) word.tabIndex = word === button ? 0 : -1;
    const { read, source, shares } = this.rows[this.words.indexOf(button)];
    shares.forEach((share, s) => setShade(read[s], share));
    const order = shares.map((share, s) => [share, source[s]]).filter(([share]) => share >= LEAST_SHARE);
    order.sort((a, b) => b[0] - a[0]);
    const named = order.slice(0, LOOKED).map(([share, word]) => `${word} ${Math.round(100 * share)} %`);
    this.looks.textContent = `${button.textContent} ← ${named.join(", ")}`;
    if (button === document.activeElement) say(`${button.textContent}: ${named.join(", ")}`);
  }
}

const number = (value) => value.toFixed(2).replace("-", "\u2212");

function setShade(word, share) {
  word.style.setProperty("--w", Math.sqrt(share).toFixed(3));
  word.classList.toggle("some", share > 0.02);
  word.classList.toggle("strong", share > 0.3);
}

function drawOthers(others) {
  const list = el("ol", { class: "others", start: "2" });
  for (const { text, score } of others) {
    list.append(el("li", {}, text, el("span", { class: "hint" }, ` ${number(score)}`)));
  }
  return list;
}

function say(text) {
  one("live").textContent = text;
}

// The text and its lines

const answers = new Map(); // by line and options
let shown = []; // a Line for each line of the text
let round = 0; // of translating, of which only the newest goes on

function options() {
  const beams = Number(one("beams").value);
  return { beams, n_best: Math.min(about.options.n_best, beams) };
}

/** Show the lines of the text; keep what has been translated, and translate the others. */
async function update() {
  const own = ++round;
  const chosen = options();
  const lines = one("source").value.split("\n").map((line) => line.replace(/\r$/, ""));
  const before = [...shown];
  const keys = lines.map((text) => JSON.stringify([text, chosen]));
  const kept = keys.map((key) => take(before, (line) => line.key === key));
  shown = kept.map((line, i) => line ?? (before.shift() ?? new Line()).change(lines[i], keys[i]));
  const visible = shown.filter(({ line }) => line.trim());
  one("lines").replaceChildren(...visible.map((line) => line.root));
  const missing = visible.filter((line) => !line.reply);
  let failed = 0;
  for (const line of missing) {
    if (!answers.has(line.key)) {
      one("state").textContent = missing.length > 1 ? "Translating…" : "";
      const reply = await worked.translate(line.line, chosen).catch((error) => ({ error: error.message }));
      if (answers.size > KEPT) answers.clear();
      answers.set(line.key, reply);
      if (own !== round) return;
    }
    line.show(answers.get(line.key));
    failed += Boolean(line.reply.error);
  }
  const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
  const notes = failed ? `, of which ${count(failed, "line")} could not be` : "";
  one("state").textContent = "";
  if (missing.length === 1) say(missing[0].reply.text || missing[0].reply.error);
  else if (missing.length) say(`${count(missing.length, "line")} translated${notes}`);
}

/** Take the first item that fits out of a list. */
function take(list, fits) {
  const place = list.findIndex(fits);
  return place < 0 ? null : list.splice(place, 1)[0];
}

let timer = 0;
one("source").addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(update, PAUSE);
});
one("beams").addEventListener("change", update);
one("clear").addEventListener("click", () => {
  one("source").value = "";
  one("source").focus();
  update();
});
one("copy").addEventListener("click", async () => {
  const text = shown.map((line) => line.reply?.text ?? "").join("\n");
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text); // some browsers have no clipboard for files
  }
  say("Copied");
  one("copy").textContent = "Copied";
  setTimeout(() => (one("copy").textContent = "Copy"), 1500);
});

function copyBySelection(text) {
  const area = el("textarea", { class: "unseen" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// Arrow keys move between words.
one("lines").addEventListener("keydown", (event) => {
  const lines = shown.filter((line) => line.words.length);
  const row = lines.findIndex((line) => line.words.includes(event.target));
  if (row < 0) return;
  const { words } = lines[row];
  const at = words.indexOf(event.target);
  const nearest = (line) => line && line.words[Math.min(at, line.words.length - 1)];
  const places = {
    ArrowRight: () => words[at + 1],
    ArrowLeft: () => words[at - 1],
    Home: () => words[0],
    End: () => words.at(-1),
    ArrowUp: () => nearest(lines[row - 1]),
    ArrowDown: () => nearest(lines[row + 1]),
  };
  if (event.key === "Escape") {
    event.target.blur();
    lines[row].choose(null);
  } else if (event.key in places) {
    event.preventDefault();
    places[event.key]()?.focus();
  }
});

// Themes: the browser's, light, dark
const THEMES = ["automatic", "light", "dark"];
one("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? THEMES[0];
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (next === THEMES[0]) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  one("theme").textContent = `Theme: ${next}`;
});

// What the page says of the model

for (const width of [...new Set([...WIDTHS, about.options.beams])].sort((a, b) => a - b)) {
  one("beams").append(el("option", { value: width }, String(width)));
}
one("beams").value = about.options.beams;
one("about").textContent = about.facts;
if (about.card) drawCard(about.card);
else one("card").remove();

/** Draw a model card: headings, rows of a table, items of a list, and text. */
function drawCard(text) {
  let group = null; // the table or list that the last line belongs to
  const into = (tag, ...items) => {
    if (group?.localName !== tag) one("card").append((group = el(tag)));
    group.append(...items);
  };
  for (const line of text.split("\n").filter((one) => /[^|\s-]/.test(one))) {
    const cells = line.split("|").map((cell) => cell.trim());
    if (line.startsWith("## ")) one("card").append((group = el("h3", {}, line.slice(3))));
    else if (line.startsWith("- ")) into("ul", el("li", {}, line.slice(2).replaceAll("`", "")));
    else if (line.startsWith("| ")) into("dl", el("dt", {}, cells[1]), el("dd", {}, cells.slice(2, -1).join("|")));
    else if (!line.startsWith("# ")) one("card").append((group = el("p", {}, line)));
  }
}

worked.ready.then(
  () => {
    one("state").textContent = "";
    one("source").disabled = false;
    one("source").focus();
    update();
  },
  (error) => (one("state").textContent = `The model cannot be read: ${error.message}`),
);
