"""A run directory: the one reader and writer that everything shares.

    config.json     every key of the run        metrics.jsonl   what was logged
    versions.json   what it ran with            scores.json     every evaluation
    tokenizer/      what reads its text         result.json     how it ended
    checkpoints/ averaged/ preempted/           its parameters

It holds all that is needed to use it. What is missing or damaged is explained here.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

import transformer_jax
from transformer_jax import answering, checks, cli, sharding, tasks
from transformer_jax import config as configs
from transformer_jax.checkpoint import Checkpoints, Damaged
from transformer_jax.convert import bundle
from transformer_jax.data import cache
from transformer_jax.decoding import Options
from transformer_jax.errors import UserError, nearest

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "sentencepiece",
)


class Folder:
    """The names inside a run directory; a file is written whole or not at all."""

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        self.tokenizer = self.path / "tokenizer"
        self.checkpoints = self.path / "checkpoints"
        self.averaged = self.path / "averaged"
        self.preempted = self.path / "preempted"

    def read(self, name: str) -> Any | None:
        try:
            return json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UserError(f"{self.path / name} is damaged: {error}") from None

    def write(self, name: str, content: Any) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        temporary.replace(self.path / name)

    def add_scores(self, name: str, scores: dict) -> None:
        self.write("scores.json", {**(self.read("scores.json") or {}), name: scores})

    def adopt(
        self, config: ConfigDict, accept_changes: bool, write: bool = True
    ) -> None:
        """Makes this the config's run, or sees that it may be continued with it.

        A run keeps the config that it has until `note_start`.
        """
        old = self.read("config.json")
        if old is None and write:
            self.note_start(config)
        if old is not None and not accept_changes:
            lines = configs.differences(_flat(old), _flat(_plain(config)))
            if lines:
                raise UserError(
                    f"{self.path} is a run of another config: use another --workdir, "
                    "or continue it as it is now with --accept_changes:",
                    *lines,
                )

    def note_start(self, config: ConfigDict) -> None:
        """Notes the config, with which the run goes on, and what it runs with."""
        self.write("config.json", _plain(config))
        self.write("versions.json", self._versions())

    def _versions(self) -> dict[str, Any]:
        """What this start runs with, and whatever else earlier ones ran with."""
        now, before = versions(), self.read("versions.json") or {}
        earlier = before.pop("earlier", [])
        if before and before != now:
            earlier.append(before)
        return {**now, "earlier": earlier} if earlier else now

    def adopt_data(self, ledger: dict[str, Any], write: bool = True) -> None:
        """Notes what the run's data are, or sees that they are still the same."""
        old, name = self.read("ledger.json"), "train"
        if old is not None and old[name]["store"] != ledger[name]["store"]:
            raise UserError(
                f"the training data of {self.path} have changed since it began "
                f"({old[name]['examples']:,} examples then, "
                f"{ledger[name]['examples']:,} now): give it the same data, or use "
                "another --workdir"
            )
        if write:
            self.write("ledger.json", ledger)

    def config(self) -> ConfigDict:
        stored = self.read("config.json")
        if stored is None:
            what = "holds no run" if self.path.is_dir() else "does not exist"
            raise UserError(
                f"{self.path} {what} (no config.json): train one with "
                "python -m transformer_jax.train --config quickstart "
                f"--workdir {self.path}"
            )
        config = configs.base(stored["task"], stored["model"]["name"])
        known = dict(configs.items(config))
        flat = _flat(stored)
        unknown = [k for k in flat if k not in known]
        if unknown:
            raise UserError(
                f"{self.path}/config.json has keys this version does not know: "
                f"{', '.join(unknown)} (it ran with {self.read('versions.json')})"
            )
        for key, value in flat.items():
            flat[key] = tuple(value) if isinstance(known[key], tuple) else value
        config.update_from_flattened_dict(flat)
        return config


@dataclasses.dataclass
class Run:
    """A trained model, ready to answer."""

    folder: Folder
    config: ConfigDict
    task: Any
    params: Any
    step: int
    weights: str  # which parameters these are, in words
    mesh: Any

    def predict(self, lines: Sequence[str], **options: Any) -> list[str]:
        """One answer a line; `options` override the run's `decode` section."""
        return [reply.text for reply in self.replies(lines, **options)]

    def replies(
        self,
        lines: Sequence[str],
        *,
        max_input: int = 0,
        on_long: str = "refuse",
        prefixes: Sequence[str] = (),
        **options: Any,
    ) -> list[answering.Reply]:
        """As `predict`, with scores, other hypotheses, and why a line has no answer.

        A line of more than `max_input` pieces is refused or split; 0: of any length,
        or, if lines are to be split, of more than those that it was trained on.
        """
        if on_long == "split":
            max_input = max_input or self.config.data.get("max_length", 0)
        found = answering.reply(
            self.task,
            self.params,
            self.mesh,
            lines,
            decode_options(self.config, **options),
            max_length=max_input,
            on_long=on_long,
            prefixes=prefixes,
        )
        return list(found)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """The log-probability of each target as the answer to its source."""
        pairs = list(zip(sources, targets, strict=True))
        found = self.task.read(self.params, pairs, self.mesh)
        return [float(reading.log_probs.sum()) for reading in found]

    def align(
        self, sources: Sequence[str], targets: Sequence[str] | None = None
    ) -> list[list[tuple[int, int]]]:
        """(source word, target word) pairs; without targets, of its own answers."""
        targets = self.predict(sources) if targets is None else targets
        pairs = list(zip(sources, targets, strict=True))
        found = self.task.read(self.params, pairs, self.mesh)
        return [self.task.align(reading) for reading in found]

    def encode(self, lines: Sequence[str]) -> np.ndarray:
        """A vector [D] for each line, to compare sentences with."""
        return self.task.vectors(self.params, lines, self.mesh)

    def attention(self, source: str, target: str | None = None) -> dict[str, Any]:
        """Attention weights [layers, heads, queries, keys] of one sentence."""
        target = self.predict([source])[0] if target is None else target
        return self.task.attention(self.params, source, target)


