// Everything but sentences: a picture under its patches, a parser's tree, a list of answers.

/** An image cut into patches, which take the place of words. */
class Picture {
  static async read(about) {
    return new Picture(about, await unpack(about.pixels));
  }

  constructor(about, levels) {
    const { height, width, channels, patch } = about;
    this.columns = width / patch;
    this.rows = height / patch;
    this.special = 0; // tokens before the patches, such as the class token
    this.canvas = el("canvas", { width, height, "aria-hidden": "true" });
    const pen = this.canvas.getContext("2d");
    const image = pen.createImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      for (let c = 0; c < 3; c++) {
        image.data[4 * i + c] = levels[i * channels + Math.min(c, channels - 1)];
      }
      image.data[4 * i + 3] = 255;
    }
    pen.putImageData(image, 0, 0);
  }

  /** Return the picture with a chip over each patch. */
  grid(chips) {
    const cells = el("div", { class: "cells", role: "presentation" }, ...chips);
    cells.style.gridTemplateColumns = `repeat(${this.columns}, 1fr)`;
    const box = el("div", { class: "picture", dir: "ltr", role: "presentation" }, this.canvas, cells);
    box.style.aspectRatio = `${this.columns} / ${this.rows}`;
    return box;
  }
}

/** Draw a tree [label, children…] with its words below, and as nested lists. */
function drawTree(tree) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "14px sans-serif";
  const shapes = [];
  let right = 10;
  let deepest = 0;
  const visit = (node, depth) => {
    deepest = Math.max(deepest, depth);
    const label = typeof node === "string" ? node : node[0];
    const y = 22 + depth * 46;
    const leaf = typeof node === "string";
    const below = leaf ? [] : node.slice(1).map((child) => visit(child, depth + 1));
    let x;
    if (below.length) {
      x = (below[0] + below[below.length - 1]) / 2;
    } else {
      const width = Math.max(26, pen.measureText(label).width + 14);
      x = right + width / 2;
      right += width;
    }
    for (const under of below) {
      shapes.unshift(el("line", { x1: x, y1: y + 6, x2: under, y2: y + 30 }));
    }
    const style = { x, y, class: leaf ? "word" : "label", "text-anchor": "middle" };
    shapes.push(el("text", style, label));
    return x;
  };
  visit(tree, 0);
  const size = { width: right + 10, height: 40 + deepest * 46 };
  const drawn = el("svg", { ...size, role: "img", "aria-label": `Tree: ${bracketed(tree)}` }, ...shapes);
  const scroll = el("div", { class: "scroll tree", tabindex: 0, role: "group", "aria-label": "The tree" }, drawn);
  const listed = el("details", {}, el("summary", {}, "The tree as nested lists"), el("ul", {}, nested(tree)));
  return el("div", {}, scroll, listed);
}

function nested(node) {
  if (typeof node === "string") return el("li", { dir: "auto" }, node);
  return el("li", {}, node[0], el("ul", {}, ...node.slice(1).map(nested)));
}

function bracketed(node) {
  return typeof node === "string" ? node : `(${node[0]} ${node.slice(1).map(bracketed).join(" ")})`;
}

/** List the choices of a classifier or a masked model. */
function drawAnswers({ title, choices }) {
  const rows = choices.map(([text, chance], i) => {
    const bar = el("span", { class: "bar", style: { width: `${100 * chance}%` } });
    const track = el("span", { class: "track", "aria-hidden": "true" }, bar);
    return el(
      "tr",
      { class: i ? "" : "kept" },
      el("td", { dir: "auto", class: "piece" }, text.trim() || "␣"),
      el("td", {}, track, percent(chance)),
    );
  });
  return el("table", { class: "answers" }, el("caption", {}, title), el("tbody", {}, ...rows));
}
