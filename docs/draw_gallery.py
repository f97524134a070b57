"""Draw the gallery: every figure, by the command that stands below it.

    python docs/draw_gallery.py           write docs/gallery.md
    python docs/draw_gallery.py --draw    and draw all pictures of the documentation

The pictures are of runs of configs/quickstart.py, configs/images.py and
configs/speech.py. What there is to see in each is said by the docstring of its
function. The picture of the README and the photograph of the viewer, which needs
Chromium, are drawn by scripts of their own; `--only=readme,viewer` draws just these.
"""

import argparse
import inspect
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable

from PIL import Image

from transformer_jax.base import entry_points
from transformer_jax.visualize import figures

DOCS = pathlib.Path(__file__).parent
PAGE, PICTURES = DOCS / "gallery.md", DOCS / "gallery"
COLORS = 256
RUN, IMAGES, SPEECH = "runs/quickstart", "runs/images", "runs/speech"
PAINTED = "runs/raw runs/sinusoid runs/gaussian"  # of configs/coordinates.py
PLAYED = "runs/cartpole runs/cloning"  # of configs/decisions.py
DRAWN = "runs/drawings"
PAIR = (
    f"--workdir {RUN} --text 'A menina não leu o livro vermelho ontem.' "
    "--target 'The girl did not read the red book yesterday.'"
)
MAKING = (
    "--workdir tatoeba:en_de "
    "--text 'The rain is making the work more difficult than it was before.'"
)
SHORT = f"--workdir {RUN} --text 'O gato dorme.' --target 'The cat sleeps.'"
LONG = (
    f"--workdir {RUN} --text 'O gato da Ana dorme no sofá.' "
    '--target "Ana\'s cat sleeps on the couch."'
)
SCRIPTS = {"readme": "draw_attention.py", "viewer": "photograph_viewer.py"}
HEARD = "--example test:0 --layer 1"

# Section → (picture, function of `figures`, words of the command).
SECTIONS = {
    "Where a model looks": [
        ("attention", "attention", f"attention {PAIR} --kind cross --layer 1"),
        ("heads", "heads", f"heads {PAIR} --kind encoder"),
        ("arcs", "arcs", f"arcs {MAKING} --kind encoder --layer 1 --word making"),
        ("words", "word_links", f"words {LONG} --layer 1 --head 1"),
        ("alignment", "alignment_errors", f"alignment --workdir {RUN}"),
        ("entropy", "entropy_and_distance", f"entropy {PAIR} --kind encoder"),
        ("rollout", "rollout", f"rollout {PAIR} --kind encoder"),
        ("patches", "patches", f"patches --workdir {IMAGES} --example test:3"),
        ("spectrogram", "spectrogram", f"spectrogram --workdir {SPEECH} {HEARD}"),
    ],
    "One computation": [
        ("explain", "computation", f"explain {SHORT} --kind decoder --columns 4"),
        ("greeting", "computation", "explain --numbers greeting"),
        ("masking", "masking", f"masking {SHORT}"),
        ("padding", "padding", f"padding {PAIR} --kind encoder"),
        ("mask", "mask", "mask"),
    ],
    "Positions": [
        ("positions", "positional_encoding", "positions --length 64 --d_model 128"),
        ("slices", "positional_slices", "slices --length 60"),
        ("waves", "waves", "waves"),
        ("distances", "dot_products", "distances"),
        ("similarity", "patch_similarity", f"similarity --workdir {IMAGES}"),
    ],
    "Training and decoding": [
        ("schedule", "schedules", "schedule"),
        ("smoothing", "smoothed_target", "smoothing"),
        ("curves", "curves", f"curves {RUN}"),
        ("painting", "painting", f"painting {PAINTED}"),
        ("returns", "returns", f"returns {PLAYED}"),
        ("drawings", "drawings", f"drawings --workdir {DRAWN}"),
        ("beam", "beam_tree", f"beam {PAIR} --beams 3 --steps_shown 7"),
        ("neighbours", "neighbours", f"neighbours --workdir {RUN} --words gato,red"),
        ("reach", "reach", "reach --length 24"),
        ("shapes", "shapes", "shapes --config quickstart"),
    ],
}  # fmt: skip
HEAD = """# Gallery

Every figure of `transformer_jax.visualize`, with the command that draws it. Each is
also a function of `transformer_jax.visualize.figures`, or of the `figure.py` of its
system in `transformer_jax/family/`, from arrays to a matplotlib figure, for use in
notebooks. `pip install -e '.[plots]'` installs matplotlib, and
`python -m transformer_jax.visualize help` lists all names. `train` with `--plots` draws
the learning curves into `curves.png` in the run directory.

`python docs/draw_gallery.py --draw` remakes this page, its pictures and those of the
README and of the viewer from runs of `configs/quickstart.py`, `configs/images.py`,
`configs/speech.py` and the others named below.
"""


def page() -> str:
    """Make the text of the page."""
    parts = [HEAD]
    for section, entries in SECTIONS.items():
        parts.append(f"## {section}\n")
        for picture, function, words in entries:
            text = inspect.getdoc(find(function, words)) or ""
            title, seen = re.split(r"What\s+to\s+look\s+for:\s+", text)
            title = title.split("\n\n")[0].replace("\n", " ").strip()
            seen = " ".join(seen.split())
            parts.append(
                f"![{title}](gallery/{picture}.png)\n\n"
                f"{seen[:1].upper()}{seen[1:]}\n\n"
                f"```\npython -m transformer_jax.visualize {words}\n```\n"
            )
    return "\n".join(parts)


def find(function: str, words: str) -> Callable:
    """Find a function of `figures`, or of the system whose command draws it."""
    if hasattr(figures, function):
        return getattr(figures, function)
    draw = entry_points.require("figures", words.split()[0])
    return getattr(sys.modules[draw.__module__], function)


def main() -> int:
    """Write the page, and draw its pictures if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workdir", default=RUN, help="a run of configs/quickstart.py")
    parser.add_argument("--images", default=IMAGES, help="a run of configs/images.py")
    parser.add_argument("--speech", default=SPEECH, help="a run of configs/speech.py")
    parser.add_argument("--draw", action="store_true", help="draw the pictures as well")
    parser.add_argument("--only", default="", help="names separated by commas")
    args = parser.parse_args()
    PAGE.write_text(page(), encoding="utf-8")
    if not args.draw:
        return 0
    PICTURES.mkdir(exist_ok=True)
    only = args.only.split(",") if args.only else []
    for picture, _, words in sum(SECTIONS.values(), []):
        if only and picture not in only:
            continue
        words = words.replace(RUN, args.workdir).replace(IMAGES, args.images)
        words = words.replace(SPEECH, args.speech)
        output = PICTURES / f"{picture}.png"
        command = [sys.executable, "-m", "transformer_jax.visualize"]
        command += [*shlex.split(words), f"--output={output}", "--dpi=72"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with Image.open(output) as image:  # a third of the bytes
            # The default method merges rare colours, such as those of a thin line.
            small = image.convert("RGB").quantize(
                COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
            )
        small.save(output, optimize=True)
    for name, script in SCRIPTS.items():
        if not only or name in only:
            command = [sys.executable, DOCS / script, f"--workdir={args.workdir}"]
            subprocess.run(command, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
