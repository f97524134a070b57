"""Let a small run propose tokens that the run itself accepts: `--engine=draft:SMALL`.

    run = transformer_jax.load(RUN, engine="draft:SMALL")  # or draft:SMALL,6

One pass of the large model over k proposed tokens costs little more than over one,
because a pass of a single sentence mostly waits for the parameters to be read. In each
round the small model proposes k tokens (4, or the number behind the comma), the large
one reads them at once, and what it would have written itself is kept, with its own next
token (greedy speculative decoding; Leviathan et al. 2023). So the answers are those of
greedy search, but for rounding, and each sentence is searched alone.
"""

import concurrent.futures
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import EOS
from transformer_jax.base.programs import Program
from transformer_jax.decoding import DecodeRequest, Options
from transformer_jax.decoding.engine import (
    IN_FLIGHT,
    Hypothesis,
    Shape,
    collate,
    read_inputs,
    shape_of,
)
from transformer_jax.decoding.searches.beam import length_penalty
from transformer_jax.decoding.searches.constraints import Constraint
from transformer_jax.decoding.searches.rules import top_next_tokens
from transformer_jax.decoding.searching import (
    BoundModel,
    DecodeInputs,
    bind,
    prefill,
    write,
)
from transformer_jax.models.cache import KVCache
from transformer_jax.runs import run as runs
from transformer_jax.runs.run import Run
from transformer_jax.sharding import Params
from transformer_jax.tasks import protocols

logger = logging.getLogger(__name__)

PROPOSED = 4  # tokens of a round


def open_engine(run: Run, setting: str = "") -> "Engine":
    """Open the small run; the setting is its place, or PLACE,TOKENS."""
    place, _, count = setting.rpartition(",")
    if not place or not count.isdigit():
        place, count = setting, str(PROPOSED)
    if not place or not 1 <= int(count) <= 32:
        raise UserError(
            f"engine='draft:{setting}': name the small run, and with it how many "
            "tokens (1 to 32) it proposes at a time, as in draft:RUN or draft:RUN,6"
        )
    if run.mesh.size > 1:
        raise UserError(
            f"engine='draft' answers on one device, not on {run.mesh.size}: set "
            "JAX_NUM_CPU_DEVICES or CUDA_VISIBLE_DEVICES so that there is one"
        )
    small = runs.load(place, mesh=run.mesh)
    if obstacle := run.find_obstacle(small):
        raise UserError(
            f"engine='draft': {place} cannot propose what {run.folder.place} writes: "
            f"{obstacle}"
        )
    return Engine(run, small, int(count))


class Round(flax.struct.PyTreeNode):
    """The state of a search for one sentence; L is the length of the output buffer."""

    step: Any  # Int [1]: tokens written so far
    tokens: Any  # Int [1, 1, L]
    log_prob: Any  # Float [1, 1]
    done: Any  # Bool []
    logits: Any  # Float [1, V] of the next token, by the large model
    state: KVCache  # of the large model, and of the small one
    small: KVCache
    rounds: Any  # Int []: passes of the large model over proposed tokens


@dataclasses.dataclass(frozen=True)
class Speculation:
    """Search for one sentence by two models."""

    options: Options
    proposed: int
    constraint: Constraint | None = None

    def run(
        self,
        models: tuple[BoundModel, BoundModel],
        batch: dict,
        inputs: DecodeInputs,
        length: int,
    ) -> Round:
        """Search to the end, with the large model first and the small one second."""
        slots = length + self.proposed + 1  # a round may write beyond the end
        read = [prefill(model, batch, inputs, 1, slots) for model in models]
        (large, state, logits), (small, small_state, _) = read
        carry = Round(
            step=jnp.zeros(1, jnp.int32),
            tokens=jnp.zeros((1, 1, length), jnp.int32),
            log_prob=jnp.zeros((1, 1)),
            done=inputs.limits[0] < 1,
            logits=logits[:, 0],
            state=state,
            small=small_state,
            rounds=jnp.int32(0),
        )
        return jax.lax.while_loop(
            lambda carry: ~carry.done,
            lambda carry: self._take_round(models, (large, small), inputs, carry),
            carry,
        )

    def _take_round(self, models, statics, inputs, carry: Round) -> Round:
        carry, token = self._choose(carry, inputs)
        at = inputs.prompt_lengths + carry.step - 1  # the position of this token
        count = self.proposed

        def propose(given, i):
            token, state = given
            logits, state = models[1].extend(
                token[None, None, None], (at + i)[:, None, None], statics[1], state
            )
            return (logits.argmax(-1)[0, 0, 0].astype(jnp.int32), state), token

        # The last proposal is read, too, so that both models have read the same.
        (_, small), read = jax.lax.scan(
            propose, (token, carry.small), jnp.arange(count + 1)
        )
        logits, state = models[0].extend(
            read[None, None],
            (at + jnp.arange(count + 1))[None, None],
            statics[0],
            carry.state,
        )

        def check(given, item):
            carry, kept = given
            logits, proposal = item
            chosen, token = self._choose(carry.replace(logits=logits[None]), inputs)
            agrees = ~carry.done & (token == proposal)
            carry = jax.tree.map(lambda a, b: jnp.where(agrees, a, b), chosen, carry)
            # A proposal behind a wrong one is not looked at: the search has diverged.
            carry = carry.replace(done=carry.done | ~agrees)
            return (carry, kept + agrees), None

        part = carry.replace(state=None, small=None)
        (part, kept), _ = jax.lax.scan(check, (part, 1), (logits[0, 0, :-1], read[1:]))
        last = part.tokens[0, 0, part.step[0] - 1]
        unread = jnp.asarray(count + 1 - kept)
        return part.replace(
            done=(last == EOS),
            logits=logits[0, 0, kept - 1][None],
            state=state.forget(unread),
            small=small.forget(unread),
            rounds=carry.rounds + 1,
        )

    def _choose(self, carry: Round, inputs: DecodeInputs) -> tuple[Round, Any]:
        """Write the likeliest allowed token by the large model."""
        rules = inputs, self.options, self.constraint
        gain, token = top_next_tokens(carry.logits, carry.tokens, carry.step, *rules, 1)
        return carry.replace(
            step=carry.step + 1,
            tokens=write(carry.tokens, carry.step, token[..., 0]),
            log_prob=carry.log_prob + gain[..., 0],
            done=token[0, 0, 0] == EOS,
        ), token[0, 0, 0]


