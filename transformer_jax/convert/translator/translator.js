// Lines in, replies out. A line that is too long is translated sentence by sentence.

// Closing quotes and brackets may follow; no space does in Chinese and Japanese.
const SENTENCE_END = new RegExp(`[.!?…]+["'”’»)\\]]*(?=${BLANK})|[。！？]+[”’」』）]*`, "gu");
const WHOLE = ["beams", "extra_length", "max_length", "min_length", "n_best", "no_repeat", "max_input"];
const NUMBERS = ["alpha", "coverage"];
const LEAST = { beams: 1, n_best: 1 };

/** A reason why a line cannot be translated. */
class Refused extends Error {}

/** The model of a page, ready to translate. */
class Translator {
  constructor(about, bytes, plain = false) {
    this.about = about;
    const made = about.tokenizers.map((one) => (one.kind === "byte" ? new Bytes() : new SentencePieces(one)));
    [this.source, this.target] = [made[0], made.at(-1)];
    this.model = new Transformer(about.model, new Weights(about, bytes, new Kernel(plain)));
  }

  /** Return the reply to a line; `changes` override the options of the run. */
  translate(line, changes = {}) {
    const options = this.check({ ...this.about.options, ...changes });
    if (!strip(line)) return { text: line, score: 0, others: [], unknown: [], parts: [] };
    try {
      const composed = this.source.compose(line);
      const parts = this.split(this.tag(composed), options).map((part) => this.translatePart(part, options));
      return { ...join(parts), unknown: this.source.findUnknown(composed) };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return { text: "", score: null, error: error.message, others: [], unknown: [], parts: [] };
    }
  }

  check(options) {
    const known = [...WHOLE, ...NUMBERS, "on_long"];
    for (const [name, value] of Object.entries(options)) {
      if (!known.includes(name)) throw new TypeError(`there is no option ${name}: choose ${known.join(" | ")}`);
      if (name === "on_long" && !["split", "refuse"].includes(value)) throw new TypeError(`on_long = ${value}: choose split | refuse`);
      const whole = WHOLE.includes(name) && !(Number.isInteger(value) && value >= (LEAST[name] ?? 0));
      if (whole) throw new TypeError(`${name} = ${value}: must be a whole number from ${LEAST[name] ?? 0} on`);
      if (NUMBERS.includes(name) && !Number.isFinite(value)) throw new TypeError(`${name} = ${value}: must be a number`);
    }
    if (options.n_best > options.beams) {
      throw new TypeError(`n_best ${options.n_best} is more than beams ${options.beams}: a search finds at most beams answers`);
    }
    return options;
  }

  /** Put the tag of all training sources before a line; refuse one without any of several. */
  tag(line) {
    const { needed } = this.about;
    if (!needed.length || needed.some((tag) => line.startsWith(`${tag} `))) return line;
    if (needed.length > 1) throw new Refused(`a line without any of the tags ${needed.join(", ")}: put one before it`);
    return `${needed[0]} ${line}`;
  }

  /** Split a line that is too long at the ends of sentences, each after the line's tag. */
  split(line, { max_input, on_long }) {
    if (on_long !== "split" || !max_input || this.source.encode(line).length <= max_input) return [line];
    const tag = this.about.tags.find((one) => line.startsWith(`${one} `)) ?? "";
    const text = line.slice(tag.length);
    const ends = [0, ...Array.from(text.matchAll(SENTENCE_END), (found) => found.index + found[0].length), text.length];
    const parts = ends.slice(1).map((end, i) => strip(text.slice(ends[i], end)));
    return parts.filter(Boolean).map((part) => `${tag} ${part}`.trimStart());
  }

  translatePart(line, options) {
    const { source, target, model } = this;
    const pieces = source.encode(line);
    if (options.max_input && pieces.length > options.max_input) {
      throw new Refused(`${pieces.length} pieces are more than the ${options.max_input} that can be read at once: split it into sentences`);
    }
    const limit = longestAnswer(pieces.length, options);
    if (options.min_length > limit) {
      throw new Refused(`an answer of at least ${options.min_length} pieces is longer than the ${limit} allowed for this line`);
    }
    const needed = Math.max(pieces.length + 1, limit);
    const { positions, max_positions } = this.about.model;
    if (positions === "learned" && needed > max_positions) {
      throw new Refused(`a line of ${pieces.length} pieces with its longest answer needs ${needed} positions, but the model has ${max_positions}: split it`);
    }
    const found = search(model, [...pieces, EOS], options);
    const answers = found.map(({ ids, score }) => ({ text: oneLine(target.decode(ids)), score }));
    const [best, ...others] = answers;
    const written = found[0].ids.filter((id) => id !== EOS);
    const words = {
      source: splitWords(source.decode(pieces)),
      target: splitWords(target.decode(written)),
      attention: this.attendWords(pieces, written, found[0].attention),
    };
    return { ...best, others, parts: [words], pieces: found[0].ids.length };
  }

  /** The share of each target word's attention that each source word receives. */
  attendWords(pieces, written, attention) {
    const [rows, columns] = [numberWords(this.target, written), numberWords(this.source, pieces)];
    const found = Array.from({ length: (rows.at(-1) ?? -1) + 1 }, () => new Array((columns.at(-1) ?? -1) + 1).fill(0));
    rows.forEach((row, t) => columns.forEach((column, s) => (found[row][column] += attention[t][s])));
    for (const row of found) {
      const total = row.reduce((a, b) => a + b, 0) || 1;
      row.forEach((value, s) => (row[s] = value / total));
    }
    return found;
  }
}

const oneLine = (text) => text.replaceAll("\r", " ").replaceAll("\n", " ");

/** Join the replies to the sentences of a line, and sum their scores. */
function join(replies) {
  if (replies.length === 1) return replies[0];
  return {
    text: replies.map((reply) => reply.text).join(" "),
    score: replies.reduce((sum, reply) => sum + reply.score, 0),
    others: [],
    parts: replies.flatMap((reply) => reply.parts),
    pieces: replies.reduce((sum, reply) => sum + reply.pieces, 0),
  };
}
