// Beam search, as this project's commands do it: `beams` hypotheses, ranked by
//
//   score(Y) = log P(Y | X) / ((5 + |Y|) / 6)^alpha + coverage · Σ_s log min(Σ_t a_ts, 1)
//
// A hypothesis that ends leaves the beam, which is narrower by one from then on, so a beam
// of 1 is greedy search. The search stops when no living hypothesis can beat the best
// finished ones.

const penalty = (length, alpha) => ((5 + length) / 6) ** alpha;

/** The most pieces that an answer may have, with its end. */
function longestAnswer(pieces, options) {
  return Math.max(options.max_length || pieces + options.extra_length, 1);
}

/**
 * Find the best `n_best` answers to a source, best first.
 *
 * Each has its `ids`, `score` and `logProb`, and for each id the `attention` to the source
 * with which it was written.
 */
function search(model, source, options) {
  const { beams, alpha, n_best } = options;
  const limit = longestAnswer(source.length - 1, options);
  model.reserve(source.length, beams);
  const memory = model.encode(source);
  const written = model.begin(beams * limit);
  const S = source.length;
  const attended = new Float32Array(beams * limit * S); // by slot of the written pieces
  const finished = [];
  let living = [{ ids: [], logProb: 0, path: [], last: BOS }];
  for (let step = 0; living.length && step < limit; step++) {
    const paths = living.map(({ path }, r) => [...path, step * beams + r]);
    const attention = attended.subarray(step * beams * S, (step * beams + living.length) * S);
    const found = model.kernel.borrow(() => {
      const last = living.map((hypothesis) => hypothesis.last);
      const logits = model.extend(last, step, paths, written, memory, attention);
      return chooseNext(model, living, logits, step, limit, options);
    });
    // At first there is one hypothesis, not `beams` equal ones.
    const best = found.sort((a, b) => b.logProb - a.logProb || a.order - b.order).slice(0, beams - finished.length);
    living = [];
    for (const { parent, id, logProb } of best) {
      const [ids, path] = [[...parent.ids, id], paths[parent.row]];
      if (id === EOS) {
        const rows = path.map((slot) => attended.subarray(slot * S, (slot + 1) * S));
        const score = logProb / penalty(step + 1, alpha) + options.coverage * uncovered(rows, S, options);
        finished.push({ ids, logProb, score, attention: rows });
      } else living.push({ ids, path, logProb, last: id });
    }
    const reach = Math.max(
      ...living.map(({ logProb }) => Math.max(logProb / penalty(limit, alpha), logProb / penalty(step + 2, alpha))),
    );
    finished.sort((a, b) => b.score - a.score);
    if (finished.length >= n_best && finished[n_best - 1].score >= reach) break;
  }
  return finished.slice(0, n_best);
}

/** The best next pieces of each hypothesis that the rules allow. */
function chooseNext(model, living, logits, step, limit, options) {
  const { vocabulary, absent } = model.options;
  const few = Math.min(options.beams, vocabulary);
  const found = [];
  living.forEach((parent, row) => {
    parent.row = row;
    const own = logits.subarray(row * vocabulary, (row + 1) * vocabulary);
    for (const id of absent) own[id] = -1e3;
    own[PAD] = own[BOS] = -Infinity;
    const total = logSumExp(own);
    const offer = (id, order) => found.push({ parent, id, logProb: parent.logProb + own[id] - total, order });
    if (step + 1 >= limit) {
      offer(EOS, row * few);
      return;
    }
    if (step + 1 < options.min_length) own[EOS] = -Infinity;
    for (const id of repeated(parent.ids, options.no_repeat)) if (id !== EOS) own[id] = -Infinity;
    largest(own, few).forEach((id, i) => own[id] > MASKED && offer(id, row * few + i));
  });
  return found;
}

function logSumExp(x) {
  let [peak, sum] = [-Infinity, 0];
  for (let i = 0; i < x.length; i++) if (x[i] > peak) peak = x[i];
  for (let i = 0; i < x.length; i++) sum += Math.exp(x[i] - peak);
  return peak + Math.log(sum);
}

/** The places of the largest numbers, largest first; of equal ones the first. */
function largest(x, count) {
  const best = [];
  for (let i = 0; i < x.length; i++) {
    if (best.length === count && !(x[i] > x[best[count - 1]])) continue;
    let place = best.length;
    while (place && x[i] > x[best[place - 1]]) place--;
    best.splice(place, 0, i);
    if (best.length > count) best.pop();
  }
  return best;
}

/** The pieces that would complete an n-gram for the second time. */
function repeated(ids, n) {
  const found = [];
  for (let i = 0; n && i + n <= ids.length; i++) {
    let same = true;
    for (let k = 0; k < n - 1; k++) same &&= ids[i + k] === ids[ids.length - n + 1 + k];
    if (same) found.push(ids[i + n - 1]);
  }
  return found;
}

/** Σ_s log min(attention, 1); 0 if every piece of the source is covered. */
function uncovered(attention, S, options) {
  if (!options.coverage) return 0;
  let sum = 0;
  for (let s = 0; s < S; s++) {
    const seen = attention.reduce((total, row) => total + row[s], 0);
    sum += Math.log(Math.min(Math.max(seen, 1e-9), 1));
  }
  return sum;
}
