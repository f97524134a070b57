"""Which kinds of positions read sentences longer than any in training?

    python benchmarks/positions.py --workdir runs/positions

Trains the quickstart's model once for each kind of position, on the sentences of at
most `--longest` pieces, and scores all models on the same new sentences by length. If
it is stopped, the same command continues. Other options (--config.key=value) apply to
all runs.
"""

import argparse
import os
import pathlib
import subprocess
import sys

WAYS = (
    "sinusoid", "learned", "rotary", "relative", "alibi", "sinusoid+rotary", "none"
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True, help="a folder for all runs")
    parser.add_argument("--longest", type=int, default=12, help="pieces learned from")
    parser.add_argument("--sentences", type=int, default=3000, help="to be scored")
    args, overrides = parser.parse_known_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    folder = pathlib.Path(args.workdir)
    for name in WAYS:
        command = [sys.executable, "-m", "transformer_jax.train"]
        command += ["--config", "quickstart", "--workdir", str(folder / name)]
        command += [f"--config.data.max_length={args.longest}"]
        command += [f"--config.model.positions={name}"]
        command += ["--config.eval.splits=", "--config.eval.answers=50", *overrides]
        if code := subprocess.run(command).returncode:
            return code
    print(f"BLEU by pieces of the source; learned from at most {args.longest}")
    for name in WAYS:
        print(f"{name:15} {by_length(folder / name, args)}", flush=True)
    return 0


def by_length(workdir: pathlib.Path, args: argparse.Namespace) -> str:
    """Return BLEU up to the bound, up to 1.5 times the bound, and beyond."""
    import transformer_jax
    from transformer_jax import scores
    from transformer_jax.corpora import phrasebook

    run = transformer_jax.load(workdir)
    pairs = phrasebook.generate("test", args.sentences)
    sources = [pair.source for pair in pairs]
    answers = run.predict(sources)
    bounds = (0, args.longest, args.longest * 3 // 2, 10_000)
    lengths = [len(run.task.data.source_tokenizer.encode(s)) for s in sources]
    words = []
    for least, most in zip(bounds, bounds[1:], strict=False):
        group = [i for i, n in enumerate(lengths) if least < n <= most]
        found = scores.headline(
            [answers[i] for i in group], [pairs[i].target for i in group]
        )
        name = f"{least + 1}-{most}" if most < bounds[-1] else f"over {least}"
        words.append(f"{name}: {found['bleu']:5.1f} ({len(group)})")
    return "  ".join(words)


if __name__ == "__main__":
    sys.exit(main())
