"""Decisions: the return asked for in, the return reached out (Chen et al. 2021).

    echo 500 | python -m transformer_jax.predict --workdir RUN

A model learns from recorded episodes which action followed which state, given the
return that the episode still had to come. Asked for a return, it plays `eval.episodes`
episodes; the answer is the mean of what they reach. With `model.returns=False` it does
not read returns, which is behaviour cloning: it plays as its examples on average.
Pitfall: how actions are chosen (`eval.greedy`) changes what is reached as much as the
model does, so every score names it.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.base.schema import option
from transformer_jax.data.batches import Batch, fill_rows
from transformer_jax.data.store import Column, Store
from transformer_jax.data.text.numerals import read_number
from transformer_jax.decoding import DecodeRequest, Options, Reply
from transformer_jax.decoding.forward import BatchedForward
from transformer_jax.family.decisions import episodes, rollouts
from transformer_jax.family.decisions.episodes import EpisodeOptions, EpisodeSource
from transformer_jax.family.decisions.model import (
    DecisionSizes,
    DecisionTransformer,
    ReturnOptions,
    Steps,
)
from transformer_jax.models import registry
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts import learnt
from transformer_jax.tasks.parts.text import dropout_rngs
from transformer_jax.tasks.parts.whole_answers import WholeAnswers
from transformer_jax.tasks.protocols import (
    Data,
    DataSource,
    Objective,
    Record,
    Say,
    Scoring,
    Task,
    TaskDefinition,
)

WORLD_FILE = "world.json"  # in the tokenizer's folder
CHOSEN = {False: "drawn actions", True: "the likeliest actions"}  # by eval.greedy


MODULES = {"transformer": DecisionTransformer}
RULES = ((r"(action|goal|state)/(kernel|bias)$", PartitionSpec()),)


@dataclasses.dataclass(frozen=True)
class Asked:
    """A return that is asked for, and the seed of the episodes that are played."""

    goal: float
    begins: int = episodes.BEGINS["test"]

    def __str__(self) -> str:
        return f"{self.goal:g}"


@dataclasses.dataclass(frozen=True)
class Played:
    """Name the world that a run has learned to play."""

    world: str
    version: int


@dataclasses.dataclass(frozen=True)
class PlayOptions:
    """Play episodes: options of `config.eval`."""

    episodes: int = option(
        100, "Played for each return asked for.", least=1, most=10**5
    )
    greedy: bool = option(False, "Take the likeliest action; False: draw one.")


def check(config: ConfigDict) -> list[str]:
    """List what cannot work in the options of episodes."""
    data, problems = config.data, []
    if data.window % 2:
        problems.append(
            f"data.window = {data.window} cannot be halved: use {data.window + 1}"
        )
    world = episodes.WORLDS.get(data.source)
    if world is None:  # which the check of its option says
        return problems
    numbers = all(
        type(goal) in (int, float) and world.LEAST <= goal <= world.MOST
        for goal in data.asked
    )
    if not (data.asked and numbers):
        problems.append(
            f"data.asked = {data.asked!r}: give returns of {data.source}, which are "
            f"numbers from {world.LEAST:g} to {world.MOST:g}"
        )
    return problems


def learn(
    config: ConfigDict, source: DataSource, folder: pathlib.Path, say: Say
) -> None:
    """Note the world."""
    path, name = folder / WORLD_FILE, config.data.source
    if not path.exists():
        learnt.write(path, Played(name, episodes.WORLDS[name].VERSION))


def open_run(config: ConfigDict, folder: pathlib.Path) -> Task:
    """Open the task; refuse a run of a world that has changed since."""
    played = Played(**learnt.read(folder / WORLD_FILE, world=str, version=int))
    world = episodes.WORLDS[config.data.source]
    if played != Played(world.NAME, world.VERSION):
        raise UserError(
            f"this run learned to play {played.world!r}, version {played.version}, and "
            f"this package has version {world.VERSION} of {world.NAME!r}: train again"
        )
    return compose(config)


def compose(config: ConfigDict) -> Task:
    """Compose the task of its parts."""
    data, world = config.data, episodes.WORLDS[config.data.source]
    sizes = DecisionSizes(
        world.FEATURES, world.ACTIONS, data.window, config.model.returns
    )
    module = registry.build(config, "decisions", MODULES, sizes=sizes)
    objective = ActionObjective(module, world)
    inference = ReturnInference(config, objective, world)
    scoring = ReturnScoring(config.eval)
    return Task(config, WindowData(data, world), objective, inference, scoring)


class WindowData(Data):
    """Windows of steps, padded at their ends."""

    def __init__(self, data: ConfigDict, world: Any):
        self.window, self.world = data.window, world
        self.fingerprint = f"decisions-{data.source}-{data.window}"

    def columns_for(self, records: Sequence[Record]) -> dict[str, Column]:
        """Describe the columns of steps, and how many of them are real."""
        shape = (self.window,)
        return {
            "states": Column("float32", (*shape, self.world.FEATURES)),
            "returns": Column("float32", shape),
            "actions": Column("int32", shape),
            "steps": Column("int32", ()),
        }

    def encode(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Bring the numbers of windows near 1, and pad them."""
        return [self._encode(record) for record in records]

    def _encode(self, record: Record) -> dict[str, Any]:
        steps = len(record["actions"])
        after = (0, self.window - steps)
        return {
            "states": np.pad(record["states"] / self.world.SCALES, (after, (0, 0))),
            "returns": np.pad(record["returns"] / self.world.MOST, after),
            "actions": np.pad(record["actions"], after),
            "steps": steps,
        }

    def lengths(self, store: Store) -> np.ndarray:
        """Return the lengths [examples, 1]: whole windows, so all have one shape."""
        return np.full((len(store), 1), self.window)

    def sides_of(self, length: int) -> tuple[int, ...]:
        """Return the length of a window; all have the same."""
        return (self.window,)

    def collate(self, columns: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """Fill rows without a window with padding."""
        names = ("states", "returns", "actions")
        arrays = {name: fill_rows(columns[name], batch) for name in names}
        steps = fill_rows(columns["steps"], batch)[:, None]
        arrays["real"] = (np.arange(self.window) < steps).astype(np.int32)
        return arrays


class ActionObjective(Objective):
    """Cross-entropy of the actions that were taken."""

    unit = "actions"
    logged = ("accuracy",)

    def __init__(self, module: Any, world: Any):
        self.module, self.world = module, world

    def example_inputs(self, rows: int, length: int, target: int) -> tuple[Any, ...]:
        """Return the steps of episodes, all of them real."""
        steps = jnp.ones((rows, target), jnp.int32)
        states = jnp.ones((rows, target, self.world.FEATURES))
        return Steps(steps, steps.astype(jnp.float32), states), steps

    def loss(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> losses.Sums:
        """Sum over the real steps of all windows."""
        actions, real = batch["actions"], batch["real"]
        before = jnp.pad(actions[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        steps = Steps(before, batch["returns"], batch["states"])
        outputs = self.module.apply(
            {"params": params}, steps, real, **dropout_rngs(key)
        )
        weights = real.astype(jnp.float32)
        kinds = self.world.ACTIONS
        return losses.cross_entropy(outputs.logits, actions, weights, 0.0, kinds)


class ReturnInference(WholeAnswers):
    """The return asked for in, the mean of those reached out."""

    def __init__(self, config: ConfigDict, objective: ActionObjective, world: Any):
        self.config, self.objective, self.world = config, objective, world
        self.forward = functools.cache(self._make_forward)

    def read_line(self, line: Any, max_length: int) -> DecodeRequest:
        """Read a return that an episode can have."""
        least, most = self.world.LEAST, self.world.MOST
        if isinstance(line, Asked):
            return DecodeRequest((line.goal, line.begins), line=str(line))
        try:
            asked = read_number(line)
        except (TypeError, ValueError):
            raise Refused(
                f"{str(line)[:60]!r} is not a return: give a number, such as {most:g}"
            ) from None
        if not least <= asked <= most:
            raise Refused(
                f"{asked:g} is not a return of this world: give {least:g} to {most:g}"
            )
        return DecodeRequest((asked, Asked(asked).begins), line=line)

    def question(self, record: Record) -> Asked:
        """Return a held-out window's return to reach, and the seed of its episodes."""
        return Asked(record["asked"], record["begins"])

    def answers(
        self,
        params: Params,
        requests: Sequence[DecodeRequest],
        mesh: Mesh,
        options: Options,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, the mean return of its episodes)."""
        asked = [Asked(*request.source) for request in requests]
        for i, found in enumerate(self.play(params, asked, mesh)):
            details = {
                "mean": float(found.mean()),
                "spread": float(found.std()),
                "returns": found.tolist(),
                "actions": CHOSEN[bool(self.config.eval.greedy)],
            }
            text = f"{details['mean']:.1f}"
            yield i, Reply(requests[i].line, text, details=details)

    def play(self, params: Params, asked: Sequence[Asked], mesh: Mesh) -> np.ndarray:
        """Return the returns of episodes, [asked, episodes].

        Equal seeds begin in the same states and draw the same numbers.
        """
        count, world = self.config.eval.episodes, self.world
        goals = np.repeat(np.array([one.goal for one in asked], np.float32), count)
        states = np.concatenate([first_states(world, one, count) for one in asked])
        seeds = np.concatenate([np.arange(count) + one.begins for one in asked])
        seeds = seeds.astype(np.int32)
        sides = {"goals": goals, "states": states, "seeds": seeds}
        found = np.zeros(len(goals), np.float32)
        for i, reached in self.forward(self.config.eval.greedy)(params, sides, mesh):
            found[i] = reached
        return found.reshape(len(asked), count)

    def _make_forward(self, greedy: bool) -> BatchedForward:
        module, half = self.objective.module, self.config.data.window // 2
        rules = rollouts.Rules(self.world, half, greedy)

        def play(params, batch):
            draw = functools.partial(jax.random.fold_in, jax.random.key(0))
            keys = jax.vmap(draw)(batch["seeds"])
            states = batch["states"]
            return rollouts.play(module, rules, params, batch["goals"], states, keys)

        rows, multiple = self.config.eval.batch_rows, self.config.data.row_multiple
        return BatchedForward(play, rows, multiple, lambda: [module, rules], equal=True)


def first_states(world: Any, asked: Asked, count: int) -> np.ndarray:
    """Draw the states in which the episodes of a request begin."""
    return world.begin(np.random.RandomState(asked.begins), count).astype(np.float32)


class ReturnScoring(Scoring):
    """Returns reached, beside those asked for."""

    def __init__(self, settings: ConfigDict):
        self.settings = settings  # config.eval

    def reference(self, record: Record) -> str:
        """Return a held-out window's return to reach, as text."""
        return f"{record['asked']:g}"

    def count_answered(self, records: Sequence[Record]) -> int:
        """Count the returns that are asked for."""
        return len({record["asked"] for record in records})

    def groups(self, records: Sequence[Record]) -> dict[str, list[int]]:
        """Group by the return asked for."""
        found: dict[str, list[int]] = {}
        for i, record in enumerate(records):
            found.setdefault(f"asked for {record['asked']:g}", []).append(i)
        return found

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Return the mean return for the highest goal, and the mean error of all."""
        asked = np.array([float(text) for text in references])
        means = np.array([float(reply.text) for reply in replies])
        best = int(asked.argmax())
        spread = replies[best].details.get("spread", 0.0)
        error = float(abs(means - asked).mean())
        chosen = CHOSEN[bool(self.settings.greedy)]
        return {
            "reached": float(means[best]),
            "spread": spread,
            "error": error,
            "actions": chosen,
        }

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Put the returns into words."""
        return (
            f"reached {scores['reached']:.1f} ± {scores['spread']:.1f} by "
            f"{scores['actions']}, off by {scores['error']:.1f} from what was asked for"
        )

    def measures(self, scores: Mapping[str, Any]) -> dict[str, float]:
        """Return the mean return for the highest goal."""
        return {"return": scores["reached"]}


TASK = TaskDefinition(
    parts=frozenset({"decoder"}),
    defaults={
        "model.positions": "learned",
        "model.norm": "pre",
        "train.label_smoothing": 0.0,
        "eval.samples": 0,
        "data.shapes": 1,
    },
    source=lambda config: EpisodeSource(config.data),
    learn=learn,
    open=open_run,
    open_empty=lambda config, vocabulary: compose(config),
    interface="decisions",
    modules=MODULES,
    rules=RULES,
    metrics=("reached",),
    options={
        "data": (EpisodeOptions,),
        "model": (ReturnOptions,),
        "eval": (PlayOptions,),
    },
    choices={
        "data.batching": ("buckets",),
        "model.positions": ("sinusoid", "sinusoid_concat", "learned", "rotary"),
    },
    ends=0,
    evaluation=PlayOptions,
    check=check,
)
