"""Put the scores of a run into words: its last lines, and those of groups."""

from typing import Any

from transformer_jax import cli
from transformer_jax.training import log as metrics


def group_lines(scores: dict[str, Any]) -> list[str]:
    """Put the scores of groups of examples into words, where there are any."""
    groups = scores.get("groups", scores.get("by_tag", {}))  # the name in older runs
    return [
        f"  {name or 'no tag'}: {found['summary']}  ({found['examples']} examples)"
        for name, found in groups.items()
    ]


def print_result(result: dict[str, Any], folder: Any, already: bool = False) -> None:
    """The last lines of a training run."""
    state = "was already done" if already else "done"
    early = ", stopped early" if result["stopped_early"] else ""
    # A result of an older version tells no time.
    took = f", trained {cli.duration(result['seconds'])}" * ("seconds" in result)
    print(f"{state}: {folder.path}, step {result['step']}{early}{took}")
    for split, scores in result["scores"].items():
        summary = scores["summary"]
        print(
            f"{split}: {summary}  {metrics.in_words(scores, summary)}  "
            f"({scores['examples']} examples, {result['weights']} parameters)"
        )
        for line in group_lines(scores):
            print(line)
    print(
        f'try it: echo "…" | python -m transformer_jax.predict --workdir {folder.path}',
        flush=True,
    )
