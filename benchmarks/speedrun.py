"""How soon is a fixed score reached from fixed data, from the command on?

    python benchmarks/speedrun.py quickstart
    python benchmarks/speedrun.py multi30k --folder=PATH --seeds=0,1,2
    python benchmarks/speedrun.py shakespeare --folder=PATH \\
        --options='--config.train.steps=900'

Trains the recipe of configs/speedrun.py with each seed, and takes the time of the
command, which ends with the score, with an empty cache of programs and data. A record
holds if the mean score reaches the target with p < 0.05 (t test over the seeds, one
side). The last lines are the row for docs/speedrun.md. Nothing else should run on the
machine: a matrix product is timed before each run, so that a slow minute is seen.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

import record
from scipy import stats

from transformer_jax.runs import environment

ROOT = pathlib.Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class Track:
    """A goal: a metric of a split, and the value that it must reach."""

    split: str
    metric: str
    target: float
    least: bool = True  # the target is the least value; else it is the most
    folder: bool = True  # whether the data are a folder of the user's

    def describe(self) -> str:
        """Say the goal in words."""
        word = "at least" if self.least else "at most"
        return f"{self.metric} of {word} {self.target:g} on {self.split}"

    def chance(self, scores: list[float]) -> float:
        """Return p of the hypothesis that the true mean misses the target."""
        if len(scores) < 2:
            return float("nan")
        side = "greater" if self.least else "less"
        return float(stats.ttest_1samp(scores, self.target, alternative=side).pvalue)


TRACKS = {
    "multi30k": Track("test", "bleu", 39.0),
    "shakespeare": Track("validation", "loss", 1.47, least=False),
    "quickstart": Track("test", "bleu", 99.0, folder=False),
    "sst2": Track("validation", "accuracy", 78.0),
}


def main(args: argparse.Namespace) -> int:
    track = TRACKS[args.track]
    if track.folder != bool(args.folder):
        sys.exit(
            f"{args.track} needs --folder=PATH, as the docstring of its config says"
            if track.folder
            else f"{args.track} generates its data: leave --folder out"
        )
    host = environment.versions()["host"]
    print(f"{args.track}: {track.describe()}; {host}")
    seconds, scores = [], []
    for seed in args.seeds.split(","):
        took, score = run_seed(args, track, seed, record.measure_speed())
        seconds.append(took)
        scores.append(score)
    chance = track.chance(scores)
    verdict = "holds" if chance < 0.05 else "does not hold"
    mean = statistics.fmean(scores)
    print(f"\n{verdict}: mean {mean:.4g} for {track.target:g}, p = {chance:.3g}")
    shown = ", ".join(f"{score:.4g}" for score in scores)
    minutes = statistics.median(seconds) / 60
    print(
        f"| {args.track} | {minutes:.1f} min | {shown} | p = {chance:.2g} | "
        f"{record.find_commit()} | {host} | |"
    )
    return 0 if chance < 0.05 else 1


def run_seed(
    args: argparse.Namespace, track: Track, seed: str, speed: float
) -> tuple[float, float]:
    """Train and score with a seed; return the seconds and the score."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = f"{args.keep}/{args.track}_{seed}" if args.keep else f"{folder}/run"
        # Nothing that an earlier run has compiled or prepared is used again.
        fresh = os.environ | {"TRANSFORMER_JAX_CACHE": f"{folder}/cache"}
        data = [f"--config.data.folder={args.folder}"] if args.folder else []
        began = time.monotonic()
        command = [
            *(sys.executable, "-m", "transformer_jax.train", "--workdir", workdir),
            *("--config", f"{ROOT}/configs/speedrun.py:{args.track}", *data),
            *(f"--config.seed={seed}", *shlex.split(args.options)),
        ]
        done = subprocess.run(
            command,
            env=fresh,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            sys.exit(
                f"{done.stdout[-4000:]}\nthe training ended with {done.returncode}"
            )
        took = time.monotonic() - began
        kept = pathlib.Path(workdir, "scores.json").read_text(encoding="utf-8")
    score = read_score(json.loads(kept)[track.split], track.metric)
    print(f"seed {seed}: {score:.4f} in {took:.0f} s ({speed:.0f} GFLOP/s before)")
    return took, score


def read_score(entry: dict, metric: str) -> float:
    """Return a metric of an entry of scores.json."""
    return 100 * entry[metric] if metric == "accuracy" else entry[metric]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("track", choices=TRACKS)
    parser.add_argument("--folder", default="", help="of the data")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--options", default="", help="further options of train")
    parser.add_argument("--keep", default="", help="a folder to keep the runs in")
    sys.exit(main(parser.parse_args()))