def load(path: str | os.PathLike, weights: str = "", mesh: Any = None) -> Run:
    """Opens a run directory, or a bundle made of one.

    `weights` (average, best, last, ema) overrides what the run's config asks for. Its
    parameters are put on the mesh, or else on one device.
    """
    if weights and weights not in cli.WEIGHTS:
        choices = " | ".join(cli.WEIGHTS)
        raise UserError(f"{weights=}: choose {choices}.{nearest(weights, cli.WEIGHTS)}")
    folder = Folder(path)
    about = bundle.check(folder.path) if bundle.is_bundle(folder.path) else None
    if about and weights:
        raise UserError(
            f"{folder.path} is a bundle of {about['weights']} parameters: it has no "
            "others to choose from"
        )
    config = folder.config()
    if not folder.tokenizer.is_dir():
        raise UserError(f"{folder.path} has no tokenizer: its training never began")
    task = tasks.find(config.task).open(config, folder.tokenizer)
    mesh = mesh or sharding.local_mesh()
    if about:
        params = bundle.read_params(folder.path, abstract_params(task, mesh))
        return Run(folder, config, task, params, about["step"], about["weights"], mesh)
    params, step, words = read_params(
        folder, task, mesh, weights or config.eval.weights
    )
    return Run(folder, config, task, params, step, words, mesh)


def read_params(folder: Folder, task: Any, mesh: Any, weights: str):
    """(params, step, which they are in words) as the weights of a run's choice."""
    like = abstract_params(task, mesh)
    checkpoints = Checkpoints(folder.checkpoints)
    try:
        if weights == "average":
            averaged = Checkpoints(folder.averaged)
            if averaged.steps():
                step = averaged.steps()[-1]
                return averaged.restore_params(step, like), step, "averaged"
        steps = checkpoints.steps()
        if not steps:
            raise UserError(
                f"{folder.path} has no checkpoint yet: its training has not saved one"
            )
        if weights == "ema":
            return checkpoints.restore_params(steps[-1], like, "ema"), steps[-1], "ema"
        step = checkpoints.best_step() if weights == "best" else steps[-1]
        words = "best" if weights == "best" else "last"
        step = steps[-1] if step is None else step
        return checkpoints.restore_params(step, like), step, words
    except Damaged as error:
        raise UserError(f"{error}. Try --weights=best or --weights=last") from None


def abstract_params(task: Any, mesh: Any) -> Any:
    return sharding.abstract(jax.eval_shape(task.init, jax.random.key(0)), mesh)


def decode_options(config: ConfigDict, **changes: Any) -> Options:
    """How a run searches, with changes; a name that is none says which is near."""
    names = set(config.decode) if "decode" in config else set()
    for name in changes:
        if name not in names:
            hint = nearest(name, names)
            raise UserError(f"the task {config.task!r} has no option {name!r}.{hint}")
    if not names:
        return Options()
    options = dataclasses.replace(Options(**config.decode), **changes)
    if problems := checks.find_search_problems(config, options):
        raise UserError(*problems)
    return options


def versions() -> dict[str, str]:
    """What a run ran with, and on what."""
    found = {"transformer_jax": transformer_jax.__version__}
    if commit := _commit():
        found["commit"] = commit
    device = jax.devices()[0]
    found["devices"] = f"{jax.device_count()} × {device.device_kind}"
    seen = getattr(os, "sched_getaffinity", None)  # Linux: what a process may use
    cores = len(seen(0)) if seen else os.cpu_count()
    found["host"] = f"{cores} × {_cpu_model()}"
    found["python"] = platform.python_version()
    for name in PACKAGES:
        found[name] = metadata.version(name)
    return found


def use_compile_cache() -> None:
    """Compiles each program once per machine; a cache that fails never stops a run."""
    machine = f"jaxlib-{metadata.version('jaxlib')}-py{sys.version_info[1]}"
    folder = cache.folder() / "compiled" / machine / _cpu_name()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _commit() -> str | None:
    """The checkout's commit, with "-dirty" where files differ; none if installed."""
    checkout = pathlib.Path(transformer_jax.__file__).parents[1]
    if not (checkout / ".git").exists():
        return None
    asked = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str:
    for line in _cpu_lines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _cpu_name() -> str:
    """Programs compiled for one CPU may not run on another that shares the disk."""
    lines = "".join(sorted(set(_cpu_lines()))) or platform.machine()
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


def _cpu_lines() -> list[str]:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().split("\n")
    except OSError:
        return []
    return [x for x in lines if x.startswith(("model name", "flags"))]


def _plain(config: ConfigDict) -> dict[str, Any]:
    return json.loads(config.to_json())


def _flat(tree: dict, prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
