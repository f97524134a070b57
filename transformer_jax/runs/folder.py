"""Name, read and write the files of a run directory."""

import contextlib
import glob
import json
import logging
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.base import extensions, files, schema
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.runs import notes, resuming, signature, steps
from transformer_jax.runs.environment import versions
from transformer_jax.runs.remote import Remote, is_remote

logger = logging.getLogger(__name__)

# What a run or a bundle holds beside folders; other files in it are the user's own.
FILES = (
    "config.json",
    "versions.json",
    "ledger.json",
    "teacher.json",
    "result.json",
    "scores.json",
    "metrics.jsonl",
    "card.md",
    "bundle.json",
    "weights.safetensors",
)
PROPOSED = 5  # runs that are named in place of a folder of runs


class Folder:
    """The files of a run directory, which are written atomically."""

    def __init__(self, path: str | os.PathLike):
        """Name the files of a run; mirror a run in an object store, such as gs://…."""
        self._remote = Remote(str(path)) if is_remote(path) else None
        # Small files are at `path`; the run, with its checkpoints, is at `place`.
        self.path = self._remote.mirror if self._remote else pathlib.Path(path)
        self.place: Any = self._remote.place if self._remote else self.path
        self.tokenizer = self.path / "tokenizer"
        self.checkpoints = self.place / "checkpoints"
        self.averaged = self.place / "averaged"
        self.preempted = self.place / "preempted"
        self.damaged = self.path / steps.DAMAGED  # for files that were moved aside
        self._accepts_changes = False
        self._begun = False  # whether a training has written its config

    def files(self) -> Iterator[pathlib.Path]:
        """Yield the files of the run, and those that its config names, its data.

        No command may write over them, see `cli.refuse_overwriting`.
        """
        yield from (self.path / name for name in FILES)
        for name in ("tokenizer", "checkpoints", "averaged", "preempted"):
            yield from (self.path / name).rglob("*")
        if "task" in (self.read("config.json") or {}):  # not a folder of others
            yield from map(pathlib.Path, configs.named_files(self.config()))

    def check_place(self) -> None:
        """Refuse at the start a path that cannot become a run directory."""
        try:
            is_folder, there = self.path.is_dir(), os.path.lexists(self.path)
            os.stat(self.path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"--workdir={self.path}: {why}: name another one") from None
        if there and not is_folder:
            to = f"a link to {os.readlink(self.path)}" if self.path.is_symlink() else ""
            raise UserError(
                f"{self.path} is {to or 'a file'}, not a folder: use another --workdir"
            )

    def check_writable(self) -> None:
        """Refuse a run directory that is not writable."""
        place = self.path.absolute()
        while not place.exists():
            place = place.parent
        if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
            raise UserError(
                f"{self.path} cannot be written: {place} is read-only, or another "
                "user's. Use another --workdir"
            )
        path = str(self.place.absolute())
        if glob.has_magic(path):  # Orbax looks for what it has written by a pattern
            raise UserError(
                f"{path} has one of the characters * ? [ in its name, and no "
                "checkpoint saved there can be restored: use another --workdir"
            )

    def check_there(self) -> None:
        """Raise if the run was moved or removed while it is trained.

        Otherwise the training would go on in a new folder, without config and
        tokenizer, which nothing can open.
        """
        if self._begun and not (self.path / "config.json").exists():
            raise UserError(
                f"{self.place} was moved or removed during its training, which stops: "
                "start the same command again with --workdir naming its new place"
            )

    def read(self, name: str) -> dict[str, Any] | None:
        """Read an essential JSON file; None if it does not exist."""
        try:
            return files.read_object(self.path / name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.place / name} is damaged: {_reason(error)}. Put back a copy of "
                "it, or use another --workdir"
            ) from None

    def read_note(self, name: str) -> dict[str, Any]:
        """Read an informative JSON file; return {} if it is damaged or missing.

        Values of other types than `write` gives them are left out.
        """
        try:
            found = files.read_object(self.path / name)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._warn(name, _reason(error))
            return {}
        good = {k: v for k, v in found.items() if notes.fits(name, k, v)}
        if lost := [k for k in found if k not in good]:
            self._warn(name, f"wrong type of {', '.join(lost[:3])}")
        return good

    def read_result(self) -> dict[str, Any] | None:
        """Read how the run ended; None if it did not, or if that is unreadable."""
        result = self.read_note("result.json")
        complete = {"step", "stopped_early", "weights", "scores"} <= result.keys()
        return result if complete else None

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file; an unreadable old one is kept in `damaged/`."""
        self.check_there()
        try:
            files.read_object(self.path / name)
        except FileNotFoundError:
            pass
        except (OSError, ValueError):
            self.move_aside(self.path / name)
        text = json.dumps(content, indent=1, ensure_ascii=False)
        files.write(self.path / name, text + "\n")
        self.push()

    def pull(self) -> None:
        """Fetch the files that process 0 pushed, if the run is in an object store."""
        if self._remote:
            self._remote.pull()

    def push(self, everything: bool = False) -> None:
        """Copy changed files to the object store, if the run is in one."""
        if self._remote:
            self._remote.push(everything)

    def push_soon(self) -> None:
        """Push, unless this was done a few seconds ago."""
        if self._remote and self._remote.is_due():
            self._remote.push()

    def move_aside(self, path: pathlib.Path) -> pathlib.Path:
        """Move a file or folder of the run aside, into `damaged/`."""
        return files.move_aside(path, self.damaged, path.name)

    def _warn(self, name: str, why: str) -> None:
        logger.warning("warning    %s is not used: %s", self.place / name, why)

    def add_scores(self, name: str, scores: dict) -> None:
        """Add or replace the scores of a split in scores.json, also beside others."""
        self.check_there()
        with (self.path / ".scores.lock").open("ab") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                files.lock(file, wait=True)
            self.write("scores.json", {**self.read_note("scores.json"), name: scores})

    def adopt(
        self, config: ConfigDict, accept_changes: bool, write: bool = True
    ) -> None:
        """Make this a run of the config, or check that the config may continue it.

        An existing run keeps its config until `note_start`.
        """
        old, self._accepts_changes = self.stored_config(), accept_changes
        if old is None and write:
            self.note_start(config)
        if old is not None and not accept_changes:
            lines = resuming.differences(_flat(old), _flat(_plain(config)))
            if lines:
                raise UserError(
                    f"{self.place} is a run of another config: use another --workdir, "
                    "or continue it as it is now with --accept_changes:",
                    *lines,
                )

    def note_start(self, config: ConfigDict) -> None:
        """Record the config that the run continues with, and its environment."""
        now, before = versions(), self.read_note("versions.json")
        earlier, model = before.pop("earlier", []), self._earlier_model(config)
        before.pop("earlier_model", None)
        if before and before != now:
            earlier.append(before)
        now |= {"earlier": earlier} if earlier else {}
        now |= {"earlier_model": model} if model else {}
        self.write("config.json", _plain(config))
        self._begun = True
        self.write("versions.json", now)

    def identity(self, config: ConfigDict) -> signature.Identity:
        """Return the identity of this run's parameters, which is signed with them."""
        content = _plain(config)
        earlier = self._earlier_model(config)
        return signature.identify(
            content["task"], content["model"], self.tokenizer, earlier
        )

    def _earlier_model(self, config: ConfigDict) -> dict[str, list]:
        """Return values that options of the model had before the run was changed."""
        found = self.read_note("versions.json").get("earlier_model", {})
        old, new = (self.stored_config() or {}), _plain(config)
        for key, value in old.get("model", {}).items():
            if value != new["model"].get(key) and value not in found.get(key, []):
                found[key] = [*found.get(key, []), value]
        return found

    def adopt_data(self, ledger: dict[str, Any], write: bool = True) -> None:
        """Record the identity of the run's data, or check that it is the same.

        Held-out data may change with `accept_changes`; the writer decides.
        """
        old = self.read_note("ledger.json")
        for name in [name for name in ledger if name in old]:
            what, key, way_out = "training", "store", "use another --workdir"
            if name != "train":
                if self._accepts_changes or not write:
                    continue
                what, key, way_out = name, "fingerprint", "add --accept_changes"
            before, now = old[name], ledger[name]
            if any(before.get(k, now[k]) != now[k] for k in (key, "content")):
                raise UserError(
                    f"the {what} data of {self.place} have changed since it began "
                    f"({before['examples']:,} examples then, {now['examples']:,} now): "
                    f"give it the same data, or {way_out}"
                )
        if write:
            self.write("ledger.json", ledger)

    def adopt_teacher(self, about: dict[str, Any], write: bool) -> None:
        """Record the parameters of the run's teacher, or check that they are these."""
        before = self.read("teacher.json") or about
        same = before.get("parameters") == about["parameters"]
        if not same and not self._accepts_changes:
            raise UserError(
                f"train.teacher = {about['place']!r} has other parameters (of step "
                f"{about['step']}) than when {self.place} began (of step "
                f"{before.get('step')}): give it that teacher, or --accept_changes"
            )
        if write:
            self.write("teacher.json", about)

    def stored_config(self) -> dict[str, Any] | None:
        """Read config.json as it is; None if it does not exist."""
        stored = self.read("config.json")
        if stored is None:
            return None
        kinds: dict[str, type] = {"task": str, "model": dict, "data": dict}
        for key, kind in kinds.items():
            if not isinstance(stored.get(key), kind):
                raise self._damaged_config(f"its {key!r} is {stored.get(key)!r}")
        if not isinstance(stored["model"].get("name"), str):
            raise self._damaged_config(f"its 'model' is {stored['model']!r}")
        return stored

    def _damaged_config(self, why: str) -> UserError:
        return UserError(
            f"{self.place / 'config.json'} is damaged: {why[:120]}. Put back a copy of "
            "it, or use another --workdir"
        )

    def _no_run(self) -> str:
        """Say that there is no run here, and name the runs inside or nearby."""
        what = "holds no run" if os.path.isdir(self.path) else "does not exist"
        said = f"{self.place} {what} (no config.json)"
        inside = sorted(file.parent.name for file in self.path.glob("*/config.json"))
        if inside:
            shown = [f"{self.place}/{name}" for name in inside[:PROPOSED]]
            more = len(inside) - len(shown)
            names = ", ".join(shown) + (f" and {more} more" if more else "")
            return f"{said}, but there are runs inside: name one, {names}"
        around = [file.parent.name for file in self.path.parent.glob("*/config.json")]
        return (
            f"{said}.{nearest(self.path.name, around)} Train one with "
            "python -m transformer_jax.train --config quickstart "
            f"--workdir {self.place}"
        )

    def config(self, allow_imports: bool = False) -> ConfigDict:
        """Read the run's config, with defaults for options that are newer than it.

        Modules of other packages that it names are imported if the user consents.
        """
        self.check_place()
        stored = self.stored_config()
        if stored is None:
            raise UserError(self._no_run())
        imports = stored.get("imports", [])
        if not isinstance(imports, list):
            raise self._damaged_config(f"its 'imports' is {imports!r}")
        named = [*map(str, imports)]
        dotted = [n for n in (stored["task"], stored["model"]["name"]) if "." in n]
        extensions.check([*named, *dotted], self.path, self.place, allow_imports)
        for name in named:
            extensions.load(name, f"{self.path / 'config.json'}: imports")
        config = configs.base(stored["task"], stored["model"]["name"])
        known = dict(configs.items(config))
        flat = _flat(stored)
        unknown = [k for k in flat if k not in known]
        if unknown:
            raise UserError(
                f"{self.place}/config.json has options this version does not know: "
                f"{', '.join(unknown)} (it ran with {self.read('versions.json')})"
            )
        for key, value in flat.items():
            tupled = isinstance(known[key], tuple) and isinstance(value, list)
            flat[key] = tuple(value) if tupled else value
        try:
            config.update_from_flattened_dict(flat)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise self._damaged_config(str(error).split("\n")[0]) from None
        declared = configs.declared(config.task, config.model.name)
        for key, value in configs.items(config):
            field = declared[key]
            problem = schema.find_problem(key, value, field)
            if problem and not key.startswith("model."):
                # The bounds of other options are for new runs; this one has begun.
                problem = schema.find_wrong_type(key, value, field.default)
            if problem:
                raise self._damaged_config(problem)
        return config


