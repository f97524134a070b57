"""Write texts that are longer than what a model reads at once.

The text is written in turns. A turn reads the end of the text so far as its prompt, at
most three quarters of a window, and writes the last quarter: positions stay those that
training had, and each piece is predicted from the three quarters of a window before
it, or more. What lies further back is forgotten.
"""

import dataclasses
import zlib
from collections.abc import Iterator, Sequence

import jax.numpy as jnp

from transformer_jax.base.ids import EOS
from transformer_jax.decoding import DecodeRequest, Options
from transformer_jax.decoding.engine import Hypothesis, Searches, longest_answer
from transformer_jax.decoding.searches.beam import length_penalty
from transformer_jax.sharding import Params


@dataclasses.dataclass(frozen=True)
class Draft:
    """A text that is being written."""

    number: int  # of its request
    copy: int  # 0 for the only one
    tokens: tuple[int, ...]  # written so far
    log_prob: float


def fits(request: DecodeRequest, options: Options, window: int) -> bool:
    """Return whether a window holds a request's prompt and its longest answer."""
    return len(request.prefix) + longest_answer(request, options) <= window


def turn_length(window: int) -> int:
    """Return how many tokens a turn writes."""
    return max(window // 4, 1)


def search(
    engine: Searches,
    params: Params,
    requests: Sequence[DecodeRequest],
    options: Options,
    window: int,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield (number of a request, its hypotheses), as `Engine.search` does.

    Requests that fit into a window are searched at once, the others in turns: greedily
    or by sampling. A text's draws depend on its own seed and turn alone.
    """
    at_once = [i for i, r in enumerate(requests) if fits(r, options, window)]
    chosen = [requests[i] for i in at_once]
    for place, hypotheses in engine.search(params, chosen, options):
        yield at_once[place], hypotheses
    drafts = [Draft(i, 0, (), 0.0) for i in range(len(requests)) if i not in {*at_once}]
    finished: dict[int, list[Draft]] = {draft.number: [] for draft in drafts}
    turn, waiting = 0, [*finished]
    while drafts:
        going = []
        for draft in _write_turn(
            engine, params, requests, drafts, turn, options, window
        ):
            most = longest_answer(requests[draft.number], options)
            if draft.tokens[-1] == EOS or len(draft.tokens) >= most:
                finished[draft.number].append(draft)
            else:
                going.append(draft)
        drafts, turn = going, turn + 1
        open_ = {draft.number for draft in drafts}
        for number in waiting:
            if number not in open_:
                yield number, _rank(finished[number], options)
        waiting = [number for number in waiting if number in open_]


def _write_turn(engine, params, requests, drafts, turn, options, window):
    """Yield each draft with what a turn adds; the first turn makes all copies."""
    length, written = turn_length(window), len(drafts[0].tokens)
    asked = []
    for draft in drafts:
        request = requests[draft.number]
        left = longest_answer(request, options) - written
        text = (*request.prefix, *draft.tokens)
        seed = f"{request.seed} {turn} {draft.copy}".encode()
        asked.append(
            dataclasses.replace(
                request,
                prefix=text[max(len(text) - (window - length), 0) :],
                seed=zlib.crc32(seed) >> 1 if turn else request.seed,
                # A limit beyond the turn forces no end within it.
                limit=left if left <= length else length + 1,
            )
        )
    changed = dataclasses.replace(
        options,
        max_length=length,
        min_length=max(min(options.min_length - written, length + 1), 0),
        n_best=1 if turn else options.n_best,
    )
    for place, hypotheses in engine.search(params, asked, changed):
        draft = drafts[place]
        for copy, one in enumerate(hypotheses):
            yield Draft(
                draft.number,
                draft.copy if turn else copy,
                draft.tokens + one.tokens,
                draft.log_prob + one.log_prob,
            )


def _rank(drafts: Sequence[Draft], options: Options) -> list[Hypothesis]:
    """Return finished drafts as hypotheses, likeliest first."""
    alpha = 0.0 if options.sample else options.alpha
    ordered = sorted(drafts, key=lambda draft: (-draft.log_prob, draft.copy))
    lengths = jnp.array([len(draft.tokens) for draft in ordered])
    penalties = length_penalty(lengths, alpha).tolist()
    return [
        Hypothesis(draft.tokens, draft.log_prob, draft.log_prob / penalty)
        for draft, penalty in zip(ordered, penalties, strict=True)
    ]
