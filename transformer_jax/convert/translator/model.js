// The Transformer: an encoder that reads a sentence, a decoder that writes one.
//
// Letters of sizes: D model, F feed-forward, N heads, G heads of keys and values, K and H
// the sizes of a head's keys and values, S source and T target positions, V vocabulary,
// R rows (positions of the source, or hypotheses).

const MASKED = -1e30;

const ACTIVATIONS = {
  relu: (x) => Math.max(x, 0),
  relu2: (x) => Math.max(x, 0) ** 2,
  silu: (x) => x / (1 + Math.exp(-x)),
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  gelu_erf: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
};
// Gated units: the activation of the gate.
const GATES = { glu: "sigmoid", reglu: "relu", geglu: "gelu_tanh", swiglu: "silu" };

/** The parameters by path, as float32 in the memory of the kernel. */
class Weights {
  constructor({ tensors, same }, bytes, kernel) {
    this.kernel = kernel;
    this.found = new Map();
    kernel.reserve(tensors.reduce((sum, { outs, size }) => sum + outs * size + 4, 0));
    for (const tensor of tensors) {
      const { name, outs, size } = tensor;
      const values = kernel.take(outs * size);
      restore(tensor, bytes, values);
      this.found.set(name, { at: values.byteOffset / 4, outs, size });
    }
    for (const [name, other] of Object.entries(same)) this.found.set(name, this.found.get(other));
  }

  has(name) {
    return this.found.has(name);
  }

  matrix(name) {
    return this.found.get(name);
  }

  /** The numbers of a tensor; do not keep them, because memory that grows moves them. */
  values(name) {
    const { at, outs, size } = this.found.get(name);
    return this.kernel.floats.subarray(at, at + outs * size);
  }
}

/** Write a tensor as float32: int8 has a factor for each output. */
function restore({ form, outs, size, at, scale }, bytes, values) {
  const count = outs * size;
  if (form === "float32") values.set(new Float32Array(bytes, at, count));
  if (form === "float16") {
    const halves = new Uint16Array(bytes, at, count);
    for (let i = 0; i < count; i++) values[i] = HALVES[halves[i]];
  }
  if (form === "int8") {
    const [steps, scales] = [new Int8Array(bytes, at, count), new Float32Array(bytes, scale, outs)];
    for (let o = 0, i = 0; o < outs; o++) {
      for (let k = 0; k < size; k++, i++) values[i] = steps[i] * scales[o];
    }
  }
}

// The value of each float16: a sign, 5 bits of exponent, 10 of fraction.
const HALVES = Float32Array.from({ length: 65536 }, (_, bits) => {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
});

/** What reads and writes pieces, with the search's memory of what it has read. */
class Transformer {
  constructor(options, weights) {
    this.options = options;
    this.weights = weights;
    this.kernel = weights.kernel;
    const gate = GATES[options.activation];
    this.gated = Boolean(gate);
    this.activate = ACTIVATIONS[gate ?? options.activation];
  }

  /** Make room for a source of S pieces, and for a step of R hypotheses. */
  reserve(S, R) {
    const { d_model, d_ff, heads, d_k, d_v, vocabulary } = this.options;
    const widest = 8 * Math.max(d_model, heads * d_k, heads * d_v) + 3 * d_ff + 64;
    this.kernel.reserve(Math.max(S, R) * widest + R * (vocabulary + 4));
  }

  /** Encode a source; return each decoder layer's keys and values of it. */
  encode(ids) {
    const { d_model, decoder_layers } = this.options;
    return this.kernel.borrow(() => {
      const all = Int32Array.from(ids, (_, i) => i);
      const x = this.embed("source", ids, all);
      this.runLayers("encoder", x, ids.length, (layer, input) => this.readItself(layer, input, all));
      if (this.endsWithNorm) this.normalise(x, d_model, "encoder/norm");
      return Array.from({ length: decoder_layers }, (_, i) => {
        const name = `${this.layerName("decoder", i)}/cross_attention`;
        return this.kernel.borrow(() => {
          const keys = this.heads(this.linear(`${name}/key`, x, all.length), `${name}/key_norm`);
          const values = this.linear(`${name}/value`, x, all.length);
          return { keys: keys.slice(), values: values.slice(), places: all };
        });
      });
    });
  }

