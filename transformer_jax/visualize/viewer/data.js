// Data of the page: read the values that Python wrote. Text never becomes markup: `el` only sets text.

const page = JSON.parse(document.getElementById("data").textContent);

/** Weights by byte; Python writes byte = round(255 √w). */
const WEIGHT = Float32Array.from({ length: 256 }, (_, level) => (level / 255) ** 2);

/** Make an element; `on…` properties are listeners, children are nodes or text. */
function el(tag, properties = {}, ...children) {
  const svg = ["svg", "path", "circle", "text", "g", "line", "title"].includes(tag);
  const made = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Read bytes that were deflated and base64-encoded. */
async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream();
  const whole = stream.pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(whole).arrayBuffer());
}

/** Attention of one kind: [layers, heads, queries, keys]. Head -1 is the mean. */
class Weights {
  constructor(shape, levels) {
    [this.layers, this.heads, this.queries, this.keys] = shape;
    this.levels = levels;
  }

  static async read(kind) {
    return new Weights(kind.shape, await unpack(kind.weights));
  }

  /** Return the matrix of a head, row by row. */
  matrix(layer, head) {
    const size = this.queries * this.keys;
    const found = new Float32Array(size);
    const heads = head < 0 ? [...Array(this.heads).keys()] : [head];
    for (const one of heads) {
      const begin = (layer * this.heads + one) * size;
      for (let i = 0; i < size; i++) {
        found[i] += WEIGHT[this.levels[begin + i]] / heads.length;
      }
    }
    return found;
  }
}

// Scripts without spaces, whose pieces cannot be joined into words.
const UNSPACED = /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u;

/** Return the words of pieces, and for each piece the index of its word. */
function groupWords(pieces) {
  if (!pieces.some((piece) => piece.startsWith("▁"))) return { words: pieces, of: [...pieces.keys()] };
  const words = [];
  const of = [];
  pieces.forEach((piece, i) => {
    const before = pieces[i - 1] ?? "";
    const apart = [before, piece].some((one) => /^<[^<>]+>$/.test(one)) || UNSPACED.test(piece);
    const inside = /[\p{L}\p{N}\p{M}]$/u.test(before) && /^[\p{L}\p{N}\p{M}]/u.test(piece);
    if (i && !apart && !piece.startsWith("▁") && (before === "▁" || inside)) words[words.length - 1] += piece;
    else words.push(piece);
    of.push(words.length - 1);
  });
  return { words, of };
}

/** Attention between words: columns of a word are added, and its rows averaged. */
class WordWeights {
  /** `rows` and `columns` give for each piece the index of its word. */
  constructor(weights, rows, columns) {
    Object.assign(this, { weights, rows, columns, layers: weights.layers, heads: weights.heads });
    this.queries = Math.max(...rows) + 1;
    this.keys = Math.max(...columns) + 1;
  }

  matrix(layer, head) {
    const { rows, columns } = this;
    const found = new Float32Array(this.queries * this.keys);
    const counts = new Float32Array(this.queries);
    rows.forEach((row) => counts[row]++);
    this.weights.matrix(layer, head).forEach((value, i) => {
      const row = rows[Math.floor(i / columns.length)];
      found[row * this.keys + columns[i % columns.length]] += value / counts[row];
    });
    return found;
  }
}

/** Return how a piece is shown and spoken, and how it joins the text. */
function readPiece(piece) {
  const special = /^<[^<>]+>$/.test(piece);
  const starts = piece.startsWith("▁");
  const rest = starts ? piece.slice(1) : piece;
  const shown = rest === "" ? "␣" : rest.replaceAll("▁", "␣").replaceAll("\n", "⏎");
  const spoken = { "<s>": "start", "</s>": "end", "<unk>": "unknown" }[piece] ?? shown;
  return { shown, special, starts: starts || special, spoken };
}

/** Return the text of pieces, for display. */
function textOf(pieces) {
  return pieces.join("").replaceAll("▁", " ").trim();
}

/** Quote a piece, isolated so that its direction does not affect the sentence around it. */
function quote(piece) {
  return `“\u2068${readPiece(piece).spoken}\u2069”`;
}

/** Format a share as a percentage. */
function percent(share) {
  const value = 100 * share;
  return value >= 10 ? `${value.toFixed(0)} %` : `${value.toFixed(value < 0.1 ? 2 : 1)} %`;
}

/** Format a number with a minus sign as wide as a plus. */
function number(value, digits) {
  return value.toFixed(digits).replace("-", "−");
}

/** Return the indices of the largest values, largest first. */
function largest(values, count) {
  const order = [...values.keys()].sort((a, b) => values[b] - values[a]);
  return order.slice(0, count);
}

/** Return a colour of the stylesheet as [red, green, blue]. */
function colour(name) {
  const probe = el("span", { style: { color: `var(--${name})` } });
  document.body.append(probe);
  const found = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return found;
}

/** Return whether the page is dark now, by its button or by the system setting. */
function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

let waiting = 0;

/** Let a screen reader announce a text once the user pauses. */
function announce(text) {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    document.getElementById("live").textContent = text;
  }, 150);
}
