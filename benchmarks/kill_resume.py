"""Does a run that is killed repeatedly end bit-identical to an undisturbed run?

    python benchmarks/kill_resume.py --kills 5
    python benchmarks/kill_resume.py --kills 8 --config quickstart --steps 400 \\
        --config.model.d_model=64

Trains once undisturbed, then again under SIGKILL at random moments (during start-up, in
the middle of a save, in the second epoch, after the last step), and compares the last
checkpoint, the averaged parameters, the metrics and the result. The exit code is 0 if
EQUAL.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
from faults import CLOCK, digest, without_times

from transformer_jax import cli, optim, sharding
from transformer_jax.runs import folder as folders
from transformer_jax.runs import run as runs
from transformer_jax.runs.checkpoint import Checkpoints, TrainState
from transformer_jax.runs.steps import PARTIAL
from transformer_jax.training import log as metrics

POLL = 0.002  # seconds: a save of a small model takes a few hundredths of one


@dataclasses.dataclass
class Kill:
    """The planned and the actual moment of a kill."""

    kind: str  # start | step | save | end
    target: int = 0  # strike once this step is logged or saved; a save: of a later one
    delay: float = 0.0  # seconds more
    seconds: float = 0.0
    step: int = 0
    epoch: int = 0
    saving: str = ""


@dataclasses.dataclass
class Timeline:
    """The course of the undisturbed run; times in seconds."""

    steps: int
    epoch_steps: int
    started: float  # until the first log entry
    step: float
    ended: float  # from the last step's log entry to the exit


class Training:
    """A run directory, and the command that starts or continues it."""

    def __init__(self, folder: pathlib.Path, command: list[str]):
        self.workdir = folder / "run"
        self.cache = folder / "cache"
        self.log = folder / "log.txt"
        self.checkpoints = self.workdir / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        self.command = [*command, "--workdir", str(self.workdir)]
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start or restart the command."""
        self._metrics = self._metrics_file()
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TRANSFORMER_JAX_CACHE": str(self.cache)},
                start_new_session=True,
            )

    def stop(self) -> None:
        """Send SIGKILL to all processes of the run, so that none can clean up."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def wait_until(self, true) -> None:
        """Return when `true()`, or when the process has ended."""
        while self.process.poll() is None and not true():
            time.sleep(POLL)

    def resumed(self) -> bool:
        """Return whether this start has truncated and replaced the metrics."""
        return self._metrics_file() != self._metrics

    def _metrics_file(self) -> int:
        path = self.workdir / "metrics.jsonl"
        return path.stat().st_ino if path.exists() else 0

    def saving(self) -> str:
        """Name the checkpoint that is being written, if one is."""
        names = [p.name for p in self.checkpoints.glob("*") if PARTIAL in p.name]
        return names[0].split(".")[0] if names else ""

    def step(self) -> int:
        """Return the last step that left a trace."""
        saved = [int(p.name) for p in self.checkpoints.glob("*") if p.name.isdigit()]
        return max([0, *saved, *(e["step"] for e in self.entries())])

    def entries(self) -> list[dict]:
        """Read the run's metrics."""
        return metrics.read_entries(self.workdir / "metrics.jsonl")

    def failure(self) -> str:
        """Show how the process ended, and its last lines."""
        lines = self.log.read_text(errors="replace").splitlines()[-20:]
        code = self.process.returncode
        return "\n".join([f"the run ended with exit code {code}:", *lines])


def main() -> int:
    """Train undisturbed and under kills, and compare; exit code 0 if equal."""
    args, overrides = parse_arguments()
    # Whoever stops this stops the training too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: stopped"))
    folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="kill_resume_"))
    if args.folder and folder.exists() and any(folder.iterdir()):
        sys.exit(f"error: --folder {folder} is not empty")
    command = [sys.executable, "-m", "transformer_jax.train", "--config", args.config]
    command += [f"--config.{key}={value}" for key, value in overrides.items()]
    chance = random.Random(args.seed)
    print(f"folder     {folder}")
    print(f"command    {' '.join(command[1:])}")
    print(f"seed       {args.seed} (of the moments), {args.kills} kills", flush=True)

    reference = Training(folder / "reference", command)
    killed = Training(folder / "killed", command)
    try:
        timeline = run_undisturbed(reference)
        print(
            f"reference  {timeline.steps} steps, {timeline.epoch_steps} an epoch, "
            f"{timeline.started:.1f} s to the first log entry, {timeline.step:.3f} s a "
            f"step, {timeline.ended:.1f} s after the last",
            flush=True,
        )
        plan = plan_kills(args.kills, timeline, chance)
        kills = run_disturbed(killed, plan, timeline)
    finally:
        reference.stop()
        killed.stop()
    print()
    if not compare(reference, killed):
        print(f"DIFFERENT (both runs are kept in {folder})")
        return 1
    print("EQUAL")
    if not args.folder:
        shutil.rmtree(folder)
    missed = find_missed(args.kills, kills)
    for line in missed:
        print(f"warning    {line}: try another --seed")
    return 2 if missed else 0