  /** Make an empty memory of written pieces, with room for so many rows. */
  begin(slots) {
    const { decoder_layers, kv_heads, d_k, d_v } = this.options;
    return Array.from({ length: decoder_layers }, () => ({
      keys: new Float32Array(slots * kv_heads * d_k),
      values: new Float32Array(slots * kv_heads * d_v),
    }));
  }

  /**
   * Read the last piece of each hypothesis; return the logits [R, V] of the next ones.
   *
   * `paths` are the rows of the memory that each hypothesis has written, the new one last.
   * `attention` takes the last layer's weights [R, S], the mean of the heads.
   */
  extend(ids, position, paths, written, source, attention) {
    const { d_model, decoder_layers, vocabulary } = this.options;
    const rows = ids.length;
    const x = this.embed("target", ids, new Array(rows).fill(position));
    this.runLayers("decoder", x, rows, (layer, input, i) => this.readWritten(layer, input, position, paths, written[i]),
      (layer, input, i) => this.readSource(layer, input, source[i], i === decoder_layers - 1 ? attention : null));
    if (this.endsWithNorm) this.normalise(x, d_model, "decoder/norm");
    const logits = this.kernel.take(rows * vocabulary);
    this.kernel.product(x, rows, this.weights.matrix("output/kernel"), logits);
    if (this.weights.has("output_bias/bias")) this.add(logits, this.weights.values("output_bias/bias"));
    return logits;
  }

  get endsWithNorm() {
    return ["pre", "sandwich"].includes(this.options.norm);
  }

  /** Layers that share parameters have those of the first. */
  layerName(stack, i) {
    return `${stack}/layer_${this.options.shared ? 0 : i}`;
  }

  embed(side, ids, positions) {
    const { d_model, embedding_scale, positions: kind } = this.options;
    const table = this.weights.values(`${side}_embedding`);
    const scale = embedding_scale ? Math.sqrt(d_model) : 1;
    const x = this.kernel.take(ids.length * d_model);
    ids.forEach((id, r) => {
      const wave = this.positionVector(side, positions[r], kind);
      for (let d = 0; d < d_model; d++) x[r * d_model + d] = Math.fround(table[id * d_model + d] * scale) + wave(d);
    });
    if (this.weights.has(`${side}_norm/scale`)) this.normalise(x, d_model, `${side}_norm`);
    return x;
  }

  /** A function from a depth to what a position adds there. */
  positionVector(side, position, kind) {
    const D = this.options.d_model;
    if (kind === "learned") {
      const table = this.weights.values(`${side}_positions/table`);
      return (d) => table[position * D + d];
    }
    if (!kind.startsWith("sinusoid")) return () => 0;
    const half = D / 2;
    const last = kind === "sinusoid_t2t" ? Math.max(half - 1, 1) : half; // where the rate is 1/10000
    const wave = (i, turn) => turn(Math.fround(position * Math.fround(1e4 ** (-i / last))));
    if (["sinusoid", "sinusoid+rotary"].includes(kind)) {
      return (d) => wave(d >> 1, d % 2 ? Math.cos : Math.sin);
    }
    return (d) => wave(d % half, d < half ? Math.sin : Math.cos);
  }

  /** Run the layers of a stack over x, in place. */
  runLayers(stack, x, rows, readItself, readSource = null) {
    for (let i = 0; i < this.options[`${stack}_layers`]; i++) {
      const layer = this.layerName(stack, i);
      const run = (name, work) => this.residual(stack, x, `${layer}/${name}`, work);
      run("self_attention", (input) => readItself(layer, input, i));
      if (readSource) run("cross_attention", (input) => readSource(layer, input, i));
      run("feed_forward", (input) => this.feedForward(`${layer}/feed_forward`, input, rows));
    }
  }

