"""All comparisons with other packages, one after the other.

    python benchmarks/compare.py --input FILE --output RECORD.json

Runs `decode_speed.py` (in float32 and in 8 bits) with --workdir, by default the
translator of the package, and `torch_throughput.py`; with --joeynmt PYTHON and --config
also `joeynmt_speed.py`. Each side is a process of its own with the settings that a
short search finds fastest (they are printed), and the sides take turns. The record has
the speeds of every round, the settings, the versions and the machine; its table is
printed at the end, and by `record.py`. Nothing else should run on the machine. A part
whose peer is not installed is left out, and said so.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import record

HERE = pathlib.Path(__file__).parent
NEEDS = {"decode": "ctranslate2", "int8": "ctranslate2", "train": "torch"}


def main() -> int:
    args, further = parse_arguments()
    output = pathlib.Path(args.output)
    if output.exists():
        sys.exit(f"error: {output} exists: name another --output, or remove it")
    decode = ["decode_speed.py", "--workdir", args.workdir, "--input", args.input]
    decode += ["--lines", str(args.lines)]
    commands = {
        "decode": decode,
        "int8": [*decode, "--compute_type", "int8"],
        "train": ["torch_throughput.py"],
    }
    if args.joeynmt:
        peer = ["--joeynmt", args.joeynmt, "--config", args.config]
        commands["joeynmt"] = ["joeynmt_speed.py", *peer, *further]
    record.begin(args.output)
    incomplete = []
    for part in args.parts.split(",") if args.parts else commands:
        if part in NEEDS and not record.find_version(NEEDS[part]):
            incomplete.append(f"{part} ({NEEDS[part]} is not installed)")
            continue
        script, *words = commands[part]
        print(f"\n== {script} {' '.join(words)}", flush=True)
        words += ["--rounds", str(args.rounds), "--output", args.output]
        if args.search >= 0:
            words += ["--search", str(args.search)]
        done = subprocess.run([sys.executable, str(HERE / script), *words])
        if done.returncode:
            incomplete.append(f"{part} (exit code {done.returncode})")
    found = json.loads(output.read_text(encoding="utf-8"))
    print(f"\n{record.table(found)}")
    if incomplete:
        print(f"incomplete: {', '.join(incomplete)}")
    return 1 if incomplete else 0


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """Read the command line; the rest is for the training beside Joey NMT."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", default="tatoeba:de_en", help="a translation run")
    parser.add_argument("--input", required=True, help="sentences, one per line")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3, help="turns of all sides")
    parser.add_argument("--search", type=int, default=-1, help="0: no search")
    parser.add_argument("--joeynmt", default="", help="a Python that has joeynmt")
    parser.add_argument("--config", default="", help="trained beside Joey NMT")
    parser.add_argument("--parts", default="", help="such as decode,train; default all")
    parser.add_argument("--output", required=True, help="a JSON file that is not there")
    args, further = parser.parse_known_args()
    if args.joeynmt and not args.config:
        parser.error("--joeynmt needs --config: what is trained")
    known = {*NEEDS, "joeynmt"} if args.joeynmt else {*NEEDS}
    if args.parts and not set(args.parts.split(",")) <= known:
        parser.error(f"--parts={args.parts}: some of {', '.join(sorted(known))}")
    strange = [word for word in further if not word.startswith("--config.")]
    if strange or (further and not args.joeynmt):
        parser.error(f"unknown options {' '.join(strange or further)}")
    return args, further


if __name__ == "__main__":
    sys.exit(main())