def parse_arguments() -> tuple[argparse.Namespace, dict[str, str]]:
    """Read the command line, and the overrides of the config."""
    words, overrides = cli.split_overrides(sys.argv[1:])
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="--config.x=y is passed on to the training.",
    )
    parser.add_argument("--kills", type=int, default=5, help="at least 2")
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("--steps", type=int, help="train.steps, if not the config's")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--folder", help="an empty one, kept (default: temporary)")
    args = parser.parse_args(words)
    if args.kills < 2:
        parser.error("--kills: one goes into a save, another into the second epoch")
    if args.steps:
        overrides["train.steps"] = str(args.steps)
    return args, overrides


def run_undisturbed(training: Training) -> Timeline:
    """Train to the end, and record when log entries appear."""
    began = time.monotonic()
    seen: list[tuple[int, float]] = []
    epoch_steps = 0
    training.start()
    while training.process.poll() is None:
        time.sleep(0.05)
        epoch_steps = epoch_steps or read_epoch(training)
        train = [e["step"] for e in training.entries() if e["kind"] == "train"]
        if train and (not seen or seen[-1][0] < train[-1]):
            seen.append((train[-1], time.monotonic()))
    if training.process.returncode or not seen:
        sys.exit(f"error: undisturbed, {training.failure()}")
    (first, first_time), (last, last_time) = seen[0], seen[-1]
    if not epoch_steps:
        sys.exit(f"error: {training.log} does not name its 'steps per epoch'")
    return Timeline(
        steps=max(e["step"] for e in training.entries()),
        epoch_steps=epoch_steps,
        started=first_time - began,
        step=(last_time - first_time) / max(last - first, 1),
        ended=time.monotonic() - last_time,
    )


def read_epoch(training: Training) -> int:
    """Read the steps per epoch once they are logged; training must exceed one epoch."""
    pattern = r"([\d,]+) steps (?:an|per) epoch.*?training +([\d,]+) steps"
    found = re.search(pattern, training.log.read_text(), re.DOTALL)
    if not found:
        return 0
    epoch, steps = (int(text.replace(",", "")) for text in found.groups())
    if steps <= epoch:
        training.stop()
        sys.exit(
            f"error: {steps} steps do not reach the second epoch, which begins after "
            f"{epoch}: give more --steps, or a smaller data.train_size"
        )
    return epoch


