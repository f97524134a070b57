// Pieces of a text and back, as SentencePiece and this project's tokenizers do it.

const [PAD, UNK, BOS, EOS] = [0, 1, 2, 3];
const SPECIAL = 4; // ids before the pieces
const SPACE = "\u2581"; // stands for a space in pieces
const [NORMAL, CONTROL, USER, BYTE] = [1, 3, 4, 6]; // SentencePiece's types of pieces
const REPLACEMENT = "\ufffd";
const RARE = 10; // an unknown character scores this much below the worst piece
// Marks that may belong to the character before them.
const MARKS = /[\u0300-\u036f\u3099\u309a\u1100-\u11ff]/;
const BLANK = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const BLANKS = new RegExp(`${BLANK}+`, "u");
const ENDS = new RegExp(`^${BLANK}+|${BLANK}+$`, "gu");
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const strict = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });

/** The words of a text, which blanks separate. */
const splitWords = (text) => text.split(BLANKS).filter(Boolean);
/** A text without the blanks around it. */
const strip = (text) => text.replace(ENDS, "");

/** A SentencePiece model; `decode` is the inverse of `encode`. */
class SentencePieces {
  constructor(about) {
    this.about = about;
    this.names = about.pieces;
    this.ids = new Map(); // of the pieces that a text can contain
    this.bytes = [];
    this.symbols = []; // that are never split, longest first
    this.names.forEach((piece, id) => {
      const type = about.types[id];
      if (type === BYTE) this.bytes[parseInt(piece.slice(3, 5), 16)] = id;
      if (type === NORMAL || type === USER) this.ids.set(piece, id);
      if (type === USER) this.symbols.push(encoder.encode(piece));
    });
    this.symbols.sort((a, b) => b.length - a.length);
    const scores = about.scores.filter((_, id) => about.types[id] === NORMAL);
    this.best = scores.reduce((a, b) => Math.max(a, b), -Infinity);
    this.worst = Math.fround(scores.reduce((a, b) => Math.min(a, b), Infinity) - RARE);
    this.longest = 0;
    for (const piece of this.ids.keys()) this.longest = Math.max(this.longest, [...piece].length);
    this.charsmap = about.charsmap ? new Charsmap(about.charsmap) : null;
    this.knowsMarks = this.names.some((piece) => MARKS.test(piece));
    this.known = this.listKnown();
    this.spaceBytes = [...encoder.encode(SPACE)].map((byte) => this.bytes[byte] ?? UNK);
    this.putsSpace = this.normalise("a", true).startsWith(SPACE);
  }

  /** Compose accents with their letters (NFC), unless the model knows them apart. */
  compose(text) {
    return this.knowsMarks || !MARKS.test(text) ? text : text.normalize("NFC");
  }

  /** The ids of a text, without start and end. */
  encode(text) {
    return this.encodePart(text, true);
  }

  /** List the characters, or the words of a word model, that no piece has. */
  findUnknown(text) {
    const words = splitWords(this.normalise(text, true).replaceAll(SPACE, " "));
    const parts = this.about.kind === "word" ? words : words.join("");
    return [...new Set(parts)].filter((part) => !this.known.has(part));
  }

  /** The text of ids, without pad, start and end. */
  decode(ids) {
    const { dummy_prefix, squeeze } = this.about;
    let text = "";
    let begins = true; // no piece has been written yet
    let spaced = false; // the space before the first word has been left out
    let bytes = [];
    const flush = () => {
      text += readBytes(bytes);
      bytes = [];
    };
    for (const id of ids) {
      if (id === PAD || id === BOS || id === EOS) continue;
      if (this.about.types[id] === BYTE) {
        bytes.push(parseInt(this.names[id].slice(3, 5), 16));
        continue;
      }
      flush();
      if (spaced || text) begins = false;
      let piece = id === UNK ? this.about.unknown : this.names[id];
      spaced = false;
      if (this.about.types[id] === CONTROL) continue;
      if (id !== UNK && begins && (dummy_prefix || squeeze) && piece.startsWith(SPACE)) {
        piece = piece.slice(1);
        spaced = !squeeze; // a text whose blanks are squeezed does not begin with one
      }
      text += id === UNK ? piece : piece.replaceAll(SPACE, " ");
    }
    flush();
    return text;
  }

