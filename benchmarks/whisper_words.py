"""Transcribe sounds by a Whisper here and by CTranslate2: the same words, and how soon.

    python benchmarks/whisper_words.py --workdir FOLDER --model MODEL
    python benchmarks/whisper_words.py --workdir FOLDER --model MODEL --table sounds.tsv

FOLDER is that of `whisper_from_ctranslate2.py`, MODEL its input. A table has lines of a
path and, after a tab, the transcript. Without one, espeak-ng speaks SENTENCES. Both
search greedily, read the same spectrograms and compute in float32.
"""

import pathlib
import re
import subprocess
import tempfile
import time

import numpy as np
from absl import app, flags

import transformer_jax
from transformer_jax.family.speech.word_errors import count_edits

SENTENCES = """
The birch canoe slid on the smooth planks.
Glue the sheet to the dark blue background.
It is easy to tell the depth of a well.
These days a chicken leg is a rare dish.
Rice is often served in round bowls.
The juice of lemons makes fine punch.
The box was thrown beside the parked truck.
Four hours of steady work faced us.
A large size in stockings is hard to sell.
The boy was there when the sun rose.
Could you tell me when the next train leaves for London?
My sister has lived in this village for more than twenty years.
We had to wait for an hour because the doctor was late.
If it rains tomorrow, we will stay at home and read.
He opened the window and looked out at the quiet street.
Nobody knows why the bridge was closed last night.
She bought three apples, two pears and a loaf of bread.
The meeting was moved from Monday to Thursday afternoon.
Please turn off the light before you leave the room.
Learning a new language takes time and patience.
""".strip().split("\n")


def speak(folder: pathlib.Path) -> list[tuple[str, str]]:
    """Speak the sentences; return the path and the transcript of each sound."""
    made = []
    for i, sentence in enumerate(SENTENCES):
        path = str(folder / f"{i}.wav")
        subprocess.run(["espeak-ng", "-v", "en-us", "-w", path, sentence], check=True)
        made.append((path, sentence))
    return made


def words(text: str) -> list[str]:
    """Return the words of a text, without capitals and marks."""
    return re.findall(r"[\w']+", text.lower())


def main(_: list[str]) -> None:
    """Print both transcripts where they differ, then the counts and the times."""
    import ctranslate2  # here, so that --help does not need them
    import tokenizers

    args = flags.FLAGS
    run = transformer_jax.load(args.workdir)
    model = ctranslate2.models.Whisper(args.model, compute_type="float32")
    there = tokenizers.Tokenizer.from_file(f"{args.model}/tokenizer.json")
    prompt = ("<|startoftranscript|>", "<|notimestamps|>")
    begun = [there.token_to_id(name) for name in prompt]
    with tempfile.TemporaryDirectory() as folder:
        if args.table:
            lines = pathlib.Path(args.table).read_text(encoding="utf-8").splitlines()
            pairs = [tuple(line.split("\t")) for line in lines]
        else:
            pairs = speak(pathlib.Path(folder))
        paths, references = map(list, zip(*pairs, strict=True))
        frames = [run.task.inference.parse(path).source for path in paths]
        run.predict(paths[:1])  # compiles
        times, ours, theirs = [0.0, 0.0], [], []
        for path, heard in zip(paths, frames, strict=True):
            began = time.perf_counter()
            ours += run.predict([path])
            times[0] += time.perf_counter() - began
            began = time.perf_counter()
            features = np.ascontiguousarray(heard.T[None])
            view = ctranslate2.StorageView.from_array(features)
            [found] = model.generate(view, [begun], beam_size=1)
            times[1] += time.perf_counter() - began
            theirs.append(there.decode(found.sequences_ids[0]).strip())
    for path, one, other in zip(paths, ours, theirs, strict=True):
        print(f"{'=' if one == other else '≠'} {path}: {one}")
        if one != other:
            print(f"  CTranslate2: {other}")
    total = sum(len(words(text)) for text in references)
    print(f"same       {sum(map(str.__eq__, ours, theirs))} of {len(ours)} transcripts")
    for name, found, seconds in zip(
        ("here", "there"), (ours, theirs), times, strict=True
    ):
        pairs = zip(found, references, strict=True)
        wrong = sum(sum(count_edits(words(a), words(b))[:3]) for a, b in pairs)
        each = seconds / len(found)
        print(f"{name:10} {wrong} of {total} words wrong, {each:.2f} s a sound")


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "A folder of Hugging Face.", required=True)
    flags.DEFINE_string("model", None, "The model of CTranslate2.", required=True)
    flags.DEFINE_string("table", "", "Lines of a path, a tab and the transcript.")
    app.run(main)
