"""Open a run directory, to predict, score, align and look inside.

    config.json     every key of the run        metrics.jsonl   the log as JSON
    versions.json   its software and hardware   scores.json     every evaluation
    tokenizer/      its vocabularies            result.json     how it ended
    checkpoints/ averaged/ preempted/           its parameters

The directory holds everything needed to use the run. Errors say what is missing.
"""

import dataclasses
import functools
import logging
import os
import pathlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax import cli, hosts, sharding, tasks
from transformer_jax.base import entry_points, schema
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.base.programs import Program
from transformer_jax.config import checks
from transformer_jax.data.reading.records import Records
from transformer_jax.decoding import Options, Reply, answering
from transformer_jax.decoding.requests import ReadsText, UnknownParts, check_text
from transformer_jax.models.layers import adapters
from transformer_jax.runs import bundle, environment, steps
from transformer_jax.runs.checkpoint import Checkpoints, Damaged
from transformer_jax.runs.folder import Folder
from transformer_jax.sharding import Params
from transformer_jax.tasks import protocols
from transformer_jax.tasks.protocols import Task

if TYPE_CHECKING:
    from transformer_jax.tasks.parts.inside import Inside, Patch

logger = logging.getLogger(__name__)

SMOKE = "only tried its config (train --smoke): it is not a trained model"
Links = list[tuple[int, int]]  # of the words of a source and of a target
TRIES = 5  # to read a checkpoint, while a training deletes those that are read
PAUSE = 1.0  # seconds in which a deletion is done


