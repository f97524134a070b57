"""Inference of models that write: run requests through the engine, decode the text."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax.base.errors import Refused
from transformer_jax.data.reading import sources
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding import DecodeRequest, Options, Reply
from transformer_jax.decoding.engine import (
    Engine,
    Searches,
    longest_answer,
    positions_needed,
)
from transformer_jax.decoding.requests import one_line
from transformer_jax.decoding.searches.constraints import Constraint
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts.pairs import PairData
from transformer_jax.tasks.parts.text import (
    RAISE_LIMIT,
    SHORTEN_ANSWER,
    check_length,
    check_positions,
    check_room,
)
from transformer_jax.tasks.protocols import Record

if TYPE_CHECKING:
    from transformer_jax.decoding.live import Live


class Written(NamedTuple):
    """A text that a model wrote, including its given beginning."""

    text: str
    # Length-penalised log-probability of what follows the beginning; with `mbr`, the
    # mean chrF to the other candidates.
    score: float
    pieces: int  # of that part, with its end


class Writer:
    """A model that writes, with its engine on each mesh and its tokenizer.

    `other` is an engine of another library that answers instead, and `change` rounds
    the parameters of the own one, for example: see `Run.use_engine`. `partners` are
    other models, with which this one writes: see `Run.join`.
    """

    other: Searches | None = None
    change: Callable[[Params], Params] | None = None  # of what is searched with
    partners: Sequence[tuple["Writer", Params]] = ()

    def __init__(
        self,
        config: ConfigDict,
        module: Any,
        tokenizer: Tokenizer,
        constraint: Constraint | None = None,
    ):
        """Keep the module; make an engine only when a mesh is first used."""
        self.module, self.tokenizer, self.constraint = module, tokenizer, constraint
        self.sizes = config.eval.batch_rows, config.data.row_multiple
        self._engines: dict[Mesh, Engine] = {}
        self._live: dict[Mesh, Live] = {}

    def engine(self, mesh: Mesh) -> Engine:
        """Return the engine of a mesh, which keeps its compiled programs."""
        if mesh not in self._engines:
            module = self.module
            if self.partners:
                from transformer_jax.decoding.ensemble import Ensemble

                others = (partner.module for partner, _ in self.partners)
                module = Ensemble((module, *others))
            self._engines[mesh] = Engine(module, mesh, *self.sizes, self.constraint)
        return self._engines[mesh]

    def join(self, partners: Sequence[tuple["Writer", Params]]) -> None:
        """Write together with other models that have the same tokens."""
        self.partners = partners
        self._engines.clear()

    @contextlib.contextmanager
    def shared(self, mesh: Mesh) -> Iterator[None]:
        """Let all threads share the batches of this mesh: see `decoding.live`."""
        from transformer_jax.decoding.live import Live

        live = self._live[mesh] = Live(self.engine(mesh))
        try:
            yield
        finally:
            del self._live[mesh]
            live.close()

    def compile(
        self, params: Params, request: DecodeRequest, mesh: Mesh, options: Options
    ) -> None:
        """Compile all programs that threads need who share the batches of this kind."""
        params, options = self._searched(params), options.of_candidates()
        self._live[mesh].compile(params, request, options)

    def _searched(self, params: Params) -> Params:
        """Return what is searched with: changed, and with the partners' parameters."""
        own = self.change(params) if self.change else params
        if not self.partners:
            return own
        from transformer_jax.decoding.ensemble import join_params

        return join_params([own, *(one._searched(p) for one, p in self.partners)])

    def write(
        self,
        params: Params,
        requests: Sequence[DecodeRequest],
        mesh: Mesh,
        options: Options,
        window: int = 0,
    ) -> Iterator[tuple[int, list[Written]]]:
        """Yield (number of a request, its texts, best first).

        With a `window`, texts that outgrow it continue from their last tokens.
        """
        engine = self.other or self._live.get(mesh) or self.engine(mesh)
        asked = self._searched(params), requests, options.of_candidates()
        if window:
            from transformer_jax.decoding import sliding

            answers = sliding.search(engine, *asked, window)
        else:
            answers = engine.search(*asked)
        for number, found in answers:
            prefix = requests[number].prefix
            texts = [
                Written(
                    self.tokenizer.decode([*prefix, *h.tokens]),
                    h.score,
                    len(h.tokens),
                )
                for h in found
            ]
            yield number, choose(texts, options) if options.mbr else texts