  /** Add the output of a sublayer to x, in place, with norms where the model has them. */
  residual(stack, x, name, work) {
    const { norm, d_model, alpha } = this.options;
    this.kernel.borrow(() => {
      let input = x;
      if (this.endsWithNorm) {
        input = this.kernel.take(x.length);
        input.set(x);
        this.normalise(input, d_model, `${name}_norm`);
      }
      const y = work(input);
      if (norm === "sandwich") this.normalise(y, d_model, `${name}_output_norm`);
      for (let i = 0; i < x.length; i++) x[i] = alpha[stack] * x[i] + y[i];
    });
    if (!this.endsWithNorm) this.normalise(x, d_model, `${name}_norm`);
  }

  /** LayerNorm, or RMSNorm, of each row in place. */
  normalise(x, size, name, epsilon = this.options.norm_epsilon, centred = this.options.norm_kind === "layer") {
    const scale = this.weights.values(`${name}/scale`);
    const bias = this.weights.has(`${name}/bias`) ? this.weights.values(`${name}/bias`) : null;
    for (let at = 0; at < x.length; at += size) {
      let mean = 0;
      let variance = 0;
      if (centred) for (let d = 0; d < size; d++) mean += x[at + d] / size;
      for (let d = 0; d < size; d++) variance += (x[at + d] - mean) ** 2 / size;
      const factor = 1 / Math.sqrt(variance + epsilon);
      for (let d = 0; d < size; d++) x[at + d] = (x[at + d] - mean) * factor * scale[d] + (bias ? bias[d] : 0);
    }
  }

  linear(name, x, rows) {
    const matrix = this.weights.matrix(`${name}/kernel`);
    const y = this.kernel.take(rows * matrix.outs);
    this.kernel.product(x, rows, matrix, y);
    if (this.weights.has(`${name}/bias`)) this.add(y, this.weights.values(`${name}/bias`));
    return y;
  }

  /** Add the same numbers to every row. */
  add(x, bias) {
    for (let i = 0; i < x.length; ) for (let d = 0; d < bias.length; d++) x[i++] += bias[d];
  }

  feedForward(name, x, rows) {
    const { activate } = this;
    const hidden = this.linear(`${name}/inner`, x, rows);
    if (this.gated) {
      const gate = this.linear(`${name}/gate`, x, rows);
      for (let i = 0; i < hidden.length; i++) hidden[i] *= activate(gate[i]);
    } else {
      for (let i = 0; i < hidden.length; i++) hidden[i] = activate(hidden[i]);
    }
    return this.linear(`${name}/outer`, hidden, rows);
  }

  /** Normalise the heads of queries or keys, if the model does. */
  heads(x, name) {
    if (this.weights.has(`${name}/scale`)) this.normalise(x, this.options.d_k, name, 1e-6, false);
    return x;
  }

  /** Queries, keys and values of self-attention, turned by their positions. */
  project(layer, x, positions) {
    const name = `${layer}/self_attention`;
    const rows = positions.length;
    const query = this.heads(this.linear(`${name}/query`, x, rows), `${name}/query_norm`);
    const keys = this.heads(this.linear(`${name}/key`, x, rows), `${name}/key_norm`);
    if (this.options.positions.endsWith("rotary")) for (const vectors of [query, keys]) this.rotate(vectors, positions);
    return { query, keys, values: this.linear(`${name}/value`, x, rows) };
  }

  /** Turn each pair (number i of a head's first half, number i of its second half). */
  rotate(x, positions) {
    const { d_k, rotary_base, rotary_factor } = this.options;
    const [width, half] = [x.length / positions.length, d_k / 2];
    positions.forEach((position, r) => {
      for (let at = r * width; at < (r + 1) * width; at += d_k) {
        for (let i = 0; i < half; i++) {
          const angle = Math.fround((position / rotary_factor) * Math.fround(rotary_base ** (-i / half)));
          const [cos, sin, first, second] = [Math.cos(angle), Math.sin(angle), x[at + i], x[at + half + i]];
          x[at + i] = first * cos - second * sin;
          x[at + half + i] = second * cos + first * sin;
        }
      }
    });
  }

  readItself(layer, x, all) {
    const { query, keys, values } = this.project(layer, x, all);
    const bias = this.distances("encoder");
    const memory = { keys, values };
    return this.finish(`${layer}/self_attention`, all.length, (r, out) => {
      this.attend(query, r, memory, all, out, bias && ((n, s) => bias(n, s - r)));
    });
  }