@dataclasses.dataclass
class Run:
    """A trained model, ready to answer."""

    folder: Folder
    config: ConfigDict
    task: Task
    params: Params
    step: int
    weights: str  # the name of these parameters: averaged, best, last or ema
    mesh: Mesh

    def records(self, split: str) -> Records:
        """Read a split of the data that the run's config names."""
        return tasks.find(self.config.task).source(self.config).read(split)

    def __repr__(self):
        count = sum(x.size for x in jax.tree.leaves(self.params))
        return (
            f"Run({str(self.folder.place)!r}: {self.config.task}, "
            f"{self.config.model.name} of {count:,} parameters, {self.weights}, "
            f"step {self.step:,})"
        )

    # Each of these takes a line and gives one result, or a list and gives a list.

    @overload
    def predict(self, lines: str, **options: Any) -> str: ...

    @overload
    def predict(self, lines: Sequence[Any], **options: Any) -> list[str]: ...

    def predict(self, lines: str | Sequence[Any], **options: Any) -> str | list[str]:
        """Return the answer to each line.

        A line that cannot be answered has an empty answer, and a warning says why.
        `options` override the run's `decode` section.
        """
        if isinstance(lines, str):
            return _texts([self.replies(lines, **options)])[0]
        return _texts(self.replies(lines, **options))

    def warm_up(self, lines: Sequence[Any], **options: Any) -> None:
        """Answer lines and discard the answers, so that later lines need not wait.

        Programs are compiled for the length and number of lines and the search options,
        so these lines should be like the later ones.
        """
        for line in lines:
            self.replies([line], **options)
        self.replies(lines, **options)

    @overload
    def replies(self, lines: str, **options: Any) -> Reply: ...

    @overload
    def replies(self, lines: Sequence[Any], **options: Any) -> list[Reply]: ...

    def replies(
        self,
        lines: str | Sequence[Any],
        *,
        max_input: int = 0,
        on_long: str = "refuse",
        prefixes: str | Sequence[str] = (),
        include: Sequence[str] | Sequence[Sequence[str]] = (),
        **options: Any,
    ) -> Reply | list[Reply]:
        """Return replies: answers with scores and other hypotheses, or errors.

        `include` lists the words or phrases that the answer must contain: a list for a
        single line, and a list of lists for several.

        A line of more than `max_input` pieces is refused or split. 0 means any length
        or, if lines are to be split, the longest in training.
        """
        single = isinstance(lines, str)
        lines = [lines] if isinstance(lines, str) else _as_list("replies", lines)
        if isinstance(prefixes, str):
            prefixes = [prefixes] if prefixes else ()
        phrases: Any = [include] if single and include else include
        if on_long == "split":
            max_input = max_input or self.config.data.get("max_length", 0)
        found = answering.answer_lines(
            self.task.inference,
            self.params,
            self.mesh,
            lines,
            decode_options(self.config, **options),
            max_length=max_input,
            on_long=on_long,
            prefixes=prefixes,
            include=_check_phrases(phrases),
        )
        replies = list(found)
        return replies[0] if single else replies

    @overload
    def score(self, sources: str, targets: str) -> float: ...

    @overload
    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]: ...

    def score(
        self, sources: str | Sequence[str], targets: str | Sequence[str]
    ) -> float | list[float]:
        """Return the log-probability of each target as the answer to its source."""
        pairs = _pair("score", sources, targets)
        reader = protocols.require(self.task, protocols.ReadsPairs, "read")
        found = reader.read(self.params, pairs, self.mesh)
        scores = [float(reading.log_probs.sum()) for reading in found]
        return scores[0] if isinstance(sources, str) else scores

    @overload
    def align(self, sources: str, targets: str | None = None) -> Links: ...

    @overload
    def align(
        self, sources: Sequence[str], targets: Sequence[str] | None = None
    ) -> list[Links]: ...

    def align(
        self, sources: str | Sequence[str], targets: str | Sequence[str] | None = None
    ) -> Links | list[Links]:
        """Return (source word, target word) index pairs, by default for own answers."""
        aligner = protocols.require(self.task, protocols.Aligns, "align")
        if targets is None:
            _as_texts("align", sources)
            targets = self.predict(sources)
        pairs = _pair("align", sources, targets)
        found = aligner.read(self.params, pairs, self.mesh)
        links = [aligner.align(reading) for reading in found]
        return links[0] if isinstance(sources, str) else links

    def encode(self, lines: str | Sequence[str]) -> np.ndarray:
        """Return vectors [lines, D], or the vector [D] of a single line."""
        texts = _as_texts("encode", lines)
        embedder = protocols.require(self.task, protocols.Embeds, "vectors")
        found = embedder.vectors(self.params, texts, self.mesh)
        return found[0] if isinstance(lines, str) else found

    @overload
    def attention(
        self, source: list[Any] | tuple[Any, ...], target: Sequence[str] | None = None
    ) -> list[protocols.AttentionMaps]: ...

    @overload
    def attention(
        self, source: Any, target: str | None = None
    ) -> protocols.AttentionMaps: ...

    def attention(
        self, source: Any, target: str | Sequence[str] | None = None
    ) -> protocols.AttentionMaps | list[protocols.AttentionMaps]:
        """Return attention weights [layers, heads, queries, keys] by kind.

        The result also has the tokens of both axes. A source is a line, or the pixels
        of an image; without a target the model's own answer is used.
        """
        viewer = protocols.require(self.task, protocols.ShowsAttention, "attention")
        several = isinstance(source, list | tuple)
        sources = list(source) if several else [source]
        if target is None:
            target = self.predict(sources)
        targets = [target] if isinstance(target, str) else list(target)
        _refuse_uneven("attention", sources, targets)
        for one in (*sources, *targets):
            check_text(one)
        found = [
            viewer.attention(self.params, *pair)
            for pair in zip(sources, targets, strict=True)
        ]
        return found if several else found[0]

    def batch(self, *values: Any) -> dict[str, np.ndarray]:
        """Encode examples as a batch like those of training.

        Give the fields of an example in order, such as a source and a target, or lists
        of them, or a list of records. A last field that is left out is the model's own
        answer.
        """
        from transformer_jax.tasks.parts import inside

        source: Any = tasks.find(self.config.task).source(self.config)
        fields: tuple[str, ...] = getattr(source, "fields", ())
        if len(values) == 1 and isinstance(values[0], dict):
            return inside.make_batch(self._plain_task, [values[0]])
        columns: list[Any] = [[v] if isinstance(v, str) else list(v) for v in values]
        if len(columns) == 1 and columns[0] and isinstance(columns[0][0], dict):
            return inside.make_batch(self._plain_task, columns[0])
        if columns and len(columns) == len(fields) - 1:
            columns.append(self.predict(columns[0]))
        if len(columns) != len(fields):
            raise UserError(
                f"an example has {' and '.join(fields) or 'fields of its own'}, but "
                f"{len(columns)} values are given: give records, such as {{…}}"
            )
        for column in columns[1:]:
            _refuse_uneven("forward", columns[0], column)
        rows = zip(*columns, strict=True)
        records = [dict(zip(fields, row, strict=True)) for row in rows]
        return inside.make_batch(self._plain_task, records)

    def forward(self, *values: Any, patch: "Patch | None" = None) -> "Inside":
        """Read examples, and return all that the model computes on the way.

        `forward(source, target).activations["encoder/layer_0/feed_forward"]`; for the
        values see `batch`. `patch` replaces outputs by path, with a function of each:
        `{"encoder/layer_0/feed_forward": jnp.zeros_like}`.
        """
        from transformer_jax.tasks.parts import inside

        return inside.look(self._plain_task, self.params, self.batch(*values), patch)

    def loss(self, *values: Any) -> float:
        """Return the mean loss of examples, as in an evaluation."""
        return self.forward(*values).loss

    def gradient(self, *values: Any, patch: "Patch | None" = None) -> Params:
        """Return the gradient of the mean loss of examples by each parameter."""
        from transformer_jax.tasks.parts import inside

        task, batch = self._plain_task, self.batch(*values)
        return inside.gradient(task, self.params, batch, patch)[1]

    def flops(self, *values: Any) -> int:
        """Count the operations of a forward pass over examples, as XLA does."""
        from transformer_jax.tasks.parts import inside

        batch = self.batch(*values)
        return inside.count_flops(self._plain_task, self.params, batch)

    def use_engine(self, name: str) -> None:
        """Let another engine answer, such as int8 or ctranslate2:int8.

        What follows the colon is a setting of the engine's own. An engine is an entry
        point of the group `engines`: a function that takes a run and the setting, and
        returns a `engine.Searches`, or None if it has only changed what the run's own
        engine searches with (`Writer.change`). All else than answers, such as scores
        and vectors, stays as it is.
        """
        engine, _, setting = name.partition(":")
        known = entry_points.names("engines")
        if engine not in known:
            raise UserError(
                f"engine={name!r} is unknown: choose {' | '.join(known)}."
                f"{nearest(engine, known)}"
            )
        if not isinstance(self.task.inference, protocols.Writes):
            raise UserError(
                f"engine={name!r} searches texts, but the task {self.config.task!r} "
                "writes none: leave it out"
            )
        if jax.process_count() > 1:
            raise UserError(
                f"engine={name!r} answers in one process, not in "
                f"{jax.process_count()}: start one, or leave it out"
            )
        writer = self.task.inference.writer
        writer.other = entry_points.require("engines", engine)(self, setting)

    def join(self, others: Sequence["Run"]) -> None:
        """Let other runs answer with this one, as an ensemble.

        Each next token is searched with the mean of their probabilities, for which the
        runs need the same tokenizers. A label or a number follows from the mean of what
        each of them computes. All else than answers, such as scores, vectors and the
        loss, remains this run's own.
        """
        for other in others:
            if problem := self.find_obstacle(other):
                raise UserError(
                    f"ensemble: {other.folder.place} cannot answer with "
                    f"{self.folder.place}: {problem}"
                )
        self._answerer.join([(other._answerer, other.params) for other in others])

    @property
    def partners(self) -> list[Params]:
        """Return the parameters of the runs that answer with this one."""
        return [params for _, params in getattr(self._answerer, "partners", ())]

    @property
    def _answerer(self) -> Any:
        """Return what has partners: the writer of texts, or the inference itself."""
        return getattr(self.task.inference, "writer", self.task.inference)

    def find_obstacle(self, other: "Run") -> str:
        """Say why another run cannot help this one to answer; empty if it can."""
        ours: Any = self.task.inference
        theirs: Any = other.task.inference
        tasks_of = self.config.task, other.config.task
        if tasks_of[0] != tasks_of[1]:
            return f"its task is {tasks_of[1]}, not {tasks_of[0]}"
        if isinstance(ours, protocols.Averages):
            kinds = [", ".join(one.labels) or "numbers" for one in (ours, theirs)]
            if list(ours.labels) != list(theirs.labels):
                return f"it answers with {kinds[1]}, not with {kinds[0]}"
            return ""
        if not isinstance(ours, protocols.Writes) or not isinstance(ours, ReadsText):
            return (
                f"answers of the task {tasks_of[0]} are neither texts that are written "
                "from texts, nor labels, nor numbers"
            )
        if ours.writer.other or theirs.writer.other:
            return "another library searches (engine): leave engine out, or use int8"
        sides = [
            (inference.reads.fingerprint, inference.writer.tokenizer.fingerprint)
            for inference in (ours, theirs)
        ]
        if sides[0] != sides[1]:
            return (
                "its tokenizer is another one: train with the same text and options of "
                "tokenizer, or begin one with the other's (tokenizer.kind=file)"
            )
        tables = [
            one.config.model.max_positions
            if one.config.model.get("positions") == "learned"
            else float("inf")
            for one in (self, other)
        ]
        if tables[1] < tables[0]:
            return (
                f"it has {tables[1]} positions (model.max_positions), too few for what "
                "this run can write: train it with as many"
            )
        return ""

    @functools.cached_property
    def _plain_task(self) -> Task:
        """The task with a model that computes each layer by itself, and once."""
        config = self.config.copy_and_resolve_references()
        plain = {"remat": "none", "scan_layers": False, "attention": "einsum"}
        with config.unlocked():
            config.model.update({k: v for k, v in plain.items() if k in config.model})
        return tasks.find(config.task).open(config, self.folder.tokenizer)


