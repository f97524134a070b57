"""Measure the cost of an answer, by number of lines and beam width; compare batches.

    python benchmarks/decode_cost.py --workdir RUN --input FILE

Prints three tables: seconds per sentence for 10, 100, … lines (repeated if the file has
fewer); seconds per sentence for beams of 1, 2, 4 and 8; and for each of 1,000
sentences, whether it gets the same tokens and scores alone as among the others. A first
pass, which compiles the programs, is excluded.
"""

import argparse
import itertools
import os
import pathlib
import statistics
import sys
import time

LINES = (10, 100, 1000, 10_000)
BEAMS = (1, 2, 4, 8)
TIE = 1e-5  # relative difference of scores


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True, help="a translation run")
    parser.add_argument("--input", required=True, help="sentences, one per line")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", type=int, default=1000, help="sentences sent alone")
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import transformer_jax

    run = transformer_jax.load(args.workdir)
    lines = pathlib.Path(args.input).read_text().strip("\n").split("\n")
    by_number(run, lines, args.rounds)
    by_beam(run, lines[:1000], args.rounds)
    alone_and_together(run, lines[: args.alone])
    return 0


def by_number(run, lines, rounds):
    print("lines   ms a sentence: greedy   beam 4")
    for number in LINES:
        some = list(itertools.islice(itertools.cycle(lines), number))
        costs = [
            seconds(run, some, beams, 1 if number > 1000 else rounds) / number * 1e3
            for beams in (1, 4)
        ]
        print(f"{number:6,} {costs[0]:22.2f} {costs[1]:8.2f}", flush=True)


def by_beam(run, lines, rounds):
    """Let beam widths take turns, so that other load does not hit only one of them."""
    for beams in BEAMS:
        run.predict(lines, beams=beams)
    found = {beams: [] for beams in BEAMS}
    for _ in range(rounds):
        for beams in BEAMS:
            began = time.monotonic()
            run.predict(lines, beams=beams)
            found[beams].append(time.monotonic() - began)
    print("beam   ms a sentence   × the beam before")
    before = None
    for beams in BEAMS:
        cost = statistics.median(found[beams]) / len(lines) * 1e3
        ratio = f"{cost / before:18.2f}" if before else ""
        print(f"{beams:4} {cost:15.2f} {ratio}", flush=True)
        before = cost


def seconds(run, lines, beams, rounds):
    run.predict(lines, beams=beams)
    times = []
    for _ in range(rounds):
        began = time.monotonic()
        run.predict(lines, beams=beams)
        times.append(time.monotonic() - began)
    return statistics.median(times)


def alone_and_together(run, lines):
    for beams in (1, 4):
        together = run.replies(lines, beams=beams)
        alone = [run.replies([line], beams=beams)[0] for line in lines]
        other = ties = 0
        worst = 0.0
        for one, many in zip(alone, together, strict=True):
            scores = one.score, many.score
            distance = abs(scores[0] - scores[1]) / max(abs(scores[0]), 1e-9)
            if one.text == many.text:
                worst = max(worst, distance)
            else:
                other += 1
                ties += distance <= TIE
        print(
            f"beam {beams}: {len(lines) - other} of {len(lines)} sentences are the "
            f"same alone and together, scores within {worst:.1e}; of {other} others "
            f"{ties} are ties within {TIE:g}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
