"""Parts of tasks that answer with one of several labels."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.base.errors import UserError
from transformer_jax.decoding import DecodeRequest, Reply
from transformer_jax.tasks.parts.whole_answers import MeanAnswers
from transformer_jax.tasks.protocols import Objective


def check_classes(labels: Sequence[str], what: str) -> tuple[str, ...]:
    """Return the classes of the training split; refuse fewer than two."""
    if len(labels) < 2:
        raise UserError(
            f"all training {what}s have the label {', '.join(labels)}: there must be "
            "at least two classes to tell apart"
        )
    return tuple(labels)


def index_of(label: Any, labels: Sequence[str]) -> int:
    """Return the index of a label; refuse one that training has not seen."""
    if str(label) not in labels:
        raise UserError(
            f"the label {label!r} is not among those of the training split: "
            f"{', '.join(labels)}"
        )
    return labels.index(str(label))


class LabelObjective(Objective):
    """Base of objectives whose loss is the cross-entropy of labels."""

    logged = ("accuracy",)

    def __init__(self, config: ConfigDict, module: Any, labels: int):
        self.module, self.labels, self.train = module, labels, config.train

    def compare(
        self, logits: Array, labels: Array, shares: Array | float = 1.0
    ) -> losses.Sums:
        """Sum the loss of labels, weighted by their shares; -1 is no label."""
        return losses.cross_entropy(
            logits[:, None],
            jnp.maximum(labels, 0)[:, None],
            (shares * (labels >= 0)).astype(jnp.float32)[:, None],
            self.train.label_smoothing,
            self.labels,
        )


class LabelAnswers(MeanAnswers):
    """Answer with the likeliest label."""

    def __init__(self, config: ConfigDict, objective: Any, labels: Sequence[str]):
        super().__init__(config)
        self.objective, self.labels = objective, labels

    def value(self, output: Any) -> np.ndarray:
        """Return the chances of the labels."""
        return chances_of(output)

    def say(self, request: DecodeRequest, value: np.ndarray) -> Reply:
        """Reply with the likeliest label."""
        return likeliest(request.line, value, self.labels)


def chances_of(output: Float[np.ndarray, "labels"]) -> np.ndarray:
    """Return the probabilities of labels by a head's outputs."""
    shares = np.exp(output - output.max())
    return shares / shares.sum()


def likeliest(
    line: Any, chances: Float[np.ndarray, "labels"], labels: Sequence[str]
) -> Reply:
    """Reply with the likeliest label, and the probabilities of all."""
    named = dict(zip(labels, chances.tolist(), strict=True))
    return Reply(line, labels[int(chances.argmax())], details={"chances": named})