def _texts(replies: Sequence[Reply]) -> list[str]:
    """Return the texts of replies; warn of lines that have none or are half known."""
    unknown = UnknownParts(logger)
    for number, reply in enumerate(replies, start=1):
        unknown.note(f"line {number}", reply.unknown)
        if reply.error:
            logger.warning("line %d: %s", number, reply.error)
    return [reply.text for reply in replies]


def _as_list(what: str, lines: Any) -> list[Any]:
    """Refuse bytes, whose numbers would be taken for lines, and single values."""
    if isinstance(lines, bytes) or not hasattr(lines, "__iter__"):
        raise TypeError(f"{what} takes a line or a list of lines, not {lines!r:.40}")
    return list(lines)


def _check_phrases(include: Any) -> list[Sequence[str]]:
    """Refuse words to include that are not a list of texts for each line."""
    for number, phrases in enumerate(include, start=1):
        if isinstance(phrases, str) or not all(isinstance(p, str) for p in phrases):
            raise UserError(f"include: line {number} has no list of texts: give one")
    return list(include)


def _as_texts(what: str, lines: Any) -> list[str]:
    """Return lines, or a single line, as a list; refuse anything that is not text."""
    found = [lines] if isinstance(lines, str) else _as_list(what, lines)
    for number, line in enumerate(found, start=1):
        if not isinstance(line, str):
            kind = type(line).__name__
            raise UserError(f"{what}: line {number} is of type {kind}, but must be str")
    check_text(*found)
    return found


