"""Let CTranslate2 search the answers: `predict --engine=ctranslate2`.

    run = transformer_jax.load(RUN, engine="ctranslate2:int8")

It answers the requests of this package's engine with hypotheses, so that lines, blank
ones too, prefixes, errors and scores are treated alike. The export is made once and
kept beside the run or, for a bundle or where that is not writable, in the cache. The
first lines are searched by both engines: how many answers are equal is said, and kept.

CTranslate2 ranks hypotheses by their log-probability, and those that it returns are
ranked again by this package's length penalty. Options to which it gives another meaning
are refused. A beam in which a hypothesis reaches its limit is left to this package's
engine, because CTranslate2 cuts a text there, and this package ends it.
"""

import abc
import collections
import dataclasses
import hashlib
import itertools
import json
import logging
import os
import pathlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.base import files
from transformer_jax.base.errors import Refused, UserError, nearest
from transformer_jax.base.ids import BOS, EOS
from transformer_jax.convert import ctranslate2 as convert
from transformer_jax.data import cache
from transformer_jax.decoding import DecodeRequest, Options
from transformer_jax.decoding.engine import Hypothesis, longest_answer
from transformer_jax.decoding.searches.beam import length_penalty
from transformer_jax.runs import bundle
from transformer_jax.runs.run import Run
from transformer_jax.sharding import Params, path_name

logger = logging.getLogger(__name__)

FLOAT = "float32"  # the type of a run's parameters
BATCH = 64  # requests that are searched together at most
FOLDER = "ctranslate2"  # of exports, in a run directory or in the cache
KEPT = 4  # exports in such a folder; the oldest ones make room
SAMPLE = 50  # requests that both engines search, to compare their answers
LEAST = 0.5  # the share of equal answers; a wrong export has hardly any
SHOWN = 3  # different answers that are shown
HELD_OUT, GIVEN = "validation", "the input"  # where the compared lines are from

Found = Iterator[tuple[int, list[Hypothesis]]]


def open_engine(run: Run, setting: str = "") -> "Engine":
    """Make the engine of a run; the setting is the type of its matrices."""
    return Engine(run, setting or FLOAT)


@dataclasses.dataclass(frozen=True)
class Check:
    """The number of lines with the same answer from both engines."""

    lines: int
    equal: int
    of: str  # the split, or the lines given
    options: str

    def __str__(self):
        return (
            f"{self.equal} of {self.lines} lines of {self.of} have the same answer as "
            f"by JAX ({self.options})"
        )

    def suffices(self, count: int) -> bool:
        """Return whether so many lines need no other check."""
        return self.of == HELD_OUT or self.lines >= min(count, SAMPLE)


