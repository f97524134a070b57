// The product of rows with a matrix, where a translation spends most of its time.
//
//   y[r, o] = Σ_k x[r, k] · w[o, k]
//
// A matrix lies in the memory of WebAssembly, one output after another, as float32. The
// loop is written twice: plainly, and with instructions that multiply four numbers at
// once. Browsers without those, and sizes that are no multiple of 8, take the plain one.

const PAGE = 65536; // bytes in which WebAssembly counts memory
const TILE = 4; // outputs that are computed together
const STEP = 8; // numbers that are read at once

/** Memory for weights and for the numbers of one search, and the product over it. */
class Kernel {
  constructor(plain = false) {
    this.memory = new WebAssembly.Memory({ initial: 1 });
    this.floats = new Float32Array(this.memory.buffer);
    this.used = 0; // floats in use, from the beginning of the memory
    this.fast = plain ? null : assemble(this.memory);
  }

  /** Make room for this many more floats; views that were taken before become invalid. */
  reserve(count) {
    const missing = (this.used + count) * 4 - this.memory.buffer.byteLength;
    if (missing > 0) this.memory.grow(Math.ceil(missing / PAGE));
    this.floats = new Float32Array(this.memory.buffer);
  }

  /** Take floats that no one else uses, on a border of 16 bytes. */
  take(count) {
    const at = this.used;
    if (at + count > this.floats.length) throw new RangeError("the memory that was reserved is full");
    this.used = Math.ceil((at + count) / 4) * 4;
    return this.floats.subarray(at, at + count);
  }

  /** Run a function, and give back the memory that it took. */
  borrow(work) {
    const before = this.used;
    const result = work();
    this.used = before;
    return result;
  }

  /** Multiply `rows` rows of x with a matrix of `outs` × `size`. */
  product(x, rows, matrix, y) {
    const { at, outs, size } = matrix;
    const done = this.fast && size % STEP === 0 ? outs - (outs % TILE) : 0;
    if (done) this.fast(x.byteOffset, rows, at * 4, done, size * 4, y.byteOffset, outs * 4);
    multiplyPlainly(x, rows, this.floats, at, size, y, outs, done);
  }
}

/** The product from output `first` on. */
function multiplyPlainly(x, rows, w, at, size, y, outs, first) {
  for (let r = 0; r < rows; r++) {
    for (let o = first; o < outs; o++) {
      let sum = 0;
      for (let k = 0, i = r * size, j = at + o * size; k < size; k++) sum += x[i++] * w[j++];
      y[r * outs + o] = sum;
    }
  }
}

/**
 * Assemble the fast loop; return null where the browser cannot run it.
 *
 *   for o = 0, 4, … outs:  for r = 0 … rows:  y[r, o … o+3] = x[r] · w[o … o+3]
 *
 * Sizes and strides are in bytes. Four sums of four numbers each are kept at a time, so
 * that a number of x is read once for four outputs, and four outputs once for all rows.
 */
function assemble(memory) {
  const [x, rows, w, outs, size, y, stride] = [0, 1, 2, 3, 4, 5, 6]; // parameters
  const [r, k, from, to] = [7, 8, 9, 10]; // further integers
  const left = [11, 12, 13, 14]; // addresses in four rows of w
  const [read, sums] = [15, [16, 17, 18, 19]]; // vectors
  const [I32, V128, NOTHING, END] = [0x7f, 0x7b, 0x40, 0x0b];
  const get = (i) => [0x20, i];
  const set = (i) => [0x21, i];
  const number = (n) => [0x41, n]; // below 64
  const plus = (a, b) => [...a, ...b, 0x6a];
  const less = (a, b) => [...a, ...b, 0x49];
  const increase = (i, by) => [...plus(get(i), by), ...set(i)];
  const loop = (body, condition) => [0x03, NOTHING, ...body, ...condition, 0x0d, 0, END];
  const vector = (address, offset) => [...address, 0xfd, 0x00, 2, offset];
  const zero = [0xfd, 0x0c, ...new Array(16).fill(0)];
  const [TIMES, PLUS] = [[0xfd, 0xe6, 0x01], [0xfd, 0xe4, 0x01]]; // f32x4
  const lane = (i, n) => [...get(i), 0xfd, 0x1f, n];
  const total = (i) => [...lane(i, 0), ...lane(i, 1), 0x92, ...lane(i, 2), 0x92, ...lane(i, 3), 0x92];
  const store = (address, offset, value) => [...address, ...value, 0x38, 2, offset];

  const multiply = [0, 16].flatMap((offset) => [
    ...vector(plus(get(from), get(k)), offset),
    ...set(read),
    ...sums.flatMap((sum, i) => [
      ...get(sum), ...get(read), ...vector(plus(get(left[i]), get(k)), offset), ...TIMES, ...PLUS, ...set(sum),
    ]),
  ]);
  const row = [
    ...sums.flatMap((sum) => [...zero, ...set(sum)]),
    ...number(0), ...set(k),
    ...loop([...multiply, ...increase(k, number(32))], less(get(k), get(size))),
    ...sums.flatMap((sum, i) => store(get(to), 4 * i, total(sum))),
    ...increase(from, get(size)), ...increase(to, get(stride)), ...increase(r, number(1)),
  ];
  const tile = [
    ...get(w), ...set(left[0]),
    ...[1, 2, 3].flatMap((i) => [...plus(get(left[i - 1]), get(size)), ...set(left[i])]),
    ...get(x), ...set(from), ...get(y), ...set(to), ...number(0), ...set(r),
    ...loop(row, less(get(r), get(rows))),
    ...plus(get(left[3]), get(size)), ...set(w), ...increase(y, number(16)),
    ...get(outs), ...number(TILE), 0x6b, ...set(outs),
  ];
  const body = [2, 8, I32, 5, V128, ...loop(tile, get(outs)), END];

  const size128 = (n) => (n < 128 ? [n] : [(n & 127) | 128, ...size128(n >> 7)]);
  const section = (id, bytes) => [id, ...size128(bytes.length), ...bytes];
  const name = (text) => [text.length, ...new TextEncoder().encode(text)];
  const module = new Uint8Array([
    ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0], // "\0asm", version 1
    ...section(1, [1, 0x60, 7, ...new Array(7).fill(I32), 0]), // a type: 7 integers, no result
    ...section(2, [1, ...name("page"), ...name("memory"), 2, 0, 1]),
    ...section(3, [1, 0]),
    ...section(7, [1, ...name("product"), 0, 0]),
    ...section(10, [1, ...size128(body.length), ...body]),
  ]);
  if (!WebAssembly.validate(module)) return null;
  const made = new WebAssembly.Instance(new WebAssembly.Module(module), { page: { memory } });
  return made.exports.product;
}
