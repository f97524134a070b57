"""Beam search: extend the K best hypotheses, ranked by a length penalty.

    score(Y) = log P(Y | X) / ((5 + |Y|) / 6)^α + β Σ_s log min(Σ_t a_ts, 1)   (GNMT)

The paper uses K = 4, α = 0.6, β = 0; a_ts is the weight that the last layer's
cross-attention gives to word s of the source while Y_t is written. A hypothesis that
ends leaves the beam, which is narrower by one from then on, so a beam of 1 is greedy
search. A row stops when no living hypothesis can beat the finished ones. `reference` in
tests/decoding/test_search.py is the same search for one sentence, as it is on paper.
"""

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.base.ids import EOS
from transformer_jax.decoding import Options
from transformer_jax.decoding.searches.constraints import Constraint
from transformer_jax.decoding.searches.rules import (
    Choice,
    best_extensions,
    top_next_tokens,
)
from transformer_jax.decoding.searching import (
    NEG_INF,
    BoundModel,
    DecodeInputs,
    Hypotheses,
    gather,
    prefill,
    reorder,
    write,
)


class Beam(flax.struct.PyTreeNode):
    """The state of a beam search; L is the length of the output buffer.

    The types are comments, because jax.tree.map also makes states of shardings and of
    abstract arrays, which a checked type would refuse.
    """

    step: Any  # Int [B]: tokens written so far
    tokens: Any  # Int [B, K, L] of the living hypotheses
    log_probs: Any  # Float [B, K] of the living hypotheses; -inf marks an empty slot
    finished: Any  # Int [B, K, L]
    finished_log_probs: Any  # Float [B, K]
    finished_scores: Any  # Float [B, K]; -inf marks an empty slot
    finished_count: Any  # Int [B, G] of each group
    inputs: DecodeInputs
    logits: Any  # Float [B, K × V] of the next token
    static: Any  # the model's static part
    state: Any  # the model's state (`searching`)
    lost: Any = None  # Float [B, K] by `diversity`, if there are groups
    progress: Any = None  # `inclusion.Progress`, if answers must include words


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """Find the best `beams` hypotheses of each row.

    The first `n_best` are the same as in a search without early stopping. With `groups`
    > 1, each has an equal part of the beam, and chooses other tokens than the groups
    before it (`groups`).
    """

    options: Options
    constraint: Constraint | None = None

    def begin(
        self,
        model: BoundModel,
        batch: dict,
        inputs: DecodeInputs,
        length: int,
        slots: int | None = None,
    ) -> Beam:
        """Read the prompts; each row begins with one hypothesis."""
        beams, rows = self.options.beams, len(inputs.limits)
        slots = length if slots is None else slots
        inputs = inputs.with_numbers(self.options)
        static, state, logits = prefill(
            model, batch, inputs, beams, slots, watch=self.options.coverage > 0
        )
        empty = jnp.full((rows, beams), NEG_INF, jnp.float32)  # as after a step
        root = jnp.where(inputs.limits > 0, 0.0, NEG_INF)[:, None]
        # One root for each group, not K equal ones.
        roots = slice(None, None, beams // self.options.groups)
        return Beam(
            step=jnp.zeros(rows, jnp.int32),
            tokens=jnp.zeros((rows, beams, length), jnp.int32),
            log_probs=empty.at[:, roots].set(root),
            finished=jnp.zeros((rows, beams, length), jnp.int32),
            finished_log_probs=empty,
            finished_scores=empty,
            finished_count=jnp.zeros((rows, self.options.groups), jnp.int32),
            inputs=inputs,
            logits=logits.reshape(len(logits), -1),
            static=static,
            state=state,
            lost=jnp.zeros_like(empty) if self.options.groups > 1 else None,
            progress=_begin_progress(inputs, beams),
        )

    def unfinished(self, beam: Beam) -> Array:
        """Return which rows have living hypotheses and space left for tokens."""
        return (beam.log_probs > NEG_INF).any(axis=1) & (
            beam.step < beam.tokens.shape[-1]
        )

    def advance(self, model: BoundModel, beam: Beam) -> Beam:
        """Extend every living hypothesis by one token and keep the best."""
        inputs, options = beam.inputs, self.options
        going = self.unfinished(beam)
        choice = self._choose(beam)
        totals, parents, tokens = choice.totals, choice.parents, choice.tokens
        # Each finished hypothesis has left a group that is narrower by one.
        size = options.beams // options.groups
        width = size - jnp.repeat(beam.finished_count, size, axis=1)
        taken = (jnp.arange(options.beams) % size < width) & (totals > NEG_INF)
        ended = taken & (tokens == EOS)
        # Follow the parents, and put aside what has ended.
        written = write(gather(beam.tokens, parents), beam.step, tokens)
        state = reorder(beam.state, parents)
        beam = self._finish(beam, ended, written, totals, state)
        alive = jnp.where(taken & ~ended, totals, NEG_INF)
        done = self._settled(beam, alive)
        # Read the new tokens, also of slots that are not taken: shapes are fixed.
        positions = (inputs.prompt_lengths + beam.step)[:, None, None]
        logits, state = model.extend(
            tokens[..., None],
            jnp.broadcast_to(positions, (*tokens.shape, 1)),
            beam.static,
            state,
        )
        return beam.replace(
            step=beam.step + going,
            tokens=written,
            log_probs=jnp.where(done[:, None], NEG_INF, alive),
            logits=logits.reshape(beam.logits.shape),
            state=state,
            lost=choice.lost,
            progress=choice.progress,
        )

    def result(self, beam: Beam) -> Hypotheses:
        """Return the finished hypotheses, best first."""
        order = jnp.argsort(-beam.finished_scores, axis=-1, stable=True)
        tokens = gather(beam.finished, order)
        return Hypotheses(
            tokens,
            (tokens != 0).sum(-1),
            gather(beam.finished_log_probs, order),
            gather(beam.finished_scores, order),
        )

    def written(self, beam: Beam) -> tuple[Array, Array]:
        """Return living and finished hypotheses [B, 2K, L], and which there are."""
        tokens = jnp.concatenate([beam.tokens, beam.finished], axis=1)
        alive = [beam.log_probs > NEG_INF, beam.finished_scores > NEG_INF]
        return tokens, jnp.concatenate(alive, axis=1)

    def _choose(self, beam: Beam) -> Choice:
        """Choose the K best extensions of each row."""
        beams = self.options.beams
        rules = beam.inputs, self.options, self.constraint
        written = beam.logits, beam.tokens, beam.step
        if beam.progress is not None:
            from transformer_jax.decoding.searches import inclusion

            return inclusion.choose(beam.progress, beam.log_probs, *written, *rules)
        # No beam can contribute more than K of the best K extensions, so two small
        # selections replace a huge one.
        few = min(beams, beam.logits.shape[-1] // beams)
        gains, tokens = top_next_tokens(*written, *rules, few)
        totals = beam.log_probs[..., None] + gains
        if beam.lost is not None:
            from transformer_jax.decoding.searches import groups

            diversity = beam.inputs.numbers["diversity"]
            count = beam.finished_count
            return groups.choose(totals, beam.lost, tokens, count, diversity)
        return best_extensions(totals, tokens, beams)

    def _finish(
        self,
        beam: Beam,
        ended: Array,
        written: Int[Array, "B K L"],
        log_probs: Float[Array, "B K"],
        state: Any,
    ) -> Beam:
        """Move hypotheses that ended to the next free slots of the finished ones."""
        rows, beams = ended.shape
        by_group = ended.reshape(*beam.finished_count.shape, -1)
        size = by_group.shape[-1]
        free = beam.finished_count[..., None] + jnp.cumsum(by_group, axis=-1) - 1
        first = jnp.arange(0, beams, size)[:, None]  # the slots of each group
        slot = jnp.where(ended, (first + free).reshape(ended.shape), beams)
        row = jnp.arange(rows)[:, None]
        numbers = beam.inputs.numbers
        penalty = length_penalty(beam.step + 1, numbers["alpha"])
        scores = log_probs / penalty[:, None]
        if self.options.coverage:
            scores = scores + numbers["coverage"][:, None] * state.uncovered()
        if beam.lost is not None:
            from transformer_jax.decoding.searches import groups

            twice = groups.find_twice(written, ended, beam.finished)
            scores = jnp.where(twice, NEG_INF, scores)

        def put(old, new):
            return old.at[row, slot].set(new, mode="drop")  # those out of range

        return beam.replace(
            finished=put(beam.finished, written),
            finished_log_probs=put(beam.finished_log_probs, log_probs),
            finished_scores=put(beam.finished_scores, scores),
            finished_count=beam.finished_count + by_group.sum(axis=-1),
        )

    def _settled(self, beam: Beam, alive: Float[Array, "B K"]) -> Array:
        """Return which rows have final `n_best`: no continuation can enter them.

        A log-probability only falls, the penalty is monotonic in the length, and the
        coverage term is never positive. So the score of a hypothesis is bounded by its
        current log-probability divided by the penalty of the longest or the shortest
        output that it can still become.
        """
        alpha = beam.inputs.numbers["alpha"]
        longest = length_penalty(beam.inputs.limits, alpha)[:, None]
        shortest = length_penalty(beam.step + 2, alpha)[:, None]
        reach = jnp.maximum(alive / longest, alive / shortest).max(axis=1)
        finished = jax.lax.top_k(beam.finished_scores, self.options.n_best)[0][:, -1]
        return finished >= reach


def length_penalty(length: Array, alpha: Array | float) -> Array:
    """Return ((5 + length) / 6)^α, by which log-probabilities are divided."""
    return ((5.0 + length) / 6.0) ** alpha


def _begin_progress(inputs: DecodeInputs, beams: int) -> Any:
    """Return the progress of texts that must include words; None if none must."""
    if not inputs.constraint:
        return None
    from transformer_jax.decoding.searches import inclusion

    return inclusion.begin(inputs, beams)