def choose(texts: Sequence[Written], options: Options) -> list[Written]:
    """Choose the candidates that are most like the others; these means are scores."""
    from transformer_jax.decoding import consensus

    best = consensus.rank([one.text for one in texts])[: options.n_best]
    return [texts[i]._replace(score=mean) for i, mean in best]


class Seq2SeqInference:
    """A source in, the target out."""

    advice = RAISE_LIMIT  # what to do about a line with too many pieces

    def __init__(self, data: PairData, writer: Writer):
        self.data, self.writer = data, writer
        self.reads = data.source_tokenizer  # the tokenizer of the lines
        self.tags = sources.needed_tags(data.config.data)

    def parse(
        self,
        line: str,
        max_length: int = 0,
        prefix: str = "",
        draw_seed: int = 0,
        options: Options | None = None,
    ) -> DecodeRequest:
        """Encode a line and the prefix of its answer."""
        if not line.strip():
            return DecodeRequest(line=line)
        line, tokenizer = self.tag(line), self.data.source_tokenizer
        pieces = check_length(tokenizer, line, max_length, self.advice)
        target = self.data.target_tokenizer
        given = target.encode(target.compose(prefix)) if prefix else target.opening
        source = (*pieces, *tokenizer.end)
        request = DecodeRequest(source, tuple(given), draw_seed, line)
        read = max(len(pieces), len(given))
        check_room(self.data.config, read, f"a line of {read:,} pieces")
        needed = positions_needed(request, options or self.data.options)
        what = f"a line of {len(pieces)} pieces with its longest answer"
        check_positions(self.data.config, needed, what, SHORTEN_ANSWER)
        return request

    def tag(self, line: str) -> str:
        """Put the tag of all training sources before a line that lacks it.

        If there were several, a line without any is refused: the model has read none.
        """
        if not self.tags or line.startswith(tuple(f"{tag} " for tag in self.tags)):
            return line
        if len(self.tags) > 1:
            raise Refused(
                f"a line without any of the tags {', '.join(self.tags)}, of which one "
                f"began each source in training: put one before it: {self.tags[0]} …"
            )
        return f"{self.tags[0]} {line}"

    def include(
        self, request: DecodeRequest, phrases: Sequence[str], options: Options
    ) -> DecodeRequest:
        """Return a request whose answer must include the phrases."""
        from transformer_jax.decoding.searches import inclusion

        most = longest_answer(request, options) if request.source else 1
        target = self.data.target_tokenizer
        return inclusion.add_phrases(request, phrases, target, options, most)

    def longest_request(self, length: int) -> DecodeRequest:
        """Return a request with a source of this length."""
        return DecodeRequest(range(length), prefix=())

    def question(self, record: Record) -> str:
        """Return the source of an example."""
        return record["source"]

    def answers(
        self,
        params: Params,
        requests: Sequence[DecodeRequest],
        mesh: Mesh,
        options: Options,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, its reply) as found; a blank line stays blank."""
        for number, request in enumerate(requests):
            if not request.source:
                yield number, Reply(request.line, score=0.0, details={"score": 0.0})
        places = [i for i, request in enumerate(requests) if request.source]
        asked = [requests[i] for i in places]
        for number, texts in self.writer.write(params, asked, mesh, options):
            yield places[number], make_reply(asked[number].line, texts)


def make_reply(line: Any, texts: Sequence[Written]) -> Reply:
    """Make a reply from the texts written for a line, best first."""
    best, *others = (
        Reply(line, one_line(t.text), t.score, pieces=t.pieces) for t in texts
    )
    details: dict[str, Any] = {"score": best.score}
    if others:
        details["others"] = [{"output": o.text, "score": o.score} for o in others]
    return dataclasses.replace(best, others=tuple(others), details=details)
