"""Does a large corpus fit a small machine, and how soon does it train?

    python benchmarks/large_corpus.py --pairs 5000000
    python benchmarks/large_corpus.py --pairs 5000000 --config.tokenizer.kind=bpe
    python benchmarks/large_corpus.py --text 1.1

Generates parallel text, prepares it as a training does, plans its batches, and starts a
training twice: with an empty and with a filled compile cache. Each part runs in its own
process. The exit code is 1 if a part needs more memory or time than it is allowed. With
--text, only a file of this many GB is prepared as the windows of a language model.
--config.x=y changes the config, which is quickstart, or language with --text.
"""

import argparse
import itertools
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent import futures

import numpy as np

from transformer_jax import cli

CONFIG = "quickstart"  # a tiny model, because only the data path is measured
PREPARATION, PLAN_SECONDS, PLAN_MEMORY = 3.0, 10.0, 1.0  # allowed; GB are 10^9 bytes
WORDS, PHRASES = 20_000, 60_000  # of each of two made-up languages
MEAN, SIGMA = 20.0, 0.55  # words of a sentence, log-normal
CHUNK, HELD_OUT = 50_000, 500  # pairs generated at a time, and for validation
WINDOW = 1024  # characters of a language model's window
LANGUAGES = {"aa": ("bdfgklmnprst", "aeiou"), "bb": ("chjqvwxz", "áéíóúy")}  # letters