def _pair(what: str, sources: Any, targets: Any) -> list[tuple[str, str]]:
    """Pair sources with targets; refuse sides of different length."""
    sides = _as_texts(what, sources), _as_texts(what, targets)
    _refuse_uneven(what, *sides)
    return list(zip(*sides, strict=True))


def _refuse_uneven(what: str, sources: Sequence[Any], targets: Sequence[Any]) -> None:
    if len(sources) != len(targets):
        raise UserError(
            f"{what}: there are {len(sources)} sources, but {len(targets)} targets"
        )


def load(
    path: str | os.PathLike,
    weights: str = "",
    mesh: Mesh | None = None,
    allow_imports: bool = False,
    base: Run | None = None,
    engine: str = "",
    ensemble: Sequence[str | os.PathLike] = (),
) -> Run:
    """Open a run directory, a bundle made of one, or a folder of Hugging Face.

    `weights` (auto, average, best, last, ema) overrides the run's config. The
    parameters are placed on the mesh, by default that of `answering_mesh`. A run that
    names modules of other packages is refused unless `allow_imports` is set, because
    importing them executes their code.

    A bundle of what was trained needs its base: an open one, with which it shares the
    frozen parameters, or the one that it names. Another `engine` than this package's
    own can answer, such as ctranslate2: see `Run.use_engine`. An `ensemble` names
    further runs, which answer with this one: see `Run.join`.
    """
    run = _open(path, weights, mesh, allow_imports, base)
    if engine:
        run.use_engine(engine)
    if ensemble:
        run.join(
            [
                load(one, weights, run.mesh, allow_imports, engine=engine)
                for one in ensemble
            ]
        )
    return run