  /** A literal ▁ is written as its bytes, because it stands for a space in pieces. */
  encodePart(text, prefix) {
    if (!text.includes(SPACE) || this.spaceBytes.includes(UNK)) return this.cut(text, prefix);
    const [first, ...rest] = text.split(SPACE);
    const ids = this.encodePart(first, prefix);
    for (const part of rest) ids.push(...this.spaceBytes, ...this.encodeInside(part));
    return ids;
  }

  /** Encode text within a sentence, without the space that the model puts first. */
  encodeInside(text) {
    if (text[0] === " " && ![undefined, SPACE].includes(text[1]) && this.putsSpace) {
      return this.encode(text.slice(1));
    }
    return this.encodePart(text, this.about.kind === "word");
  }

  cut(text, prefix) {
    const normal = this.normalise(text, prefix);
    const cuts = { unigram: "cutUnigram", bpe: "cutBpe", word: "cutWords", char: "cutCharacters" };
    const ids = [];
    let unknown = false; // neighbouring unknown characters are one <unk>
    for (const piece of this[cuts[this.about.kind]](normal)) {
      const id = this.ids.get(piece);
      if (id !== undefined) ids.push(id);
      else if (this.bytes.length) for (const byte of encoder.encode(piece)) ids.push(this.bytes[byte]);
      else if (!unknown) ids.push(UNK);
      unknown = id === undefined;
    }
    return ids;
  }

  /** Find the pieces with the largest sum of scores (Viterbi), in float32. */
  cutUnigram(text) {
    const letters = [...text];
    const sums = new Float32Array(letters.length + 1);
    const starts = new Int32Array(letters.length + 1).fill(-1);
    const offer = (start, end, score) => {
      const sum = score + sums[start];
      if (starts[end] === -1 || sum > sums[end]) [sums[end], starts[end]] = [sum, start];
    };
    for (let start = 0; start < letters.length; start++) {
      let piece = "";
      const most = Math.min(letters.length, start + this.longest);
      for (let end = start + 1; end <= most; end++) {
        piece += letters[end - 1];
        const id = this.ids.get(piece);
        if (id !== undefined) {
          const symbol = this.about.types[id] === USER;
          const score = symbol ? encoder.encode(piece).length * this.best - 0.1 : this.about.scores[id];
          offer(start, end, score);
        }
      }
      if (!this.ids.has(letters[start])) offer(start, start + 1, this.worst);
    }
    const pieces = [];
    for (let end = letters.length; end > 0; end = starts[end]) {
      pieces.push(letters.slice(starts[end], end).join(""));
    }
    return pieces.reverse();
  }

  /** Merge the neighbours with the best score, the first of equal ones, again and again. */
  cutBpe(text) {
    const parts = this.cutCharacters(text);
    const frozen = parts.map((part) => this.about.types[this.ids.get(part)] === USER);
    const rate = (i) => {
      if (i < 0 || i + 1 >= parts.length || frozen[i] || frozen[i + 1]) return -Infinity;
      const id = this.ids.get(parts[i] + parts[i + 1]);
      return id === undefined ? -Infinity : this.about.scores[id];
    };
    const scores = parts.map((_, i) => rate(i));
    for (;;) {
      let best = 0;
      for (let i = 1; i < scores.length; i++) if (scores[i] > scores[best]) best = i;
      if (!parts.length || scores[best] === -Infinity) return parts;
      parts.splice(best, 2, parts[best] + parts[best + 1]);
      frozen.splice(best, 1);
      scores.splice(best, 1);
      for (const i of [best - 1, best]) if (i >= 0) scores[i] = rate(i);
    }
  }

  cutWords(text) {
    return text.match(new RegExp(`${SPACE}?[^${SPACE}]+|${SPACE}`, "gu")) ?? [];
  }

