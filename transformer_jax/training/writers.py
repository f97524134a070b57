"""Hand the entries of a run to TensorBoard, Weights & Biases or MLflow.

Each is a hook. A run that is continued adds to the record that it had there: the names
of these records stand in trackers.json of the run directory.
"""

import dataclasses
import importlib
import json
import logging
import pathlib
import uuid
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.base.schema import option
from transformer_jax.training.hooks import Hook

logger = logging.getLogger(__name__)


def numbers(kind: str, values: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of an entry, named kind/name."""
    return {
        f"{kind}/{name}": float(value)
        for name, value in values.items()
        if isinstance(value, int | float)
    }


@dataclasses.dataclass(frozen=True)
class TensorBoardOptions:
    """The switch of TensorBoard."""

    tensorboard: bool = option(
        True, "Also write TensorBoard events, if TensorBoard is installed."
    )


class TensorBoard(Hook):
    """Write the numbers of all entries as TensorBoard events."""

    options = TensorBoardOptions
    _board: Any = None

    def record(self, step: int, kind: str, values: dict[str, Any]) -> None:
        """Add the numbers of an entry to the curves."""
        try:
            from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
        except ImportError:
            return
        if self._board is None:
            self._board = SummaryWriter(str(self.workdir / "tensorboard"))
        for name, value in numbers(kind, values).items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Close the file of events."""
        if self._board is not None:
            self._board.close()


class Tracker(Hook):
    """Base of the writers that keep a record of a run outside its directory.

    The record is opened before the training, so that a mistake costs no time.
    """

    name: str  # the option that switches it on
    package: str  # what pip installs
    module: str

    def __init__(self, config: ConfigDict, workdir: pathlib.Path):
        super().__init__(config, workdir)
        try:
            self.api = importlib.import_module(self.module)
        except ImportError as error:
            raise UserError(
                f"config.log.{self.name} needs another package ({error}): "
                f"pip install {self.package}, or leave config.log.{self.name} False"
            ) from None
        self._is_open = False
        self._waiting: list[tuple[int, dict[str, float]]] = []
        if jax.process_index():
            return  # the entries are those of the first process
        try:
            self.open(self._names().get(self.name, ""))
        except Exception as error:  # of the network, an account or a data base
            why = str(error).strip().split("\n")[0][:300] or type(error).__name__
            raise UserError(
                f"config.log.{self.name}: the record of this run cannot be opened: "
                f"{why}. Mend that, or continue with --config.log.{self.name}=False"
            ) from None
        self._is_open = True

    def record(self, step: int, kind: str, values: dict[str, Any]) -> None:
        """Pass on the numbers of an entry.

        A service that does not answer must not end a training: what it has not taken
        is kept, and offered again with the next entry.
        """
        self._waiting.append((step, numbers(kind, values)))
        self._send()

    def _send(self) -> None:
        while self._waiting:
            try:
                self.write(*self._waiting[0])
            except Exception as error:  # of the network or the service
                logger.warning(
                    "%s has not taken %d entries (%s); metrics.jsonl has them",
                    self.name,
                    len(self._waiting),
                    error,
                )
                return
            del self._waiting[0]

    def close(self) -> None:
        """Offer the entries that still wait, and end the record."""
        if self._is_open:
            self._send()
            self.end()

    def _names(self) -> dict[str, str]:
        path = self.workdir / "trackers.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def remember(self, name: str) -> None:
        """Keep the name of this run's record, which a continued run opens again."""
        text = json.dumps({**self._names(), self.name: name}, indent=1)
        files.write(self.workdir / "trackers.json", text + "\n")

    def open(self, known: str) -> None:
        """Open the record of this name, or begin one if the name is empty."""
        raise NotImplementedError

    def write(self, step: int, values: dict[str, float]) -> None:
        """Add numbers to the record."""
        raise NotImplementedError

    def end(self) -> None:
        """End the record."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class WeightsAndBiasesOptions:
    """The switch of Weights & Biases."""

    wandb: bool = option(
        False,
        "Also write to Weights & Biases. Its environment variables say where: "
        "WANDB_MODE=offline writes to the run directory alone.",
    )


class WeightsAndBiases(Tracker):
    """Write the config and the numbers of all entries to Weights & Biases."""

    options = WeightsAndBiasesOptions
    name, package, module = "wandb", "wandb", "wandb"

    def open(self, known: str) -> None:
        """Begin or continue the record, whose curves are drawn by the run's steps."""
        identity = known or uuid.uuid4().hex[:12]
        self._run = self.api.init(
            id=identity,
            name=self.workdir.name,
            dir=str(self.workdir),
            config=self.config.to_dict(),
            resume="allow",
        )
        self._run.define_metric("*", step_metric="step")
        self.remember(identity)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Add numbers, with the step as one of them.

        A continued run repeats steps, which W&B's own count would refuse.
        """
        self._run.log({"step": step, **values})

    def end(self) -> None:
        """Send the last entries."""
        self._run.finish()


@dataclasses.dataclass(frozen=True)
class MLflowOptions:
    """The switch of MLflow."""

    mlflow: bool = option(
        False,
        "Also write to MLflow. Its environment variables say where, such as "
        "MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME.",
    )


class MLflow(Tracker):
    """Write the config and the numbers of all entries to MLflow."""

    options = MLflowOptions
    name, package, module = "mlflow", "mlflow", "mlflow"

    def open(self, known: str) -> None:
        """Begin or continue the record; a new one gets each option as a parameter."""
        if known:
            self.api.start_run(run_id=known)
            return
        started = self.api.start_run(run_name=self.workdir.name)
        self.api.log_params(dict(configs.items(self.config)))
        self.remember(started.info.run_id)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Add numbers at a step."""
        self.api.log_metrics(values, step=step)

    def end(self) -> None:
        """End the record."""
        self.api.end_run()