def _reason(error: OSError | ValueError) -> str:
    """Describe briefly why a file cannot be read."""
    return getattr(error, "strerror", None) or str(error).split("\n")[0][:120]


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


def find_runs(flag: str, given: Sequence[str]) -> list[str]:
    """List the runs given to a flag, by commas, patterns, repetition or their folder.

    A folder that is no run, but contains runs, stands for all of them, in any depth.
    """
    found = []
    for text in given:
        parts = [text] if os.path.isdir(text) else [p for p in text.split(",") if p]
        for part in parts:
            matches = [part]
            if glob.has_magic(part) and not os.path.isdir(part):
                matches = sorted(filter(os.path.isdir, glob.glob(part)))
                if not matches:
                    raise UserError(f"--{flag}={part}: no directory has such a name")
            for match in matches:
                found += _runs_below(match) or [match]
    return found


def _runs_below(place: str) -> list[str]:
    """List the runs in a folder that is not itself one, in the order of their names."""
    found = []
    for path, folders, names in os.walk(place):
        if "config.json" in names:
            folders.clear()  # no run is inside another
            if path != place:
                found.append(path)
    return sorted(found, key=_by_number)


def _by_number(path: str) -> list[Any]:
    """Return a key that sorts seed_9 before seed_10."""
    parts = re.split(r"(\d+)", path)
    return [int(part) if part.isdecimal() else part for part in parts]