def plan_kills(count: int, timeline: Timeline, chance: random.Random) -> list[Kill]:
    """Draw random moments for the kills, in the order of a run.

    One is during a save and one in the second epoch. With more kills, one is before the
    first log entry, one after the last step, and every other one of the rest during a
    save.
    """
    steps, epoch_steps = timeline.steps, timeline.epoch_steps
    # Steps become visible in the log's intervals only: the rest of the way is a delay.
    epoch_seconds = min(epoch_steps, steps - epoch_steps) * timeline.step
    kills = [
        Kill("save", chance.randrange(steps * 2 // 3)),
        Kill("step", epoch_steps, chance.random() * 0.7 * epoch_seconds),
        Kill("start", 0, chance.random() * timeline.started),
        Kill("end", steps, chance.random() * timeline.ended),
    ][:count]
    for i in range(count - len(kills)):
        target = chance.randrange(1, steps)
        delay = chance.random() * 5 * timeline.step
        kills.append(Kill("save", target) if i % 2 else Kill("step", target, delay))
    return sorted(kills, key=lambda k: (k.kind != "start", k.target))


def run_disturbed(
    training: Training, plan: list[Kill], timeline: Timeline
) -> list[Kill]:
    """Start, kill and restart, until the run is done."""
    print("\n| kill | moment | seconds | last trace | epoch | in a save | cache |")
    print("|---|---|---|---|---|---|---|", flush=True)
    kills: list[Kill] = []
    for attempt in range(10 * len(plan) + 10):
        cache = ("cold", "warm")[attempt % 2]
        if cache == "cold":
            shutil.rmtree(training.cache / "compiled", ignore_errors=True)
        began = time.monotonic()
        training.start()
        kill = plan.pop(0) if plan else None
        struck = kill is not None and strike(training, kill)
        training.process.wait()
        if not struck and training.process.returncode:
            sys.exit(f"error: after {len(kills)} kills, {training.failure()}")
        if not struck:
            return kills
        kill.seconds = time.monotonic() - began
        kill.step, kill.saving = training.step(), training.saving()
        kill.epoch = kill.step // timeline.epoch_steps + 1
        kills.append(kill)
        cells = [len(kills), kill.kind, f"{kill.seconds:.1f}", f"step {kill.step}"]
        cells += [kill.epoch, f"of {kill.saving}" if kill.saving else "no", cache]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        if kill.kind == "save" and not kill.saving and kill.step < timeline.steps:
            # The folder was whole before the signal arrived: aim at the next save.
            plan.insert(0, Kill("save", kill.step))
    sys.exit(f"error: the run is not done after {len(kills)} kills")


def strike(training: Training, kill: Kill) -> bool:
    """Wait for a kill's moment and kill; return False if the run ended before it."""
    if kill.kind != "start":
        training.wait_until(training.resumed)
    if kill.kind == "save":
        training.wait_until(lambda: int(training.saving() or 0) > kill.target)
    else:
        training.wait_until(lambda: training.step() >= kill.target)
    until = time.monotonic() + kill.delay
    training.wait_until(lambda: time.monotonic() >= until)
    training.stop()
    return training.process.returncode == -signal.SIGKILL


def find_missed(count: int, kills: list[Kill]) -> list[str]:
    """List the planned kills that missed their moments."""
    missed = []
    if len(kills) < count:
        missed.append(f"only {len(kills)} of {count} kills struck")
    if not any(k.saving for k in kills):
        missed.append("no kill struck in the midst of a save")
    if not any(k.epoch == 2 for k in kills):
        missed.append("no kill struck in the second epoch")
    return missed


def compare(reference: Training, killed: Training) -> bool:
    """Print a line per item that must be the same; return whether all are."""
    results = {}
    both = (reference, killed)
    first, second = (digests(one.workdir) for one in both)
    for name in first:
        results[f"{name}: {second[name]}"] = first[name] == second[name], first[name]
    kept = [sorted(p.name for p in one.checkpoints.iterdir()) for one in both]
    results[f"checkpoints kept: {', '.join(kept[1])}"] = kept[0] == kept[1], kept[0]
    ends = [folders.Folder(one.workdir).read("result.json") for one in both]
    ends = [without_times(end) for end in ends]
    results["result.json, save for the times"] = ends[0] == ends[1], ends[0]
    interrupted = find_interrupted(killed)
    lines = metric_differences(reference.entries(), killed.entries(), interrupted)
    name = f"metrics.jsonl: {len(killed.entries())} entries"
    if interrupted:
        name += f" (values of {len(interrupted)} interrupted log windows left out)"
    results[name] = not lines, "; ".join(lines[:5])
    for name, (same, other) in results.items():
        print(f"{'same' if same else 'DIFFERENT':<10} {name}")
        if not same:
            print(f"           undisturbed: {other}")
    left = [str(p.relative_to(killed.workdir)) for p in killed.workdir.rglob("*")]
    left = [name for name in left if PARTIAL in name or name.endswith(".tmp")]
    print(f"{'left over':<10} {', '.join(left) or 'nothing half made'}")
    return all(same for same, _ in results.values())


def digests(workdir: pathlib.Path) -> dict[str, str]:
    """Hash the contents of the last checkpoint, and the averaged parameters."""
    run = runs.load(workdir, weights="average")
    optimizer = optim.make_optimizer(run.config)

    def init(key):
        params = run.task.objective.init(key)
        return TrainState(jnp.int32(0), params, optimizer.init(params), key)

    like = sharding.abstract(jax.eval_shape(init, jax.random.key(0)), run.mesh)
    saved = Checkpoints(run.folder.checkpoints)
    state = saved.restore(saved.steps()[-1], like)
    saved.close()
    return {
        "step": str(int(state.step)),
        "parameters": digest(state.params),
        "optimizer state": digest(state.opt_state),
        "key": digest(jax.random.key_data(state.key)),
        f"{run.weights} parameters": digest(run.params),
    }


def find_interrupted(training: Training) -> set[int]:
    """Return the steps whose log window was cut short by a resume."""
    config = json.loads((training.workdir / "config.json").read_text())
    every = config["log"]["every"]
    found = re.findall(r"^resumed +from step ([\d,]+)", training.log.read_text(), re.M)
    steps = [int(step.replace(",", "")) for step in found]
    return {-(-step // every) * every for step in steps if step % every}


def metric_differences(
    first: list[dict], second: list[dict], interrupted: set[int]
) -> list[str]:
    """List entries that are missing, duplicated, or have different numbers."""
    lines = []
    names = [[(e["kind"], e["step"]) for e in entries] for entries in (first, second)]
    for name in sorted({*names[0], *names[1]}):
        counts = [n.count(name) for n in names]
        if counts[0] != counts[1]:
            lines.append(f"{name}: {counts[0]} times, and {counts[1]} when killed")
    others = dict(zip(names[1], second, strict=True))
    for name, entry in zip(names[0], first, strict=True):
        kind, step = name
        if name not in others or (kind == "train" and step in interrupted):
            continue
        for field in sorted({*entry, *others[name]} - set(CLOCK)):
            pair = entry.get(field), others[name].get(field)
            if pair[0] != pair[1]:
                lines.append(f"{name} {field}: {pair[0]}, and {pair[1]} when killed")
    return lines


if __name__ == "__main__":
    sys.exit(main())