  readWritten(layer, x, position, paths, written) {
    const rows = paths.length;
    const { query, keys, values } = this.project(layer, x, new Array(rows).fill(position));
    const [width, depth] = [keys.length / rows, values.length / rows];
    const window = this.options.attention_window || Infinity;
    const bias = this.distances("decoder");
    return this.finish(`${layer}/self_attention`, rows, (r, out) => {
      const slot = paths[r][position];
      written.keys.set(keys.subarray(r * width, (r + 1) * width), slot * width);
      written.values.set(values.subarray(r * depth, (r + 1) * depth), slot * depth);
      const first = Math.max(0, position + 1 - window);
      const places = first ? paths[r].slice(first) : paths[r];
      this.attend(query, r, written, places, out, bias && ((n, s) => bias(n, first + s - position)));
    });
  }

  readSource(layer, x, source, attention) {
    const name = `${layer}/cross_attention`;
    const S = source.places.length;
    const rows = x.length / this.options.d_model;
    const query = this.heads(this.linear(`${name}/query`, x, rows), `${name}/query_norm`);
    return this.finish(name, rows, (r, out) => {
      this.attend(query, r, source, source.places, out, null, attention?.subarray(r * S, (r + 1) * S));
    });
  }

  /** Let `attend` fill the row of each query, and map the rows back to the model's width. */
  finish(name, rows, attend) {
    const width = this.options.heads * this.options.d_v;
    const attended = this.kernel.take(rows * width);
    for (let r = 0; r < rows; r++) attend(r, attended.subarray(r * width, (r + 1) * width));
    return this.linear(`${name}/out`, attended, rows);
  }

  /** A function (head, key - query) to what is added to a score, if the model has one. */
  distances(stack) {
    const { positions, heads, relative_distance: furthest, slopes } = this.options;
    if (positions === "alibi") return (n, distance) => -slopes[n] * Math.abs(distance);
    if (positions !== "relative") return null;
    const table = this.weights.values(`${stack}/distances`); // of -furthest … furthest
    return (n, distance) => table[(Math.min(Math.max(distance, -furthest), furthest) + furthest) * heads + n];
  }

  /** Attend from query row r to some rows of a memory: softmax(q kᵀ / √K) v by head. */
  attend(query, r, { keys, values }, places, out, bias, attention) {
    const { heads, kv_heads, d_k, d_v } = this.options;
    const [shared, root, count] = [heads / kv_heads, Math.sqrt(d_k), places.length];
    const weights = new Float64Array(count);
    out.fill(0);
    attention?.fill(0);
    for (let n = 0; n < heads; n++) {
      const [g, from] = [Math.floor(n / shared), (r * heads + n) * d_k];
      let peak = -Infinity;
      for (let s = 0; s < count; s++) {
        const at = (places[s] * kv_heads + g) * d_k;
        let score = 0;
        for (let k = 0; k < d_k; k++) score += query[from + k] * keys[at + k];
        score = score / root;
        if (bias) score = Math.max(score + bias(n, s), MASKED);
        weights[s] = score;
        if (score > peak) peak = score;
      }
      let total = 0;
      for (let s = 0; s < count; s++) total += weights[s] = Math.exp(weights[s] - peak);
      for (let s = 0; s < count; s++) {
        const share = weights[s] / total;
        const at = (places[s] * kv_heads + g) * d_v;
        for (let h = 0; h < d_v; h++) out[n * d_v + h] += share * values[at + h];
        if (attention) attention[s] += share / heads;
      }
    }
  }
}

/** The error function, by its series near 0 and a continued fraction beyond. */
function erf(x) {
  const size = Math.abs(x);
  if (size > 6) return Math.sign(x);
  if (size < 2.5) {
    let [term, sum] = [size, size];
    for (let n = 1; Math.abs(term) > 1e-17 * sum; n++) {
      term *= -(size * size) / n;
      sum += term / (2 * n + 1);
    }
    return (Math.sign(x) * 2 * sum) / Math.sqrt(Math.PI);
  }
  let fraction = size;
  for (let n = 40; n > 0; n--) fraction = size + n / 2 / fraction;
  return Math.sign(x) * (1 - Math.exp(-size * size) / (fraction * Math.sqrt(Math.PI)));
}