class Engine:
    """Search with CTranslate2; the model is exported and opened when it is needed."""

    def __init__(self, run: Run, kind: str):
        """Make an engine; refuse a run or a type of matrices that it does not have."""
        self.library, self.run, self.kind = convert.library(), run, kind
        convert.check_exportable(run)
        self.device = _choose_device(self.library)
        can = sorted(self.library.get_supported_compute_types(self.device))
        if kind not in can:
            raise UserError(
                f"CTranslate2 computes with {' | '.join(can)} on this {self.device}, "
                f"not with {kind!r}.{nearest(kind, can)}"
            )
        self.workers = _count_cores() if self.device == "cpu" else 1
        self._lock = threading.Lock()
        self._place: pathlib.Path | None = None
        self._model: Any = None
        self._check: Check | None = None

    def search(
        self, params: Params, requests: Sequence[DecodeRequest], options: Options
    ) -> Found:
        """Yield (number of a request, its hypotheses), in any order."""
        refuse(options, self.run.config.task)
        if params is not self.run.params:  # others than those exported
            yield from self._search_here(params, requests, options)
        elif requests:
            with self._lock:
                self._prepare(requests, options)
            yield from self._search(requests, options)

    def _search(self, requests: Sequence[DecodeRequest], options: Options) -> Found:
        """Search; leave requests that CTranslate2 treats otherwise to this package."""
        left = [i for i, one in enumerate(requests) if self._is_other(one, options)]
        numbers = sorted({*range(len(requests))} - {*left})
        underway: collections.deque = collections.deque()

        def take() -> Found:
            members, results = underway.popleft()
            asked = [requests[i] for i in members]
            answers = self._model.read(asked, [r.result() for r in results], options)
            for i, found in zip(members, answers, strict=True):
                if found is None:
                    left.append(i)
                else:
                    yield i, found

        for members in self._batch(requests, numbers, options):
            asked = [requests[i] for i in members]
            underway.append((members, self._model.submit(asked, options)))
            if len(underway) > 2 * self.workers:  # nobody waits, and few are ahead
                yield from take()
        while underway:
            yield from take()
        if left:
            logger.info(
                "note       %d of %d lines searched by JAX: they reach the limit of an "
                "answer, or have words to include or a length or beginning that "
                "CTranslate2 treats otherwise",
                len(left),
                len(requests),
            )
            asked = [requests[i] for i in left]
            for place, found in self._search_here(self.run.params, asked, options):
                yield left[place], found

    def _search_here(
        self, params: Params, requests: Sequence[DecodeRequest], options: Options
    ) -> Found:
        inference: Any = self.run.task.inference
        engine = inference.writer.engine(self.run.mesh)
        return engine.search(params, requests, options)

    def _is_other(self, request: DecodeRequest, options: Options) -> bool:
        """Return whether CTranslate2 would treat a request in another way.

        It may need more positions than the export has, words to include, or have a
        beginning whose n-grams may not occur again, which CTranslate2 reads apart.
        """
        if request.constraint:
            return True
        if options.no_repeat and request.prefix:
            return True
        if self.run.config.model.positions not in ("sinusoid", "sinusoid_concat"):
            return False
        written = len(request.prefix) + longest_answer(request, options)
        return max(len(request.source), written) > convert.POSITIONS

    def _batch(
        self, requests: Sequence[DecodeRequest], numbers: list[int], options: Options
    ) -> Iterator[list[int]]:
        """Yield the numbers of requests that are searched together, longest first."""
        kinds: dict[int, list[int]] = {}
        for i in sorted(numbers, key=lambda i: -len(requests[i].source)):
            kinds.setdefault(self._model.kind_of(requests[i], options), []).append(i)
        rows = max(1, min(BATCH, -(-len(numbers) // self.workers)))
        for members in kinds.values():
            for begin in range(0, len(members), rows):
                yield members[begin : begin + rows]

    def _prepare(self, requests: Sequence[DecodeRequest], options: Options) -> None:
        """Export, open and check the model, as far as that has not been done."""
        if self._model is None:
            self._place = self._export()
            self._model = self._open(self._place)
            logger.info(
                "engine     CTranslate2 %s answers: %s on %s, %d worker%s of 1 thread",
                self.library.__version__,
                self.kind,
                self.device,
                self.workers,
                "s" * (self.workers > 1),
            )
            self._check = _read_check(self._note)
            if self._check and self._check.suffices(len(requests)):
                logger.info("checked    %s", self._check)
        if self._check is None or not self._check.suffices(len(requests)):
            self._check = self._compare(requests, options)
            note = json.dumps(dataclasses.asdict(self._check))
            files.write(self._note, note)
            logger.info("checked    %s", self._check)
        if self._check.equal < LEAST * self._check.lines:
            raise UserError(
                f"CTranslate2 with {self.kind} answers in another way: only "
                f"{self._check}: choose another type, such as ctranslate2:{FLOAT}, or "
                "leave out the engine"
            )

    @property
    def _note(self) -> pathlib.Path:
        assert self._place
        return self._place / f"checked-{self.kind}.json"

    def _export(self) -> pathlib.Path:
        """Return the folder of the export, which is made unless it is there."""
        name = self._fingerprint()
        shared = cache.folder() / FOLDER / name
        folder = self.run.folder
        if folder.place != folder.path or bundle.is_bundle(folder.path):
            return self._build(shared)
        try:
            return self._build(folder.path / FOLDER / name)
        except (OSError, UserError) as error:
            logger.debug("the run keeps no export: %s", error)
        return self._build(shared)

    def _build(self, entry: pathlib.Path) -> pathlib.Path:
        def make(temporary: pathlib.Path) -> None:
            logger.info("converting %s for CTranslate2, once", self.run.folder.place)
            temporary.rmdir()  # `export` makes its folder
            convert.export(self.run, temporary)
            cache.remove_oldest(entry.parent, KEPT)

        return cache.build_once(entry, make)

    def _fingerprint(self) -> str:
        """Return a digest of all that determines the export."""
        run = self.run
        digest = hashlib.sha256(pathlib.Path(convert.__file__).read_bytes())
        digest.update(self.library.__version__.encode())
        digest.update(json.dumps(run.folder.identity(run.config).content).encode())
        for path, leaf in jax.tree_util.tree_leaves_with_path(run.params):
            digest.update(path_name(path).encode())
            digest.update(np.ascontiguousarray(leaf).view(np.uint8).data)
        return digest.hexdigest()[:24]

    def _open(self, place: pathlib.Path) -> Any:
        data: Any = self.run.task.data
        language = self.run.config.task == "language"
        opened = self.library.Generator if language else self.library.Translator
        model = opened(
            str(place),
            device=self.device,
            compute_type=self.kind,
            inter_threads=self.workers,
            intra_threads=1,
        )
        if language:
            return _Texts(model, data.tokenizer.tokens())
        tokens = data.source_tokenizer.tokens(), data.target_tokenizer.tokens()
        return _Translations(model, *tokens)

    def _compare(self, requests: Sequence[DecodeRequest], options: Options) -> Check:
        """Search a sample of requests with both engines, and compare the answers.

        Random answers would differ, so sampling is checked by a greedy search.
        """
        given, asked = self.run.config.decode.max_length, options.max_length
        options = dataclasses.replace(
            options,
            sample=False,
            beams=1 if options.sample else options.beams,
            n_best=1,
            min_length=0,
            max_length=min(given, asked) or asked,  # prompts leave space for `given`
        )
        sample, of = self._held_out(options), HELD_OUT
        if not sample:
            sample, of = [*requests[:SAMPLE]], GIVEN
        here = dict(self._search_here(self.run.params, sample, options))
        there, different = dict(self._search(sample, options)), 0
        inference: Any = self.run.task.inference
        for i, request in enumerate(sample):
            ours, theirs = (
                inference.writer.tokenizer.decode([*request.prefix, *one.tokens])
                for one in (here[i][0], there[i][0])
            )
            different += ours != theirs
            if ours != theirs and different <= SHOWN:
                logger.warning(
                    "different  %r: %r by CTranslate2, %r by JAX",
                    request.line,
                    theirs,
                    ours,
                )
        how = f"beams {options.beams}, alpha {options.alpha}"
        return Check(len(sample), len(sample) - different, of, how)

    def _held_out(self, options: Options) -> list[DecodeRequest]:
        """Return requests of the validation split; none if it cannot be read."""
        run, found = self.run, []
        inference, longest = run.task.inference, run.config.data.get("max_length", 0)
        try:
            for record in itertools.islice(run.records(HELD_OUT), 2 * SAMPLE):
                try:
                    line = inference.question(record)
                    request = inference.parse(line, longest, options=options)
                except Refused:
                    continue
                if request.source or request.prefix:
                    found.append(request)
        except (OSError, UserError) as error:
            logger.debug("%s cannot be read: %s", HELD_OUT, error)
            return []
        return found[:SAMPLE]


class _Model(abc.ABC):
    """A model of CTranslate2: submit requests, and read its results."""

    def __init__(self, model: Any, tokens: list[str]):
        self.model, self.tokens = model, tokens
        self.ids = {token: i for i, token in enumerate(tokens)}

    @abc.abstractmethod
    def kind_of(self, request: DecodeRequest, options: Options) -> int:
        """Return a number that is the same for requests that can share a batch."""

    @abc.abstractmethod
    def submit(self, requests: list[DecodeRequest], options: Options) -> list[Any]:
        """Begin to search one batch."""

    @abc.abstractmethod
    def unpack(self, request: DecodeRequest, result: Any) -> list[list[int]]:
        """Return the tokens of the hypotheses, without the prefix."""

    @abc.abstractmethod
    def score(
        self, requests: list[DecodeRequest], texts: list[list[int]]
    ) -> list[list[float]]:
        """Return the log-probability of each token, and of an end after them."""

    def read(
        self, requests: list[DecodeRequest], results: list[Any], options: Options
    ) -> list[list[Hypothesis] | None]:
        """Return the hypotheses of each request, best first.

        None stands for those of a beam that reaches its limit.
        """
        alpha = 0.0 if options.sample else options.alpha
        most = 1 + max(r.limit or longest_answer(r, options) for r in requests)
        penalties = np.asarray(length_penalty(jnp.arange(most), alpha))
        if options.beams == 1 or options.sample:
            return self._finish(requests, results, options, penalties)
        return [
            self._rank(request, result, options, penalties)
            for request, result in zip(requests, results, strict=True)
        ]

    def _rank(
        self, request: DecodeRequest, result: Any, options: Options, penalties: Any
    ) -> list[Hypothesis] | None:
        """Rank the hypotheses of a beam by the length penalty of this package.

        Return None if one has no end, or is longer than an answer may be.
        """
        most, texts = longest_answer(request, options), self.unpack(request, result)
        if any(text[-1:] != [EOS] or len(text) > most for text in texts):
            return None
        scores = np.array(result.scores) / penalties[[len(text) for text in texts]]
        return [
            Hypothesis(tuple(texts[i]), float(result.scores[i]), float(scores[i]))
            for i in np.argsort(-scores, kind="stable")[: options.n_best]
        ]

    def _finish(
        self,
        requests: list[DecodeRequest],
        results: list[Any],
        options: Options,
        penalties: Any,
    ) -> list[list[Hypothesis] | None]:
        """End texts at their limits, as this package does, and score them again.

        A text that is written piece by piece has the same pieces wherever it is cut.
        CTranslate2 scores drawn pieces, and those beside forbidden ones, otherwise.
        """
        owners, texts, ends, scores = [], [], [], []
        for owner, (request, result) in enumerate(zip(requests, results, strict=True)):
            most = request.limit or longest_answer(request, options)
            for text, score in zip(
                self.unpack(request, result), result.scores, strict=True
            ):
                ended = text[-1:] == [EOS] and len(text) <= most
                forced = not ended and most <= (options.max_length or most)
                kept = text[:-1] if ended else text[: most - forced]
                owners.append(owner)
                texts.append(kept)
                ends.append(ended or forced)
                scores.append(score if ended else None)
        again = [
            i
            for i, score in enumerate(scores)
            if score is None or options.sample or changes_scores(options)
        ]
        if again:
            asked = [requests[owners[i]] for i in again]
            each = self.score(asked, [texts[i] for i in again])
            for i, found in zip(again, each, strict=True):
                scores[i] = sum(found[: len(texts[i]) + ends[i]])
        answers: list[list[Hypothesis]] = [[] for _ in requests]
        for owner, text, end, score in zip(owners, texts, ends, scores, strict=True):
            tokens = (*text, *[EOS] * end)
            ranked = float(score / penalties[len(tokens)])
            answers[owner].append(Hypothesis(tokens, float(score), ranked))
        if options.sample and options.top_k == 1:  # all draws are the same
            answers = [found * options.n_best for found in answers]
        return [sorted(found, key=lambda one: -one.log_prob) for found in answers]

    def _shared(self, options: Options) -> dict[str, Any]:
        """Return the options that translators and language models have in common."""
        found: dict[str, Any] = {
            "beam_size": 1 if options.sample else options.beams,
            "num_hypotheses": options.n_best,
            "length_penalty": 0.0,  # so scores are log-probabilities
            "no_repeat_ngram_size": options.no_repeat,
            "return_scores": True,
            "return_end_token": True,
            "asynchronous": True,
        }
        if options.sample:
            found |= {
                "num_hypotheses": 1 if options.top_k == 1 else options.n_best,
                "sampling_topk": options.top_k,
                "sampling_topp": options.top_p,
                "sampling_temperature": options.temperature,
            }
        elif options.alpha:
            found["num_hypotheses"] = options.beams  # to be ranked again
        return found


class _Translations(_Model):
    """A translator. Its limits count the pieces of prefixes."""

    def __init__(self, model: Any, sources: list[str], targets: list[str]):
        super().__init__(model, targets)
        self.sources = sources

    def kind_of(self, request: DecodeRequest, options: Options) -> int:
        """Return the length of the prefix, if answers have a minimum length."""
        return len(request.prefix) if options.min_length > 1 else 0

    def submit(self, requests: list[DecodeRequest], options: Options) -> list[Any]:
        """Begin to search one batch."""
        most = max(len(r.prefix) + longest_answer(r, options) for r in requests)
        least = max(options.min_length - 1, 0)
        prefixes = [[self.tokens[i] for i in r.prefix] for r in requests]
        return self.model.translate_batch(
            [self._source(r) for r in requests],
            prefixes if any(prefixes) else None,
            max_input_length=0,  # else a long line would be cut
            max_decoding_length=most,
            min_decoding_length=least and least + len(requests[0].prefix),
            **self._shared(options),
        )

    def unpack(self, request: DecodeRequest, result: Any) -> list[list[int]]:
        """Return the tokens of the hypotheses, without the prefix."""
        begin = len(request.prefix)
        return [[self.ids[t] for t in text[begin:]] for text in result.hypotheses]

    def score(
        self, requests: list[DecodeRequest], texts: list[list[int]]
    ) -> list[list[float]]:
        """Return the log-probability of each token, and of an end after them."""
        targets = [
            [self.tokens[i] for i in (*request.prefix, *text)]
            for request, text in zip(requests, texts, strict=True)
        ]
        found = self.model.score_batch(
            [self._source(r) for r in requests], targets, max_input_length=0
        )
        return [
            one.log_probs[len(request.prefix) :]
            for request, one in zip(requests, found, strict=True)
        ]

    def _source(self, request: DecodeRequest) -> list[str]:
        """Return the pieces of a source; CTranslate2 adds the end."""
        return [self.sources[i] for i in request.source[:-1]]


class _Texts(_Model):
    """A language model. Prompts of one length are read at once."""

    def kind_of(self, request: DecodeRequest, options: Options) -> int:
        """Return the length of the prompt."""
        return len(request.prefix)

    def submit(self, requests: list[DecodeRequest], options: Options) -> list[Any]:
        """Begin to search one batch."""
        most = max(r.limit or longest_answer(r, options) for r in requests)
        return self.model.generate_batch(
            [self._prompt(r) for r in requests],
            max_length=min(most, options.max_length or most),
            min_length=max(options.min_length - 1, 0),
            include_prompt_in_result=False,
            **self._shared(options),
        )

    def unpack(self, request: DecodeRequest, result: Any) -> list[list[int]]:
        """Return the tokens of the hypotheses, without the prompt."""
        return result.sequences_ids

    def score(
        self, requests: list[DecodeRequest], texts: list[list[int]]
    ) -> list[list[float]]:
        """Return the log-probability of each token, and of an end after them."""
        given = [
            [*self._prompt(request), *(self.tokens[i] for i in text), self.tokens[EOS]]
            for request, text in zip(requests, texts, strict=True)
        ]
        found = self.model.score_batch(given, max_input_length=0)
        return [
            one.log_probs[len(request.prefix) :]
            for request, one in zip(requests, found, strict=True)
        ]

    def _prompt(self, request: DecodeRequest) -> list[str]:
        return [self.tokens[i] for i in (BOS, *request.prefix)]


def refuse(options: Options, task: str) -> None:
    """Refuse options to which CTranslate2 gives another meaning, or none."""
    sample, beam = options.sample, options.beams > 1 and not options.sample
    shared = (
        "it gives the probability of forbidden pieces to the others, so a beam ranks "
        "otherwise: use beams=1"
    )
    reasons = {
        "coverage": bool(options.coverage) and "its penalty is another one",
        "contrast": options.contrast > 0 and "it has no such search",
        "groups": options.groups > 1 and "its beam has no groups",
        "min_p": sample and options.min_p > 0 and "it has no such filter",
        "seed": sample and options.seed > 0 and "it draws for all lines together",
        "beams": beam
        and task == "language"
        and "it ranks texts that are cut at their limit otherwise: use beams=1",
        "min_length": beam and options.min_length > 1 and shared,
        "no_repeat": beam and options.no_repeat > 0 and shared,
    }
    for name, reason in reasons.items():
        if reason:
            raise UserError(
                f"{name}={getattr(options, name)} does not work with CTranslate2, as "
                f"{reason}; or leave out {name}, or the engine"
            )


def changes_scores(options: Options) -> bool:
    """Return whether pieces are forbidden, which raises the score of the others."""
    return options.min_length > 1 or options.no_repeat > 0


def _choose_device(library: Any) -> str:
    on_gpu = jax.default_backend() == "gpu" and library.get_cuda_device_count()
    return "cuda" if on_gpu else "cpu"


def _count_cores() -> int:
    """Count the cores that this process may use."""
    seen = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(seen(0)) if seen else os.cpu_count() or 1


def _read_check(path: pathlib.Path) -> Check | None:
    """Read an earlier check; None if there is none, or if it is unreadable."""
    try:
        found = Check(**files.read_object(path))
        found.suffices(found.equal)
    except (OSError, ValueError, TypeError):
        return None
    return found