class Engine:
    """Search greedily with a run whose tokens a small run proposes."""

    def __init__(self, run: Run, small: Run, proposed: int):
        """Make an engine; refuse models without a cache of keys."""
        self.small, self.proposed = small, proposed
        writers = [self._writer_of(one) for one in (run, small)]
        self.modules = tuple(writer.module for writer in writers)
        self.constraint = writers[0].constraint
        self._program = Program(
            self._search_one,
            made_from=(*self.modules, self.constraint, proposed),
            static_argnames=("length", "options"),
        )

    def search(
        self, params: Params, requests: Sequence[DecodeRequest], options: Options
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield (number of a request, its only hypothesis), in order."""
        if options.beams > 1 or options.sample or options.contrast:
            given = "sample" if options.sample else f"beams={options.beams}"
            given = f"contrast={options.contrast}" if options.contrast else given
            raise UserError(
                f"engine='draft' searches greedily, and {given} asks for another "
                "search: set beams=1 without sample and contrast, or leave engine out"
            )

        def answer(request: DecodeRequest) -> tuple[Hypothesis, int]:
            with jax.set_mesh(self.small.mesh):
                return self._answer(params, request, options)

        tokens, rounds = 0, 0
        pool = concurrent.futures.ThreadPoolExecutor(IN_FLIGHT)
        try:
            for number, (found, taken) in enumerate(pool.map(answer, requests)):
                tokens, rounds = tokens + len(found.tokens), rounds + taken
                yield number, [found]
        finally:  # also if the caller stops early
            pool.shutdown(cancel_futures=True)
        if len(requests) > 1:
            logger.info(
                "engine     draft: %s tokens in %s passes, %.2f each",
                f"{tokens:,}",
                f"{rounds:,}",
                tokens / max(rounds, 1),
            )

    def _answer(self, params, request, options) -> tuple[Hypothesis, int]:
        shape = shape_of(request, options)
        batch = collate([(request, options)], 1, shape)
        found = self._program(
            (params, self.small.params),
            batch,
            length=shape.length,
            options=options.without_numbers(),
        )
        tokens, count, log_prob, score, rounds = jax.device_get(found)
        written = tuple(map(int, tokens[:count]))
        return Hypothesis(written, float(log_prob), float(score)), int(rounds)

    def _search_one(self, params, batch, length: int, options: Options):
        """Search for a sentence, to be compiled."""
        large, small = map(bind, self.modules, params)
        search = Speculation(options, self.proposed, self.constraint)
        inputs = read_inputs(batch)
        found = search.run((large, small), batch, inputs, length)
        count, log_prob = found.step[0], found.log_prob[0, 0]
        score = log_prob / length_penalty(count, inputs.numbers["alpha"][0])
        return found.tokens[0, 0], count, log_prob, score, found.rounds

    def _writer_of(self, run: Run) -> Any:
        inference = run.task.inference
        assert isinstance(inference, protocols.Writes)  # see `Run.find_obstacle`
        writer = inference.writer
        request, options = inference.longest_request(1), Options(beams=1)
        shape: Shape = shape_of(request, options)
        batch = collate([(request, options)], 1, shape)

        def begin(params, batch):
            return bind(writer.module, params).start(batch, 1)[1]

        if not isinstance(jax.eval_shape(begin, run.params, batch), KVCache):
            raise UserError(
                f"engine='draft': {run.folder.place} is a {run.config.model.name} "
                "model, whose state cannot forget tokens that were read: both runs "
                "must be Transformers"
            )
        return writer
