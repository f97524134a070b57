// Data of the page: read what Python wrote. No text becomes markup: `el` sets text only.

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

/** Read bytes that were deflated and written in base64. */
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

/** Split a piece of the vocabulary into what is shown and how it stands in the text. */
function readPiece(piece) {
  const special = /^<[^<>]+>$/.test(piece);
  const starts = piece.startsWith("▁");
  const rest = starts ? piece.slice(1) : piece;
  const shown = rest === "" ? "␣" : rest.replaceAll("▁", "␣").replaceAll("\n", "⏎");
  const spoken = { "<s>": "start", "</s>": "end", "<unk>": "unknown" }[piece] ?? shown;
  return { shown, special, starts: starts || special, spoken };
}

/** Return the text of pieces, to be shown. */
function textOf(pieces) {
  return pieces.join("").replaceAll("▁", " ").trim();
}

/** Quote a piece; its direction must not turn the sentence around it. */
function quote(piece) {
  return `“\u2068${readPiece(piece).spoken}\u2069”`;
}

/** Write a share as per cent. */
function percent(share) {
  const value = 100 * share;
  return value >= 10 ? `${value.toFixed(0)} %` : `${value.toFixed(value < 0.1 ? 2 : 1)} %`;
}

/** Write a number with a minus sign that is as wide as a plus. */
function number(value, digits) {
  return value.toFixed(digits).replace("-", "−");
}

/** Return the numbers of the largest values, largest first. */
function largest(values, count) {
  const order = [...values.keys()].sort((a, b) => values[b] - values[a]);
  return order.slice(0, count);
}

/** Return a colour of the style as [red, green, blue]. */
function colour(name) {
  const probe = el("span", { style: { color: `var(--${name})` } });
  document.body.append(probe);
  const found = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return found;
}

/** Return whether the page is dark now, by its button or by the system. */
function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

let waiting = 0;

/** Have a screen reader say a text, once the user rests. */
function announce(text) {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    document.getElementById("live").textContent = text;
  }, 150);
}
