"""Name, read and write the files of a run directory."""

import json
import os
import pathlib
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.errors import UserError
from transformer_jax.runs import signature
from transformer_jax.runs.environment import versions


class Folder:
    """A run directory by its names; a file is written whole or not at all."""

    def __init__(self, path: str | os.PathLike):
        if "://" in str(path):
            raise UserError(
                f"{path}: a run directory on remote storage is not supported yet. "
                "Mount the bucket as a folder (gcsfuse, s3fs, …), or use a shared disk"
            )
        self.path = pathlib.Path(path)
        self.tokenizer = self.path / "tokenizer"
        self.checkpoints = self.path / "checkpoints"
        self.averaged = self.path / "averaged"
        self.preempted = self.path / "preempted"
        self._accepts_changes = False

    def read(self, name: str) -> Any | None:
        """Read a JSON file; None if there is none."""
        try:
            return json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UserError(f"{self.path / name} is damaged: {error}") from None

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file."""
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        temporary.replace(self.path / name)

    def add_scores(self, name: str, scores: dict) -> None:
        """Put the scores of a split into scores.json, beside those of the others."""
        self.write("scores.json", {**(self.read("scores.json") or {}), name: scores})

    def adopt(
        self, config: ConfigDict, accept_changes: bool, write: bool = True
    ) -> None:
        """Make this the config's run, or check that the config may continue it.

        A run keeps the config that it has until `note_start`.
        """
        old, self._accepts_changes = self.read("config.json"), accept_changes
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
        """Write down the config that the run goes on with, and what it runs with."""
        now, before = versions(), self.read("versions.json") or {}
        earlier, model = before.pop("earlier", []), self._earlier_model(config)
        before.pop("earlier_model", None)
        if before and before != now:
            earlier.append(before)
        now |= {"earlier": earlier} if earlier else {}
        now |= {"earlier_model": model} if model else {}
        self.write("config.json", _plain(config))
        self.write("versions.json", now)

    def identity(self, config: ConfigDict) -> signature.Identity:
        """Return what this run's parameters mean, to be signed with them."""
        content = _plain(config)
        earlier = self._earlier_model(config)
        return signature.identify(
            content["task"], content["model"], self.tokenizer, earlier
        )

    def _earlier_model(self, config: ConfigDict) -> dict[str, list]:
        """Return values that keys of the model had before the run was changed."""
        found = (self.read("versions.json") or {}).get("earlier_model", {})
        old, new = (self.read("config.json") or {}), _plain(config)
        for key, value in old.get("model", {}).items():
            if value != new["model"].get(key) and value not in found.get(key, []):
                found[key] = [*found.get(key, []), value]
        return found

    def adopt_data(self, ledger: dict[str, Any], write: bool = True) -> None:
        """Write down what the run's data are, or check that they are the same.

        Held-out data may change with `accept_changes`; the writer decides.
        """
        old = self.read("ledger.json") or {}
        for name in [name for name in ledger if name in old]:
            what, key, way_out = "training", "store", "use another --workdir"
            if name != "train":
                if self._accepts_changes or not write:
                    continue
                what, key, way_out = name, "fingerprint", "add --accept_changes"
            before, now = old[name], ledger[name]
            if any(before.get(k, now[k]) != now[k] for k in (key, "content")):
                raise UserError(
                    f"the {what} data of {self.path} have changed since it began "
                    f"({before['examples']:,} examples then, {now['examples']:,} now): "
                    f"give it the same data, or {way_out}"
                )
        if write:
            self.write("ledger.json", ledger)

    def config(self) -> ConfigDict:
        """Read the run's config, with the defaults of keys that are newer than it."""
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
        flat = configs.renew(config.task, config.model.name, flat)
        config.update_from_flattened_dict(flat)
        return config


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