def _open(
    path: str | os.PathLike,
    weights: str,
    mesh: Mesh | None,
    allow_imports: bool,
    base: Run | None,
) -> Run:
    if weights and weights not in cli.WEIGHTS:
        choices = " | ".join(cli.WEIGHTS)
        raise UserError(f"{weights=}: choose {choices}.{nearest(weights, cli.WEIGHTS)}")
    environment.use_compile_cache()
    folder = Folder(bundle.as_bundle(path))
    about = bundle.check(folder.path) if bundle.is_bundle(folder.path) else None
    if about and weights:
        raise UserError(
            f"{folder.place} is a bundle of {about['weights']} parameters: it has no "
            "others to choose from"
        )
    config = folder.config(allow_imports)
    if config.train.smoke:
        logger.warning("warning    %s %s", folder.place, SMOKE)
    if not folder.tokenizer.is_dir():
        raise UserError(f"{folder.place} has no tokenizer: its training never began")
    task = tasks.find(config.task).open(config, folder.tokenizer)
    mesh = mesh or answering_mesh()
    if about and "base" in about:
        if base is None and os.path.realpath(about["base"]) == os.path.realpath(path):
            raise UserError(f"{folder.place} names itself as its base: correct it")
        base = base or load(about["base"], mesh=mesh)
        like = abstract_params(task, mesh, with_adapters=True)
        params = bundle.read_trained(folder.path, like, base.params, about)
        params = adapters.merge(params, config)
        return Run(folder, config, task, params, about["step"], about["weights"], mesh)
    if base:
        raise UserError(f"{folder.place} has all of its parameters: leave base out")
    if about:
        params = bundle.read_params(folder.path, abstract_params(task, mesh))
        return Run(folder, config, task, params, about["step"], about["weights"], mesh)
    params, step, label = read_params(
        folder, task, mesh, weights or config.eval.weights
    )
    return Run(folder, config, task, params, step, label, mesh)


def answering_mesh() -> Mesh:
    """Make a mesh of all devices that answer together, those of all processes.

    On a CPU it has one device, because virtual CPU devices share the same cores.
    """
    if jax.process_count() > 1:
        return sharding.make_mesh({"data": -1, "fsdp": 1, "tensor": 1, "sequence": 1})
    alone = jax.default_backend() == "cpu"
    return sharding.local_mesh(1 if alone else jax.local_device_count())


def read_params(
    folder: Folder, task: Task, mesh: Mesh, weights: str, merged: bool = True
) -> tuple[Params, int, str]:
    """Return the parameters of a run, their step and the name of the weights.

    Adapters are added to their matrices, if `merged`. A training may delete a
    checkpoint while it is read, as there are newer ones. Then the parameters are chosen
    again.
    """
    like, left = abstract_params(task, mesh, with_adapters=True), TRIES
    while True:
        chosen, label = hosts.decide_in_first(lambda: choose_params(folder, weights))
        try:
            params = _read_chosen(folder, task, like, chosen, label)
            if merged:
                params = adapters.merge(params, task.config)
            return params, chosen, label
        except Exception as error:  # of many kinds, if files vanish
            left -= 1
            in_all = jax.process_count() == 1 or isinstance(error, UserError)
            look = functools.partial(_is_deleted, folder, chosen, label)
            if not (left and in_all and hosts.decide_in_first(look)):
                raise
            logger.debug("step %d was deleted while it was read", chosen)


def _is_deleted(folder: Folder, step: int, label: str) -> bool:
    """Wait until a deletion that has begun is done; return whether there was one."""
    place = folder.averaged if label == "averaged" else folder.checkpoints
    if len(found := Checkpoints(place).steps()) == 1 and found == [step]:
        return False  # there are no others
    time.sleep(PAUSE)
    return step not in Checkpoints(place).steps()


