"""Find faults in parallel text before training on it.

`inspect_corpus` reads each split once and keeps 32 bytes per pair (200 while counting),
so millions of pairs fit in memory. Costlier checks use a fixed sample, and say so.
Pitfall: checks with false alarms get ignored, so the thresholds spare clean text.
"""

import math
import re
import unicodedata
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product

import numpy as np

from transformer_jax.data.reading.filters import script_of

SIDES = ("source", "target")
SHOWN, WIDTH = 3, 120  # examples per finding, characters per example
WINDOW, WINDOWS = 400, 100  # lines per window of the sample, most windows
SHIFTS = 5  # lines before and after its place to look for a target
ALIKE = 0.9  # cosine of the word profiles of two texts in one language


@dataclass(frozen=True)
class Finding:
    """A fact about the text; a serious one would spoil a model trained on it."""

    serious: bool
    text: str
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Split:
    """A split's records {"source": …, "target": …}.

    `where(0, "target")` is "train.en, line 1"; without a side the place is that of the
    pair.
    """

    name: str
    records: Sequence[Mapping[str, str]]
    where: Callable[[int, str], str]
    apart: bool = False  # the task wants spaces between words and punctuation

    @cached_property
    def windows(self) -> list[range]:
        """The lines of the sample, which are all lines if the split is small."""
        total = len(self.records)
        count = min(WINDOWS, math.ceil(total / WINDOW))
        starts = np.linspace(0, max(0, total - WINDOW), count).astype(int).tolist()
        return [range(start, min(start + WINDOW, total)) for start in starts]

    @cached_property
    def sample(self) -> dict[int, Mapping[str, str]]:
        """The records of the sample, by index."""
        return {i: self.records[i] for i in sorted(set().union(*self.windows))}

    @cached_property
    def profiles(self) -> list[Counter[str]]:
        """Count the words of the sample, by side."""
        lines = self.sample.values()
        return [Counter(find_words("\n".join(r[s] for r in lines))) for s in SIDES]

    def show(self, index: int, side: str = "", detect=None) -> str:
        """Quote a line around the detected text, or both lines of a pair.

        Invisible characters are escaped.
        """
        parts = []
        for name in [side] if side else SIDES:
            text = self.records[index][name]
            match = detect and detect(text)
            at = match.start() if isinstance(match, re.Match) else 0
            start = max(0, at - WIDTH // 2)
            end = start + (WIDTH if side else WIDTH // 2)
            cut = "…" * (start > 0) + text[start:end] + "…" * (end < len(text))
            parts.append(repr(cut))
        return f"{self.where(index, side)}{side and ', '}{side}: {' | '.join(parts)}"


def inspect_corpus(train: Split, held_out: Sequence[Split]) -> dict[str, list[Finding]]:
    """Return the findings in each split, and in training with each held-out split."""
    overlap = Overlap(train, held_out)
    findings = {train.name: inspect_split(train, overlap.add)}
    crossed = [split.name for split in held_out if inspect_sides(train, split)]
    if len(crossed) == len(held_out) > 1:
        says = (
            f"{train.name} seems swapped: all of {', '.join(crossed)} disagree with it"
        )
        findings[train.name].insert(0, Finding(True, says))
    for split in held_out:
        findings[split.name] = inspect_split(split)
        both = inspect_sides(train, split) + overlap.findings(split)
        findings[f"{train.name} and {split.name}"] = both
    return findings


def inspect_split(split: Split, watch: Callable | None = None) -> list[Finding]:
    """Find oddities in a split; call `watch(index, source, target)` for each pair."""
    if not len(split.records):
        return [Finding(True, "there are no pairs")]
    hashes, chars, words, findings = _measure(split, watch)
    findings += _find_copies(split, hashes)
    findings += _find_odd_lengths(split, chars, words)
    findings += _find_odd_letters(split)
    findings += _find_misalignment(split)
    return sorted(findings, key=lambda finding: not finding.serious)


# UTF-8 bytes read as Windows-1252. "Ã¼" and "â€™" are not text in any language; other
# letters can precede such signs ("Spaß“", "Café»…"), but hardly ever twice in a row.
_NEXT = f"[\x80-\xbf{bytes(range(0x80, 0xA0)).decode('cp1252', 'ignore')}]"
_TWICE = re.compile(
    f"(?=[Â-ï]{_NEXT})"  # for speed
    f"(?:[ÂÃ][\x80-\xbfŒ-žƒˆ‰€‚„†‡‹›™]|â€|ï¿½|(?:[Ä-ß]{_NEXT}){{2}}|(?:[à-ï]{_NEXT}{{2}}){{2}})"
)
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\xad\u200b\u2028\u2029\u2060\ufeff]")
_ENTITY = re.compile(r"&(?:amp|quot|apos|lt|gt|nbsp|#\d+|#x[0-9a-fA-F]+);")
_MARK = re.compile(r"@-@|@@(?:\s|$)|▁")
_APART = re.compile(r"(?<=\w) [.,](?:\s|$)")
_OTHERWISE = "otherwise sacreBLEU scores are not comparable"
_SPACED = f"have spaced punctuation, as if tokenised: detokenise, {_OTHERWISE}"
# (message, detector for a line, share of lines above which to report it, and above
# which it is serious). Detectors see all lines, so cheap tests come first.
CHECKS = (
    ("are empty", lambda t: not t or t.isspace(), 0, 0.01),
    ("begin or end with white space", lambda t: t.strip() not in ("", t), 0, 1),
    ("contain U+FFFD: a conversion lost letters", lambda t: "\ufffd" in t, 0, 0.01),
    (
        "look encoded twice (UTF-8 read as Latin-1): convert them again",
        lambda t: not t.isascii() and _TWICE.search(t),
        0,
        0.01,
    ),
    (
        "contain control or invisible characters",
        lambda t: not t.isprintable() and _CONTROL.search(t),
        0,
        0.01,
    ),
    (
        f"contain HTML entities: unescape them, {_OTHERWISE}",
        lambda t: "&" in t and _ENTITY.search(t),
        0,
        0.01,
    ),
    (
        f"contain a tokenizer's marks (@-@, @@, ▁): undo them, {_OTHERWISE}",
        lambda t: ("@" in t or "▁" in t) and _MARK.search(t),
        0,
        0.01,
    ),
    (_SPACED, lambda t: (" ." in t or " ," in t) and _APART.search(t), 0.03, 0.3),
    ("have no capital letter: compare only lower-cased scores", str.islower, 0.99, 1),
)


def _measure(split: Split, watch):
    """Read all pairs once; return hashes, characters, words [2, pairs] and findings."""
    measures = (hash, len, lambda line: line.count(" ") + 1)
    columns = [(array(kind), array(kind)) for kind in "qii"]
    checks = [check for check in CHECKS if not (split.apart and check[0] == _SPACED)]
    hits = {(says, side): array("i") for says, *_ in checks for side in SIDES}
    records, start = iter(split.records), 0
    while chunk := list(islice(records, 10_000)):
        texts = [[record[side] for record in chunk] for side in SIDES]
        for side, lines in enumerate(texts):
            for column, measure in zip(columns, measures, strict=True):
                column[side].extend(map(measure, lines))
            for says, detect, *_ in checks:
                new = [i for i, line in enumerate(lines, start) if detect(line)]
                hits[says, SIDES[side]].extend(new)
        if watch:
            for i, (source, target) in enumerate(zip(*texts, strict=True), start):
                watch(i, source, target)
        start += len(chunk)
    findings = []
    for (says, detect, notable, serious), side in product(checks, SIDES):
        if len(lines := hits[says, side]) > notable * start:
            findings += _report(split, lines, start, says, serious, side, "", detect)
    return *map(np.asarray, columns), findings


def _report(split, hits, total, says, serious=1.0, side="", noun="", detect=None):
    """Yield a finding with the first hits, if any; it is serious above a share."""
    if len(hits):
        counted = _count(hits, total, noun or (f"{side}s" if side else "pairs"))
        shown = tuple(split.show(int(i), side, detect) for i in hits[:SHOWN])
        yield Finding(len(hits) > serious * total, f"{counted} {says}", shown)


def _count(hits, total: int, noun: str) -> str:
    return f"{len(hits):,} of {total:,} {noun} ({100 * len(hits) / total:.2f} %)"


def _find_copies(split: Split, hashes: np.ndarray) -> Iterator[Finding]:
    """Find targets equal to their sources, repeated pairs, and ambiguous lines."""
    total = hashes.shape[1]
    # Names and numbers are copied rightly; more than that teaches a model to copy.
    same = np.flatnonzero((hashes[0] == hashes[1]) & (hashes[0] != hash("")))
    yield from _report(split, same, total, "have a target equal to the source", 0.05)
    mixed = hashes[0] ^ (hashes[1] * np.int64(0x9E3779B97F4A7C1))
    _, first, times = np.unique(mixed, return_index=True, return_counts=True)
    first = np.sort(first)  # the order of hashes differs between runs
    again = np.setdiff1d(np.arange(total), first)
    says = f"repeat an earlier one (one occurs {times.max():,} times)"
    yield from _report(split, again, total, says, 0.5)
    for side, other, keys in zip(SIDES, SIDES[::-1], hashes[:, first], strict=True):
        _, at, times = np.unique(keys, return_index=True, return_counts=True)
        many = first[at[np.lexsort((at, -times))[: (times > 1).sum()]]]
        says = f"have several {other}s, up to {times.max():,}"
        yield from _report(split, many, len(at), says, 1, side, f"different {side}s")


def _find_odd_lengths(split: Split, chars, words) -> Iterator[Finding]:
    """Find pairs whose lengths differ far more than usual, and enormous lines."""
    ratios = [np.log((n[0] + 1) / (n[1] + 1)) for n in (chars, words)]
    far = [abs(ratio - np.median(ratio)) for ratio in ratios]
    # Short lines vary randomly, and word counts mean nothing in unspaced scripts.
    odd = far[0] * (chars.max(0) >= 30)
    if np.median(words, axis=1).min() >= 4:
        odd = np.maximum(odd, far[1] * (words.max(0) >= 12))
    odd[chars.min(0) == 0] = 0  # reported as empty
    worst = np.argsort(-odd, kind="stable")[: (odd > math.log(3)).sum()]
    says = "have sides whose lengths differ over 3 times more than usual"
    yield from _report(split, worst, odd.size, says, 0.05)
    for side, lengths in zip(SIDES, chars, strict=True):
        usual = int(np.median(lengths))
        count = (lengths > max(1000, 10 * usual)).sum()
        longest = np.argsort(-lengths, kind="stable")[:count]
        says = f"have up to {lengths.max():,} characters, where {usual:,} are usual"
        yield from _report(split, longest, odd.size, says, side=side)


def _find_odd_letters(split: Split) -> Iterator[Finding]:
    """Find lines in another script, and sides that seem to be in one language."""
    sampled = "" if len(split.sample) == len(split.records) else "sampled "
    for side in SIDES:
        lines = {i: record[side] for i, record in split.sample.items()}
        scripts = {}
        for i, line in lines.items():
            if counts := Counter(filter(None, map(script_of, line))):
                scripts[i] = counts.most_common(1)[0][0]
        usual = Counter(scripts.values()).most_common(1)[0][0] if scripts else ""
        odd = [i for i, script in scripts.items() if script != usual]
        says = f"have most letters in another script than {usual.title()}"
        yield from _report(
            split, odd, len(lines), says, 0.05, side, f"{sampled}{side}s"
        )
    if (alike := _compare(*split.profiles)) > ALIKE:
        says = f"both sides seem to be in one language: words are {alike:.2f} alike"
        yield Finding(False, says)


def _compare(one: Counter[str], two: Counter[str]) -> float:
    """Return the cosine of two word profiles: 0.95 in one text, 0.1 for en and de."""
    shared = sum(count * two[word] for word, count in one.items() if word in two)
    squares = [sum(count * count for count in c.values()) for c in (one, two)]
    return shared / math.sqrt(math.prod(squares)) if shared else 0.0


def inspect_sides(train: Split, held_out: Split) -> list[Finding]:
    """Find held-out sides in the language of the other side of training.

    Two splits alone do not tell which of them has the wrong order.
    """
    (source, target), (held_source, held_target) = train.profiles, held_out.profiles
    straight = _compare(held_source, source), _compare(held_target, target)
    crossed = _compare(held_source, target), _compare(held_target, source)
    if crossed[0] < straight[0] + 0.1 or crossed[1] < straight[1] + 0.1:
        return []
    says = f"{train.name} or {held_out.name} is swapped: the words of each side match "
    says += f"the other side ({crossed[0]:.2f} and {crossed[1]:.2f} alike, but only "
    says += f"{straight[0]:.2f} and {straight[1]:.2f} with the same side)"
    return [Finding(True, says, (train.show(0), held_out.show(0)))]


def _find_misalignment(split: Split) -> Iterator[Finding]:
    """Find windows in which targets fit other sources better than their own, or none.

    See `_score` for how a fit is measured.
    """
    if len(split.records) < 100 or _compare(*split.profiles) > ALIKE:
        return  # too few lines to judge; turns of a dialogue need not agree
    fits = [_fit([split.sample[i] for i in window]) for window in split.windows]
    # In real text the best shift has a t of 6 to 20, or of 1 if lengths are equal.
    shifted = [n for n, (shift, t) in enumerate(fits) if shift and t > 3]
    # Judge three windows together, because one can be a list of similar names.
    right = [-t if shift else t for shift, t in fits]
    lost = [n for n in range(len(fits)) if sum(right[max(0, n - 1) : n + 2]) < 2]
    if not shifted and not lost:
        return
    first = (shifted or lost)[0]
    start = split.windows[max(first - 1, 0)].start
    says = "lengths, numbers and names of source and target agree only by chance"
    if shifted:
        shift, span = fits[first][0], range(start, split.windows[first].stop)
        scores = _score([split.records[i] for i in span])
        gain = np.cumsum(scores[SHIFTS + shift] - scores[SHIFTS])
        # The gain falls while lines are aligned, and rises afterwards.
        start += 0 if gain.min() > 0 else SHIFTS + int(gain.argmin()) + 1
        where = "later: only the target" if shift > 0 else "earlier: only the source"
        says = f"the right target comes {abs(shift)} line(s) {where} has a line there"
    says = f"from about {split.where(start, '')} on, {says}"
    says += f" (in {len(shifted or lost)} of {len(fits)} windows of lines)"
    examples = map(split.show, range(len(split.records))[start : start + SHOWN])
    yield Finding(True, says, tuple(examples))


def _fit(lines: Sequence[Mapping[str, str]]) -> tuple[int, float]:
    """Return the shift at which targets fit best, and its lowest t over others."""
    scores = _score(lines)
    best = int(scores.mean(axis=1).argmax())
    # Against each other shift, not their mean: lengths in Multi30k oscillate.
    gains = scores[best] - np.delete(scores, best, axis=0)
    spread = np.maximum(gains.std(axis=1), 1e-9) / math.sqrt(gains.shape[1])
    return best - SHIFTS, float((gains.mean(axis=1) / spread).min())


def _score(lines: Sequence[Mapping[str, str]]) -> np.ndarray:
    """Score how well source i fits target i + shift [shifts, lines - 2 * SHIFTS]."""
    source, target = (_trace([line[side] for line in lines]) for side in SIDES)
    inner = slice(SHIFTS, -SHIFTS)
    x, end, stems = source[0][inner], source[1][inner], source[2][inner]
    scores = []
    for shift in range(-SHIFTS, SHIFTS + 1):
        there = slice(SHIFTS + shift, SHIFTS + shift + len(x))
        y, their_end = target[0][there], target[1][there]
        pairs = zip(stems, target[2][there], strict=True)
        shared = [2 * len(a & b) / (len(a) + len(b) or 1) for a, b in pairs]
        # Weighted so that each part varies about equally over real text.
        scores.append(x * y + 2 * (end == their_end) + 5 * np.asarray(shared))
    return np.asarray(scores)


def _trace(lines: list[str]) -> tuple[np.ndarray, np.ndarray, list[set[str]]]:
    """Extract what survives translation: length, last character, numbers, names."""
    lengths = np.log([1.0 + len(line) for line in lines])
    ends = np.array([unicodedata.normalize("NFKC", line[-1:]) for line in lines])
    stems = [set(_STEM.findall(line.lower())) for line in lines]
    return (lengths - lengths.mean()) / (lengths.std() or 1.0), ends, stems


class Overlap:
    """Finds held-out pairs that also occur in training, in one pass over training."""

    LEVELS = (
        "nearly (70 % of the three-word sequences of both)",
        "except for case and punctuation",
        "with another target",
        "word for word",
    )

    def __init__(self, train: Split, held_out: Sequence[Split]):
        self.train = train
        self.items = [(s, i, r) for s in held_out for i, r in enumerate(s.records)]
        self.best: dict[int, tuple[int, int]] = {}  # item → (level, -line of training)
        self.same: defaultdict[str, list[int]] = defaultdict(list)
        self.rare: defaultdict[tuple, list[int]] = defaultdict(list)
        words = [find_words(record["source"]) for _, _, record in self.items]
        self.parts = [set(_triples(w)) for w in words]
        frequency = Counter(part for parts in self.parts for part in parts)
        for item, parts in enumerate(self.parts):
            self.same["".join(words[item])].append(item)
            # A text that shares 70 % of n parts has one of any 30 % + 1 of them, so
            # indexing the rarest is enough. A test compares an exhaustive search.
            enough = len(parts) - math.ceil(0.7 * len(parts)) + 1
            for part in sorted(parts, key=lambda p: (frequency[p], p))[:enough]:
                self.rare[part].append(item)

    def add(self, index: int, source: str, target: str) -> None:
        """Compare a training pair with all held-out pairs."""
        words, levels = find_words(source), {}
        if not self.rare.keys().isdisjoint(_triples(words)):
            parts = set(_triples(words))
            for item in {item for part in parts for item in self.rare.get(part, ())}:
                held = self.parts[item]
                if len(parts & held) >= 0.7 * len(parts | held):  # Jaccard
                    levels[item] = 0
        for item in self.same.get("".join(words), ()):
            held = [self.items[item][2][side] for side in SIDES]
            levels[item] = 1 + (held[0] == source) + (held == [source, target])
        for item, level in levels.items():
            self.best[item] = max((level, -index), self.best.get(item, (-1, 0)))

    def findings(self, split: Split) -> list[Finding]:
        """Return the findings of a held-out split, after adding all training pairs."""
        best = [(*self.items[item][:2], *match) for item, match in self.best.items()]
        hits = sorted((-level, i, -line) for s, i, level, line in best if s is split)
        if not hits:
            return []
        counts, total = Counter(-level for level, _, _ in hits), len(split.records)
        parts = [f"{counts[n]:,} {self.LEVELS[n]}" for n in (3, 2, 1, 0) if counts[n]]
        says = f"{_count(hits, total, 'pairs')} of {split.name} occur in "
        says += f"{self.train.name}: {', '.join(parts)}"
        shown = [f"{split.show(i)} = {self.train.show(n)}" for _, i, n in hits[:SHOWN]]
        # Memorised pairs score 100, not 30: 1 % of them raises BLEU by more than half
        # a point, which papers report as progress.
        return [Finding(counts[3] > 0.01 * total, says, tuple(shown))]


# Four letters identify a name or a cognate. Each ideograph or kana is a word.
_STEM = re.compile(r"\b[^\W\d_]{4}|\d+")
_WORD = re.compile("[^\\W_\u3040-\u30ff\u3400-\u9fff]+|[\u3040-\u30ff\u3400-\u9fff]")


def find_words(text: str) -> list[str]:
    """List the words of a text in lower case; a text without any is its own word."""
    return _WORD.findall(text.lower()) or [text]


def _triples(words: list[str]) -> Iterator[tuple[str, ...]]:
    return zip(words, words[1:], words[2:], strict=False)
