"""What a few numbers reach at the world of configs/decisions.py, beside its models.

    python benchmarks/decisions.py [--config configs/decisions.py]

A logistic regression on the features of a state is fitted to the actions of the
recorded training episodes: of all, and of the best half, quarter and tenth by return.
It plays from the states in which the test begins, with drawn actions and with the
likeliest. The script also prints what the recorded episodes reach.
"""

import argparse
import json

import numpy as np

from transformer_jax import config
from transformer_jax.data.reading.records import Record
from transformer_jax.family.decisions import episodes
from transformer_jax.family.decisions.task import CHOSEN, Asked, first_states

PARTS = (1.0, 0.5, 0.25, 0.1)  # of the episodes, the best ones
ROUNDS = 30  # of Newton's method
RIDGE = 1e-6  # keeps its matrix invertible


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="decisions")
    parser.add_argument("--episodes", type=int, default=0, help="0: as the config")
    args = parser.parse_args()
    loaded = config.load(args.config)
    world, data = episodes.WORLDS[loaded.data.source], loaded.data
    if world.ACTIONS != 2:
        raise SystemExit(f"{data.source} has {world.ACTIONS} actions: name one of 2")
    for split in ("train", "validation", "test"):
        made = episodes.record(world, split, data[f"{split}_size"])
        returns = [float(one["rewards"].sum()) for one in made]
        most = np.mean([one >= world.MOST for one in returns])
        print(json.dumps({"split": split, "episodes": len(made),
                          "mean_return": round(float(np.mean(returns)), 2),
                          "share_with_the_most": round(float(most), 3)}))  # fmt: skip
    recorded = episodes.record(world, "train", data.train_size)
    count = args.episodes or loaded.eval.episodes
    for part in PARTS:
        weights = fit(choose(recorded, part), world)
        for greedy, name in CHOSEN.items():
            reached = play(world, weights, count, greedy)
            print(json.dumps({"best": part, "actions": name,
                              "reached": round(float(reached.mean()), 1),
                              "spread": round(float(reached.std()), 1)}))  # fmt: skip


def choose(recorded: list[Record], part: float) -> list[Record]:
    """Return this share of the episodes, those of the largest returns."""
    ranked = sorted(recorded, key=lambda one: -one["rewards"].sum())
    return ranked[: max(round(part * len(ranked)), 1)]


def fit(chosen: list[Record], world) -> np.ndarray:
    """Return the weights of the features, and a bias, by Newton's method."""
    seen = inputs(np.concatenate([one["states"] for one in chosen]), world)
    done = np.concatenate([one["actions"] for one in chosen])
    weights = np.zeros(seen.shape[1])
    for _ in range(ROUNDS):
        share = 1 / (1 + np.exp(-(seen @ weights)))
        curve = (seen * (share * (1 - share))[:, None]).T @ seen
        step = np.linalg.solve(
            curve + RIDGE * len(seen) * np.eye(len(weights)),
            seen.T @ (done - share) - RIDGE * len(seen) * weights,
        )
        weights += step
        if abs(step).max() < 1e-8:
            break
    return weights


def play(world, weights: np.ndarray, count: int, greedy: bool) -> np.ndarray:
    """Return what episodes reach that begin where those of the test do."""
    asked, random = Asked(world.MOST), np.random.RandomState(0)
    states, reached = first_states(world, asked, count), np.zeros(count)
    alive = np.ones(count, bool)
    for _ in range(world.STEPS):
        share = 1 / (1 + np.exp(-(inputs(states, world) @ weights)))
        mark = 0.5 if greedy else random.uniform(size=count)
        after, rewards, ended = world.step(states, (share > mark).astype(int))
        reached += np.where(alive, rewards, 0.0)
        states, alive = np.where(alive[:, None], after, states), alive & ~ended
        if not alive.any():
            break
    return reached


def inputs(states: np.ndarray, world) -> np.ndarray:
    """Bring the features near 1, and add a constant."""
    scaled = states / np.array(world.SCALES)
    return np.concatenate([scaled, np.ones((len(states), 1))], axis=1)


if __name__ == "__main__":
    main()