def main() -> int:
    """Generate a corpus, and print the cost of each part of a training's start."""
    words, overrides = cli.split_overrides(sys.argv[1:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument("--text", type=float, default=0, help="GB of running text")
    parser.add_argument("--seed", type=int, default=0, help="of the text")
    parser.add_argument("--folder", help="an empty one, kept (default: temporary)")
    args = parser.parse_args(words)
    signal.signal(signal.SIGTERM, stop)
    folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="large_corpus_"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"error: --folder {folder} is not empty")
    os.environ["TRANSFORMER_JAX_CACHE"] = str(folder / "cache")
    try:
        if args.text:
            return measure_text(args, folder, overrides)
        return measure(args, folder, {**make_config(folder), **overrides})
    finally:
        if not args.folder:
            shutil.rmtree(folder, ignore_errors=True)


def make_config(folder: pathlib.Path) -> dict[str, str]:
    """Return overrides for the corpus, without evaluations at the start."""
    changes = {"data.source": "text", "data.folder": str(folder)}
    for split in ("train", "validation"):
        changes[f"data.{split}_source"] = f"{split}.aa"
        changes[f"data.{split}_target"] = f"{split}.bb"
    changes |= {"tokenizer.vocab_size": "8000", "optim.warmup_steps": "2"}
    return changes | {"eval.splits": "", "eval.answers": "1", "eval.samples": "0"}


def measure(args: argparse.Namespace, folder: pathlib.Path, config: dict) -> int:
    """Measure each part in its own process, and print the tables."""
    print(f"folder     {folder}, {shutil.disk_usage(folder).free / 1e9:.0f} GB free")
    load = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    print(f"machine    {os.cpu_count()} cores, load {load} (1, 5, 15 minutes)")
    print(f"text       {args.pairs:,} pairs, seed {args.seed}", flush=True)
    say(apart(generate, folder, args.pairs, args.seed))

    parts = apart(prepare_timed, config, folder)
    rows = [[n, f"{s:.2f}", f"{args.pairs / s:,.0f}", f"{g:.2f}"] for n, s, g in parts]
    print_table("preparation | seconds | pairs/s | peak memory so far, GB", rows)
    plans = {k: apart(plan_timed, config, folder, k) for k in ("buckets", "packed")}
    header = "plan | shapes | steps | padding | made, s | epoch 0, s | epoch 1, s | GB"
    print_table(header, [[kind, *plans[kind][0]] for kind in plans])
    print("GB is ru_maxrss: all resident pages of a process, those of mapped files too")
    print("(which the system may take back); a plan's is by how much that has grown.")
    header = "second start, compile cache | first step line, s | compiled | peak, GB"
    print_table(header, [[c, *start(config, folder, c)] for c in ("cold", "warm")])

    found = [("preparation, peak memory", parts[0][-1], PREPARATION, "GB")]
    for kind, (_, seconds, memory) in plans.items():
        found.append((f"plan and epoch 0, {kind}", seconds, PLAN_SECONDS, "s"))
        found.append((f"memory of it, {kind}", memory, PLAN_MEMORY, "GB"))
    missed = [name for name, value, allowed, _ in found if value >= allowed]
    rows = [[n, f"< {a:g} {u}", f"{v:.2f} {u}", v < a] for n, v, a, u in found]
    print_table("requirement | allowed | measured | met", rows)
    print(f"MISSED: {'; '.join(missed)}" if missed else "MET")
    return min(len(missed), 1)


def measure_text(args: argparse.Namespace, folder: pathlib.Path, changes: dict) -> int:
    """Measure the parts of preparing the windows of a large text."""
    config = {"data.source": "text", "data.folder": str(folder), "eval.splits": ""}
    config |= {"data.train_text": "train.txt", "data.validation_text": "held.txt"}
    config |= {"data.window": str(WINDOW), "data.batch_tokens": "16384", **changes}
    print(
        f"text       {args.text:g} GB, seed {args.seed}; config {changes}", flush=True
    )
    say(apart(generate_text, folder, args.text, args.seed))
    rows = apart(prepare_text_timed, config, folder)
    print_table("preparation | seconds | peak memory so far, GB", rows)
    again = apart(prepare_text_timed, config, folder)
    print_table("the next start | seconds | peak memory so far, GB", again)
    return 0


def say(line: str) -> None:
    """Print a line immediately."""
    print(f"           {line}", flush=True)


def print_table(header: str, rows: list[list]) -> None:
    """Print a table in Markdown."""
    print(f"\n| {header} |\n|{'---|' * len(header.split('|'))}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    print(flush=True)


def apart(function, *arguments):
    """Call a function in its own process."""
    # A child's ru_maxrss begins with its parent's: this process must stay small.
    with futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def stop(*_) -> None:
    """Also stop the part that is running."""
    for child in multiprocessing.active_children():
        child.kill()
    sys.exit("error: stopped")


def generate(folder: pathlib.Path, pairs: int, seed: int) -> str:
    """Write sentences of phrases that exist in both languages, drawn by Zipf's law."""
    began, random = time.monotonic(), np.random.default_rng(seed)
    counts = random.integers(1, 6, PHRASES)
    members = draw(random, WORDS, counts.sum())
    phrases = {n: phrase(random, *c, members, counts) for n, c in LANGUAGES.items()}
    mean = MEAN / counts[draw(random, PHRASES, 100_000)].mean()
    letters = spaces = 0
    for split, size in (("validation", HELD_OUT), ("train", pairs)):
        for begin in range(0, size, CHUNK):
            spread = random.normal(-(SIGMA**2) / 2, SIGMA, min(CHUNK, size - begin))
            ends = np.rint(mean * np.exp(spread)).clip(1).astype(int).cumsum()
            drawn = draw(random, PHRASES, ends[-1])
            for name, pool in phrases.items():
                said, cuts = pool[drawn].tolist(), itertools.pairwise([0, *ends])
                text = "".join([" ".join(said[a:b]) + ".\n" for a, b in cuts])
                with (folder / f"{split}.{name}").open("a") as file:
                    file.write(text)
                letters, spaces = letters + len(text), spaces + text.count(" ")
    words, size = (n / 2 / (pairs + HELD_OUT) for n in (spaces, letters))
    end = f"{words + 1:.1f} words and {size:.0f} characters a side"
    return f"made in {time.monotonic() - began:.0f} s, {end}"


def generate_text(folder: pathlib.Path, size: float, seed: int) -> str:
    """Write paragraphs of words drawn by Zipf's law."""
    began, random = time.monotonic(), np.random.default_rng(seed)
    phrases = np.char.mod("%x", random.integers(16, 1 << 24, WORDS)).astype(object)
    for name, most in (("held.txt", 1e5), ("train.txt", size * 1e9)):
        with (folder / name).open("w") as file:
            while file.tell() < most:
                words = phrases[draw(random, WORDS, CHUNK)].tolist()
                lines = [" ".join(words[i : i + 100]) for i in range(0, CHUNK, 100)]
                file.write("\n".join(lines) + "\n")
    return f"made in {time.monotonic() - began:.0f} s, lines of 100 words"


def phrase(random, consonants, vowels, members, counts) -> np.ndarray:
    """Draw the phrases of a language; an eighth of them repeat their first word."""
    syllables = np.array([c + v for c in consonants for v in vowels])
    drawn = syllables[random.integers(len(syllables), size=(WORDS, 4))]
    words = ["".join(parts)[: random.integers(2, 9)] for parts in drawn]
    parts = (words[i] for i in members)
    made = [list(itertools.islice(parts, n)) for n in counts]
    return np.array([" ".join(p + p[: random.random() < 1 / 8]) for p in made], object)


def draw(random: np.random.Generator, kinds: int, size: int) -> np.ndarray:
    """Draw numbers below `kinds`, small ones more often (Zipf, Mandelbrot)."""
    shares = np.cumsum(1 / (np.arange(kinds) + 10))
    return np.searchsorted(shares, random.random(size) * shares[-1])


def prepare_timed(config: dict, folder: pathlib.Path) -> list[tuple]:
    """Return (name, seconds, peak memory so far) for each part of `prepare()`."""
    from transformer_jax import config as configs
    from transformer_jax import tasks
    from transformer_jax.data.reading.sources import Source
    from transformer_jax.data.store import summary
    from transformer_jax.runs import run
    from transformer_jax.training import prepare

    config, place, laps = configs.load(CONFIG, config), run.Folder(folder / "run"), []

    def lap() -> None:
        laps.append((time.monotonic(), peak()))

    lap()
    source = Source(config.data)
    records = source.read("train")
    lap()
    task = tasks.find(config.task).create(config, source, place.tokenizer)
    lap()
    store = prepare.open_split(task, "train", records, say).store
    lap()
    prepare.prepare(config, place, say)  # the validation split, and all once more
    lap()
    sides = " and ".join(f"{n:.1f}" for n in task.data.lengths(store).mean(axis=0))
    say(f"{len(store):,} examples of {sides} pieces, left out: {summary(store.ledger)}")
    rows = [("all of it", laps[3][0] - laps[0][0], laps[3][1])]
    names = "indexing", "learning pieces", "encoding", "all again, cached"
    for i, name in enumerate(names):
        rows.append((name, laps[i + 1][0] - laps[i][0], laps[i + 1][1]))
    return rows


def prepare_text_timed(config: dict, folder: pathlib.Path) -> list[tuple]:
    """Return (name, seconds, peak memory so far) for each part, with text windows."""
    from transformer_jax import config as configs
    from transformer_jax import tasks
    from transformer_jax.runs import run
    from transformer_jax.training import prepare

    config, place, laps = configs.load("language", config), run.Folder(folder / "r"), []

    def lap(name: str) -> None:
        laps.append((name, time.monotonic(), peak()))

    lap("imports")
    definition = tasks.find(config.task)
    source = definition.source(config)
    records = source.read("train")
    lap("indexing")
    count = len(records)
    lap(f"joining and cutting, {count:,} windows")
    task = definition.create(config, source, place.tokenizer)
    lap("learning pieces")
    train = prepare.open_split(task, "train", records, say)
    lap("encoding")
    (middle,) = task.data.encode([records[count // 2]])
    if train.store.row("text", count // 2).tolist() != middle["text"]:
        sys.exit("error: a window is not the one that was encoded")
    steps = len(prepare.make_plan(config, task, train).plan.epoch(0))
    lap(f"planning, {steps:,} steps")
    pairs = zip(laps, laps[1:], strict=False)
    rows = [(b[0], f"{b[1] - a[1]:.1f}", f"{b[2]:.2f}") for a, b in pairs]
    return [("imports", "", f"{laps[0][2]:.2f}"), *rows]


def plan_timed(config: dict, folder: pathlib.Path, kind: str) -> tuple:
    """Return (row of the table, seconds, GB) for a plan with its first epoch."""
    from transformer_jax import config as configs
    from transformer_jax.runs import run
    from transformer_jax.training import prepare

    config = configs.load(CONFIG, {**config, "data.batching": kind})
    prepared = prepare.prepare(config, run.Folder(folder / "run"), say)
    before, clock = peak(), [time.monotonic()]
    plan = prepare.make_plan(config, prepared.task, prepared.train).plan
    clock.append(time.monotonic())
    steps = len(plan.epoch(0))
    clock.append(time.monotonic())
    grown = peak() - before
    plan.epoch(1)
    clock.append(time.monotonic())
    row = [len(plan.shapes), f"{steps:,}", f"{plan.padding_share():.1%}"]
    row += [f"{s:.2f}" for s in np.diff(clock)] + [f"{grown:.2f}"]
    return row, clock[2] - clock[0], grown


def start(config: dict, folder: pathlib.Path, cache: str) -> list:
    """Train two steps on stores that exist; return the row of the table."""
    compiled = folder / "cache" / "compiled"
    if cache == "cold":
        shutil.rmtree(compiled, ignore_errors=True)
    before = len(list(compiled.rglob("*-cache")))
    command = [sys.executable, "-m", "transformer_jax.train", "--config", CONFIG]
    config = {**config, "train.steps": "2", "log.every": "1"}
    command += [f"--config.{key}={value}" for key, value in config.items()]
    command += ["--workdir", str(folder / cache)]
    began, seen = time.monotonic(), []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        with process.stdout as lines:  # to the end: it fills the compile cache
            for line in lines:
                seen += [time.monotonic() - began] * line.startswith("step ")
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        raise
    process.returncode = status
    if status:
        sys.exit(f"error: {' '.join(command)} failed: see above")
    programs = len(list(compiled.rglob("*-cache"))) - before
    return [f"{seen[0]:.1f}", programs, f"{peak(usage):.2f}"]


def peak(usage: resource.struct_rusage | None = None) -> float:
    """Return the peak memory of a process in GB; without `usage`, of this one."""
    most = (usage or resource.getrusage(resource.RUSAGE_SELF)).ru_maxrss
    return most * (1 if sys.platform == "darwin" else 1024) / 1e9  # macOS: bytes


if __name__ == "__main__":
    sys.exit(main())
