"""Score a split, both teacher-forced and by the model's own answers."""

import dataclasses
import functools
import math
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import sharding, tasks
from transformer_jax.base.errors import UserError
from transformer_jax.base.programs import Program
from transformer_jax.data.batches import Buckets, in_order, limits
from transformer_jax.decoding import Options, Reply, answering
from transformer_jax.losses import Sums
from transformer_jax.scores import Score
from transformer_jax.sharding import Params
from transformer_jax.tasks.protocols import Record, Remembers, Task
from transformer_jax.training.prepare import Split
from transformer_jax.training.steps.feed import assemble

SHAPES, LENGTH_MULTIPLE = 2, 8
TOKENS = 2**16  # per device at most; the run may have been trained on many devices

SCHEMA = 2  # of an entry in scores.json


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The scores of a split, and the scored answers."""

    task: Task
    scores: dict[str, Any]
    records: list[Record]  # the answered ones
    answers: list[str]
    examples: int  # of the split, answered or not
    answering_seconds: float

    def entry(self, step: int, weights: str, options: Options) -> dict[str, Any]:
        """Return the entry of a split for `scores.json` and `result.json` (SCHEMA)."""
        config = self.task.config
        readings: dict[str, Any] = {}
        for score in self.readings:
            readings[score.key] = score.value
            readings[f"{score.key}_signature"] = score.signature
        searched: dict[str, Any] = {}
        if "decode" in config:
            searched = {"beams": options.beams, "alpha": options.alpha}
            others = changed_options(config, options)
            others = {k: v for k, v in others.items() if k not in searched}
            searched |= {"search": others} if others else {}
        return {
            "schema": SCHEMA,
            **tasks.find(config.task).scored_by(config),
            **readings,
            **self.scores,  # overrides the readings, as a headline may ignore case
            "summary": self.task.scoring.summary(self.scores),
            "examples": self.examples,
            "answered": len(self.answers),
            "answering_seconds": round(self.answering_seconds, 1),
            "step": step,
            "weights": weights,
            **searched,
        }

    @functools.cached_property
    def readings(self) -> list[Score]:
        """Score the same answers by every protocol used in published figures."""
        return self.task.scoring.readings(self.answers, self.records)

    @property
    def references(self) -> list[str]:
        """Return the right answers, in the order of the answers."""
        return [self.task.scoring.reference(record) for record in self.records]


def changed_options(config: ConfigDict, options: Options) -> dict[str, Any]:
    """Return the options of a search that differ from those of the config."""
    own = dict(config.decode) if "decode" in config else {}
    asked = dataclasses.asdict(options).items()
    return {name: value for name, value in asked if value != own.get(name, value)}


class Evaluator:
    """Score one split repeatedly, with different parameters."""

    def __init__(self, task: Task, split: Split, mesh: Mesh):
        self.task, self.mesh = task, mesh
        self.records, self.store = split.records, split.store
        data, parts = task.config.data, task.config.train.accumulation
        self.plan = Buckets(
            task.data.lengths(split.store),
            min(data.batch_tokens // parts, TOKENS * sharding.row_devices(mesh)),
            SHAPES,
            data.row_multiple // parts,
            math.lcm(limits(data)[1], LENGTH_MULTIPLE),
            seed=0,
        )
        self.loss = _compiled_loss(task, mesh)
        self.remembered = remembered(task)

    def evaluate(
        self,
        params: Params,
        options: Options,
        limit: int = 0,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Evaluation:
        """Score the split both teacher-forced and free-running.

        `progress` is called after each batch, then after each answer. An exception that
        it raises ends the evaluation.
        """
        began = time.monotonic()
        scores = self.teacher_forced(params, progress)
        if self.remembered:
            scores |= self.remembering(params, progress)
        answering = time.monotonic()
        free, answers = self.free_running(params, options, limit, progress)
        ended = time.monotonic()
        scores = {**scores, **free, "seconds": round(ended - began, 2)}
        records = [self.records[i] for i in self.choose(limit)]
        return Evaluation(
            self.task, scores, records, answers, len(self.records), ended - answering
        )

    def teacher_forced(
        self,
        params: Params,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> dict[str, float]:
        """Return loss, perplexity and accuracy; every example counts exactly once."""
        total = Sums(0.0, 0.0)
        for done, batch in enumerate(self.plan.epoch(0), start=1):
            with jax.set_mesh(self.mesh):
                sums = self.loss(
                    params, assemble(self.task, self.store, batch, self.mesh)[0]
                )
            total = total + jax.tree.map(float, jax.device_get(sums))
            progress(done, self.plan.steps_per_epoch)
        return self.task.objective.means(total, self.records)

    def remembering(
        self,
        params: Params,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> dict[str, float]:
        """Read the split once more, in its order, with a cache of what was read."""
        from transformer_jax.decoding.neural_cache import NeuralCache

        objective: Any = self.task.objective  # see `remembered`
        cache, total, read = NeuralCache(self.remembered), 0.0, self._reading
        batches = in_order(self.plan.lengths, self.plan.shapes)
        for done, batch in enumerate(batches, start=1):
            with jax.set_mesh(self.mesh):
                found = read(
                    params, assemble(self.task, self.store, batch, self.mesh)[0]
                )
            *found, weights = map(np.asarray, found)
            hidden, tokens, nll = (x[weights > 0] for x in found)
            total += float(cache.read(hidden, tokens, nll).sum())
            progress(done, len(batches))
        return objective.cached_means(total, self.records)

    @functools.cached_property
    def _reading(self) -> Program:
        objective: Any = self.task.objective

        def read(params: Params, batch: Any) -> tuple[Array, ...]:
            return objective.read(params, batch)

        places = sharding.replicated(self.mesh)
        return Program(read, made_from=self.task.made_from, out_shardings=places)

    def choose(self, limit: int) -> list[int]:
        """Return the indices of the records to answer; 0 means all that are scored."""
        return evenly_spaced(
            limit or self.task.scoring.count_answered(self.records), len(self.records)
        )

    def free_running(
        self,
        params: Params,
        options: Options,
        limit: int = 0,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> tuple[dict[str, Any], list[str]]:
        """Answer the records of `choose(limit)`; return scores and answers."""
        task = self.task
        records = [self.records[i] for i in self.choose(limit)]
        replies = answer_all(task, params, self.mesh, records, options, progress)
        scores = task.scoring.score(
            replies, [task.scoring.reference(r) for r in records]
        )
        if groups := self._score_groups(records, replies):
            scores["groups"] = groups
        return scores, [reply.text for reply in replies]

    def _score_groups(
        self, records: Sequence[Record], replies: Sequence[Reply]
    ) -> dict:
        """Score groups of examples separately, if the task has any."""
        scoring, found = self.task.scoring, {}
        for name, members in scoring.groups(records).items():
            references = [scoring.reference(records[i]) for i in members]
            scores = scoring.score([replies[i] for i in members], references)
            summary = scoring.summary(scores)
            found[name] = {**scores, "examples": len(members), "summary": summary}
        return found


def evenly_spaced(count: int, total: int) -> list[int]:
    """Return `count` evenly spaced numbers below `total`, or all of them."""
    count = min(count, total)
    return [(2 * i + 1) * total // (2 * count) for i in range(count)]


def answer_all(
    task: Task,
    params: Params,
    mesh: Mesh,
    records: Sequence[Record],
    options: Options,
    progress: Callable[[int, int], None],
) -> list[Reply]:
    """Answer each example; raise if one is refused."""
    questions = [task.inference.question(record) for record in records]
    replies = []
    for reply in answering.answer_lines(
        task.inference, params, mesh, questions, options, progress=progress
    ):
        if reply.error:
            shown = textwrap.shorten(str(questions[len(replies)]), 60)
            raise UserError(f"{shown!r} cannot be answered: {reply.error}")
        replies.append(reply)
    return replies


def remembered(task: Task) -> int:
    """Return the size of the cache that a split is read with; 0 means none."""
    objective = task.objective
    size = objective.remembered if isinstance(objective, Remembers) else 0
    if size and jax.process_count() > 1:
        raise UserError(
            f"eval.cache = {size}: a text is read in its order by one process, not "
            f"{jax.process_count()}: leave it out, and run evaluate --cache={size} in "
            "one process afterwards"
        )
    return size


@functools.cache
def _compiled_loss(task: Task, mesh: Mesh) -> Program:
    def loss(params: Params, batch: Any) -> Sums:
        return task.objective.loss(params, batch, key=None)

    places = sharding.replicated(mesh)
    return Program(loss, made_from=task.made_from, out_shardings=places)