def _read_chosen(
    folder: Folder, task: Task, like: Params, chosen: int, label: str
) -> Params:
    place = folder.averaged if label == "averaged" else folder.checkpoints
    for path in steps.list_foreign(place):
        logger.warning("warning    %s is not a complete checkpoint: not used", path)
    saved = Checkpoints(place, identity=folder.identity(task.config))
    item = "ema" if label == "ema" else "params"
    try:
        return saved.restore_params(chosen, like, item)
    except Damaged as error:
        advice = hosts.decide_in_first(lambda: _name_others(folder, place, chosen))
        raise UserError(f"{error}. {advice}") from None


def _name_others(folder: Folder, place: pathlib.Path, step: int) -> str:
    """Advise weights that are in other checkpoints than the one that cannot be used."""
    there = {"average": (folder.averaged, Checkpoints(folder.averaged).steps()[-1:])}
    there |= {
        name: (folder.checkpoints, [choose_params(folder, name)[0]])
        for name in ("best", "last")
        if Checkpoints(folder.checkpoints).steps()
    }
    others = [
        f"--weights={name}"
        for name, (where, chosen) in there.items()
        if chosen and (where, chosen) != (place, [step])
    ]
    if others:
        return f"Try {' or '.join(others)}"
    return (
        "There are no other weights: start the training again, and it continues from "
        "the last intact checkpoint, if there is one"
    )


def choose_params(folder: Folder, weights: str) -> tuple[int, str]:
    """Return the step of the requested weights, and their name."""
    averaged = Checkpoints(folder.averaged).steps()
    if weights == "auto":
        weights = _read_choice(folder, finished=bool(averaged))
    if weights == "average" and averaged:
        return averaged[-1], "averaged"
    answered = (folder.read_result() or {}).get("weights")
    if weights == "average" and answered == "averaged":
        logger.warning(
            "warning    %s has no complete average any more: the last parameters "
            "answer. Start the training again to make it",
            folder.averaged,
        )
    steps = Checkpoints(folder.checkpoints).steps()
    if not steps:
        raise UserError(
            f"{folder.place} has no checkpoint yet: its training has not saved one"
        )
    if weights == "ema" and not (folder.checkpoints / str(steps[-1]) / "ema").is_dir():
        raise UserError(
            f"{folder.place} has no running mean of its parameters (its optim.ema is "
            "0.0): use --weights=average, best or last"
        )
    if weights == "best":
        best = Checkpoints(folder.checkpoints).best_step()
        return steps[-1] if best is None else best, "best"
    return steps[-1], "ema" if weights == "ema" else "last"


def _read_choice(folder: Folder, finished: bool) -> str:
    """Return the weights that the end of training found to be the best."""
    result = folder.read_result() or {}
    label = result.get("weights", "")
    if finished and label not in (*cli.WEIGHTS, "averaged"):
        logger.warning(
            "warning    %s does not say which parameters are better, the average or "
            "the last: the last are taken. Start the training again to find out",
            folder.path / "result.json",
        )
    return {"averaged": "average"}.get(label, label)


def abstract_params(task: Task, mesh: Mesh, with_adapters: bool = False) -> Params:
    """Return the shapes and shardings of a task's parameters.

    Those of a checkpoint have adapters, if the config asks for them.
    """

    def init(key: jax.Array) -> Params:
        params = task.objective.init(key)
        return adapters.add(params, task.config, key) if with_adapters else params

    made_from = *task.made_from, with_adapters
    shapes = Program(init, made_from=made_from).shapes(jax.random.key(0))
    return sharding.abstract(shapes, mesh)


def decode_options(config: ConfigDict, **changes: Any) -> Options:
    """Return the search options of a run with changes; refuse unknown names."""
    names = set(config.decode) if "decode" in config else set()
    for name in changes:
        if name not in names:
            hint = nearest(name, names)
            raise UserError(f"the task {config.task!r} has no option {name!r}.{hint}")
    kind = tasks.find(config.task).search
    if not names:
        return kind()
    if problems := schema.find_problems("decode", changes, kind):
        raise UserError(*problems)
    options = dataclasses.replace(kind(**config.decode), **changes)
    if problems := checks.find_search_problems(config, options):
        raise UserError(*problems)
    return options
