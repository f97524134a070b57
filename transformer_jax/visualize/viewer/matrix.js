// Matrices: one large head with its words, and thumbnails of all heads.

const SMALLEST = 12; // pixels of a cell with a readable label
const LARGEST = 30;
const MARGIN = 92; // for labels
const WIDE = 160; // for labels of what is read and what is written

/** Paint weights [queries, keys] onto a canvas, one pixel per weight. */
function paint(values, queries, keys) {
  const canvas = el("canvas", { width: keys, height: queries });
  const context = canvas.getContext("2d");
  const image = context.createImageData(keys, queries);
  const [none, all] = [colour("none"), colour("accent")];
  for (let i = 0; i < values.length; i++) {
    const strength = Math.sqrt(values[i]);
    for (let c = 0; c < 3; c++) {
      image.data[4 * i + c] = none[c] + strength * (all[c] - none[c]);
    }
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** One head: rows look, columns are looked at. */
class Matrix {
  constructor(pane) {
    this.pane = pane;
    this.cells = el("canvas", { "aria-hidden": "true" });
    this.left = el("canvas", { class: "left", "aria-hidden": "true" });
    this.top = el("canvas", { class: "top", "aria-hidden": "true" });
    this.corner = el("div", { class: "corner", "aria-hidden": "true" }, "looks ↓ at →");
    this.mark = el("div", { class: "mark", hidden: true });
    this.body = el("div", { class: "body" }, this.cells, this.mark);
    this.root = el(
      "div",
      {
        class: "matrix",
        tabindex: 0,
        role: "application",
        "aria-roledescription": "heat map",
        "aria-label": "Weights of all words: rows look at columns. Move with the arrow keys.",
      },
      this.corner,
      this.top,
      this.left,
      this.body,
    );
    this.cell = [0, 0];
    this.body.addEventListener("mousemove", (event) => this.point(event));
    this.root.addEventListener("keydown", (event) => this.press(event));
  }

  draw() {
    const { queries, keys, matrix } = this.pane;
    const rows = queries.map((piece, i) => {
      const written = this.pane.writtenAt(i);
      return written === null ? [piece] : [piece, written];
    });
    const margin = rows[0].length > 1 ? WIDE : MARGIN;
    const room = (this.root.clientWidth || 600) - margin;
    const size = Math.max(SMALLEST, Math.min(LARGEST, Math.floor(room / keys.length)));
    this.size = size;
    const context = stretch(this.cells, keys.length * size, queries.length * size);
    context.imageSmoothingEnabled = false;
    const small = paint(matrix, queries.length, keys.length);
    context.drawImage(small, 0, 0, keys.length * size, queries.length * size);
    this.label(this.left, rows, margin, queries.length * size, (pen, i) => {
      pen.translate(margin - 4, (i + 0.5) * size);
      pen.textAlign = "right";
    });
    const columns = keys.map((piece) => [piece]);
    this.label(this.top, columns, keys.length * size, MARGIN, (pen, i) => {
      pen.translate((i + 0.5) * size, MARGIN - 4);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
    });
    this.show();
  }

  /** Write labels, each of one piece, or of a piece read and the one written then. */
  label(canvas, labels, width, height, place) {
    const pen = stretch(canvas, width, height);
    pen.fillStyle = `rgb(${colour("text")})`;
    pen.font = `${Math.min(13, this.size)}px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    labels.forEach((pieces, i) => {
      pen.save();
      place(pen, i);
      const text = pieces.map((piece) => readPiece(piece).shown).join(" → ");
      pen.fillText(text, 0, 0, (pieces.length > 1 ? WIDE : MARGIN) - 8);
      pen.restore();
    });
  }

  show() {
    const [row, column] = this.cell;
    Object.assign(this.mark.style, {
      left: `${column * this.size}px`,
      top: `${row * this.size}px`,
      width: `${this.size}px`,
      height: `${this.size}px`,
    });
  }

  point(event) {
    const box = this.cells.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.size);
    const row = Math.floor((event.clientY - box.top) / this.size);
    this.choose(row, column, false);
  }

  press(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    if (!move || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.choose(this.cell[0] + move[0], this.cell[1] + move[1], true);
    this.mark.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  choose(row, column, said) {
    const { queries, keys, matrix } = this.pane;
    if (!(row >= 0 && row < queries.length && column >= 0 && column < keys.length)) return;
    this.cell = [row, column];
    this.mark.hidden = false;
    this.show();
    this.pane.look("queries", row, false);
    const names = [queries[row], keys[column]].map(quote);
    const value = percent(matrix[row * keys.length + column]);
    const text = `${names[0]} looks at ${names[1]} with ${value}`;
    this.pane.say(text, said);
  }
}

/** Scale a canvas to the screen's pixels, and return its drawing context. */
function stretch(canvas, width, height) {
  const most = Math.sqrt(16e6 / (width * height)); // beyond what screens can show
  const scale = Math.min(devicePixelRatio || 1, most);
  canvas.width = Math.max(1, width * scale);
  canvas.height = Math.max(1, height * scale);
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return pen;
}

/** All heads of a kind, one row per layer; a click selects one. */
class Heads {
  constructor(pane) {
    this.pane = pane;
    this.root = el("div", { class: "heads", role: "group", "aria-label": "All heads" });
    this.root.addEventListener("keydown", (event) => this.press(event));
  }

  build() {
    const { weights, queries, keys } = this.pane;
    this.root.style.setProperty("--columns", weights.heads);
    const numbers = [...Array(weights.heads).keys()].map((i) => `Head ${i + 1}`);
    const rows = ["", ...numbers].map((n) => el("span", { class: "row", "aria-hidden": "true" }, n));
    this.buttons = [];
    for (let layer = 0; layer < weights.layers; layer++) {
      rows.push(el("span", { class: "row", "aria-hidden": "true" }, `Layer ${layer + 1}`));
      for (let head = 0; head < weights.heads; head++) {
        const values = weights.matrix(layer, head);
        const spread = entropy(values, queries.length, keys.length);
        const about = `${spread.toFixed(1)} bits`;
        const button = el(
          "button",
          {
            type: "button",
            "aria-label": `Layer ${layer + 1}, head ${head + 1}, entropy ${about}`,
            title: `Layer ${layer + 1}, head ${head + 1}: entropy ${about}`,
            onclick: () => this.pane.choose({ layer, head }),
          },
          paint(values, queries.length, keys.length),
        );
        button.dataset.place = `${layer},${head}`;
        this.buttons.push(button);
        rows.push(button);
      }
    }
    this.root.replaceChildren(...rows);
    this.mark();
  }

  mark() {
    const place = `${this.pane.layer},${this.pane.head}`;
    const chosen = this.buttons.findIndex((button) => button.dataset.place === place);
    this.buttons.forEach((button, i) => {
      button.setAttribute("aria-pressed", i === chosen);
      button.tabIndex = i === Math.max(chosen, 0) ? 0 : -1;
    });
  }

  press(event) {
    const index = this.buttons.indexOf(event.target);
    const row = this.pane.weights.heads;
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row };
    const next = this.buttons[index + moves[event.key]];
    if (index < 0 || !next) return;
    event.preventDefault();
    next.focus();
  }
}

/** Return the mean entropy of the rows, in bits. */
function entropy(values, queries, keys) {
  let total = 0;
  for (let i = 0; i < queries * keys; i++) {
    if (values[i] > 0) total -= values[i] * Math.log2(values[i]);
  }
  return total / queries;
}