  cutCharacters(text) {
    const bytes = encoder.encode(text);
    const parts = [];
    for (let i = 0; i < bytes.length; ) {
      const size = this.symbolAt(bytes, i) || characterSize(bytes[i]);
      parts.push(decoder.decode(bytes.subarray(i, i + size)));
      i += size;
    }
    return parts;
  }

  /** Replace characters by the model's rules, and spaces by ▁. */
  normalise(text, prefix) {
    const bytes = encoder.encode(text);
    const { dummy_prefix, squeeze } = this.about;
    let made = "";
    let spaced = squeeze; // blanks at the beginning are left out
    for (let i = 0; i < bytes.length; ) {
      const symbol = this.symbolAt(bytes, i);
      const found = symbol ? null : this.charsmap?.find(bytes, i);
      const size = symbol || found?.size || characterSize(bytes[i]);
      let part = found ? found.text : decoder.decode(bytes.subarray(i, i + size));
      if (spaced) part = part.replace(/^ +/, "");
      if (part) spaced = squeeze && part.endsWith(" ");
      made += part;
      i += size;
    }
    if (squeeze) made = made.replace(/ +$/, "");
    if (!bytes.length || (squeeze && !made)) return "";
    return (dummy_prefix && prefix ? SPACE : "") + made.replaceAll(" ", SPACE);
  }

  symbolAt(bytes, i) {
    return this.symbols.find((symbol) => symbol.every((byte, k) => byte === bytes[i + k]))?.length ?? 0;
  }

  listKnown() {
    const { kind, types } = this.about;
    const pieces = this.names.filter((_, id) => id >= SPECIAL && types[id] !== BYTE);
    const bare = pieces.map((piece) => piece.replace(SPACE, (found, at) => (at ? found : "")));
    return new Set(kind === "word" ? bare : bare.join(""));
  }
}

/** Plain bytes: nothing to learn, nothing unknown. */
class Bytes {
  compose(text) {
    return text;
  }

  encode(text) {
    return [...encoder.encode(text)].map((byte) => SPECIAL + byte);
  }

  findUnknown() {
    return [];
  }

  decode(ids) {
    return decoder.decode(Uint8Array.from(ids.filter((id) => id >= SPECIAL).map((id) => id - SPECIAL)));
  }
}

/** The rules by which a SentencePiece model replaces characters: a double-array trie. */
class Charsmap {
  constructor(base64) {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const size = new DataView(bytes.buffer).getUint32(0, true);
    this.units = new Uint32Array(bytes.slice(4, 4 + size).buffer);
    this.texts = bytes.subarray(4 + size); // each ends with 0
  }

  /** Find the longest rule for the bytes from `i` on. */
  find(bytes, i) {
    const { units } = this;
    const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
    let found = null;
    for (let node = offset(units[0]), end = i; end < bytes.length; ) {
      node ^= bytes[end];
      const unit = units[node];
      if ((unit & 0x800000ff) >>> 0 !== bytes[end]) break;
      node ^= offset(unit);
      end += 1;
      if ((unit >>> 8) & 1) found = { size: end - i, at: units[node] & 0x7fffffff };
    }
    if (!found) return null;
    const { size, at } = found;
    return { size, text: decoder.decode(this.texts.subarray(at, this.texts.indexOf(0, at))) };
  }
}

/** The number of bytes of a character, from its first. */
function characterSize(byte) {
  return byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/** Read UTF-8; each byte that is part of no character becomes U+FFFD. */
function readBytes(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; ) {
    let size = characterSize(bytes[i]);
    try {
      if (i + size > bytes.length) throw new TypeError("a character is not complete");
      text += strict.decode(Uint8Array.from(bytes.slice(i, i + size)));
    } catch {
      text += REPLACEMENT;
      size = 1;
    }
    i += size;
  }
  return text;
}

/** The index of the word that each piece belongs to. */
function numberWords(tokenizer, ids) {
  return ids.map((_, i) => Math.max(splitWords(tokenizer.decode(ids.slice(0, i + 1))).length - 1, 0));
}
