"""What a model is used for: a task turns examples into batches, losses and answers.

`train`, `evaluate` and `predict` know a task by these members, and nothing else of
text or images (see `translation.py`, the smallest whole example):

    create(config, source, folder, say)      → task; learns and saves what it needs
    open(config, folder) → task              the same task, from a run directory
    fingerprint                              of all that decides the encoding
    columns                                  what a store holds of an example
    encode(records) → rows of columns        several examples at once
    make_filter() → why_not(record, row)     why training leaves an example out, or None
    filter_fingerprint                       of all that decides this
    tokenizers                               of the columns that may be sampled anew
    lengths(store) → [examples, sides]       what the batch plan sees
    collate(columns, batch) → arrays         padded or packed, as batch.shape says
    module                                   the flax model
    init(key) → params
    loss(params, batch, key) → Sums          with dropout, or (key None) without
    parse(line, max_length, prefix, number, options) → item; raises Refused
    split(line, max_length) → lines          a line that is too long, in parts
    join(answers) → answer                   of the parts of a line
    question(record), reference(record)      an example, and its answer
    answers(params, items, mesh, options)    → (number of an item, answer) as found
    render(answer) → line, details(answer)   of which jsonl has more
    score(answers, references) → scores      the metrics of the task's field
    panel(answers, references) → [Score]     all readings of them, to be published
"""

from typing import Any

from transformer_jax.errors import UserError


class Refused(UserError):
    """A line that cannot be answered, and why."""


def find(name: str) -> Any:
    """The class of a task, by the name that `config.task` has."""
    from transformer_jax.tasks.translation import Translation

    return {"translation": Translation}[name]
