"""Foreign bytes: whatever a file holds, its parser returns or names what is wrong.

Each parser gets files that are whole but for some changes, drawn from a seed: flipped,
lost and doubled bytes, cut ends, and words that parsers stumble over. Anything but a
`UserError` of one line fails; the quick form tries a few of each, the slow one 100,000.
"""

import gzip
import io
import json
import pathlib
import random
import shutil
import signal
import warnings
import wave

import numpy as np
import pytest

from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.data import cache
from transformer_jax.data.images import arrays as images
from transformer_jax.data.reading import trees
from transformer_jax.data.reading.records import (
    JsonTable,
    ParsedFile,
    Reading,
    TsvTable,
)
from transformer_jax.data.text import tokenizer, vectors
from transformer_jax.family.speech import wav
from transformer_jax.family.tagging import tags
from transformer_jax.runs import bundle
from transformer_jax.runs.folder import Folder

QUICK, SLOW = 60, 100_000  # of each parser, and of all
NASTY = [
    b"\0", b"\xff", b"\xed\xa0\x80", b"\n", b"\r\n", b"\t", b" ", b"(" * 3000,
    b"[" * 3000, b'{"a":' * 3000, b"-1", b"9" * 400, b"1e999", b"nan", b"null", b"{}",
    b'"\\ud800"', b"\xe2\x96\x81", b"\xff\xff\xff\xff", b"\x1f\x8b", b"[]", b'"',
    b"\xef\xbb\xbf", "\u2028".encode(), b"true", b"1" + b"0" * 30, b"\x00\x00\x00\x00",
]  # fmt: skip


def change(content: bytes, draw: random.Random) -> bytes:
    """Damage bytes in one to four places."""
    for _ in range(draw.randint(1, 4)):
        at, end = sorted(draw.randint(0, len(content)) for _ in range(2))
        end = min(end, at + 40)
        kind = draw.randrange(6)
        if kind == 0 and content:
            at = draw.randrange(len(content))
            flipped = content[at] ^ (1 << draw.randrange(8))
            content = content[:at] + bytes([flipped]) + content[at + 1 :]
        elif kind == 1:
            content = content[:at]
        elif kind == 2:
            content = content[:at] + content[end:]
        elif kind == 3:
            content = content[:end] + content[at:]
        elif kind == 4:
            content = content[:at] + draw.choice(NASTY) + content[at:]
        else:
            content = content[:at] + draw.choice(NASTY) + content[end:]
    return content


def columns(table, names):
    return lambda path: list(table(str(path), names))


def parsed(read, blocks=True):
    def parse(path):
        return list(ParsedFile(str(path), "form", Reading(read, blocks=blocks)))

    return parse


def read_trees(text):
    found = [tree for tree in map(trees.clean, trees.read(text)) if tree]
    return [{"source": str(tree), "target": trees.linearise(tree)} for tree in found]


def read_vectors(path):
    vectors.dimension(str(path))
    return vectors.read(str(path))


def read_idx(path):
    labels = path.with_name("labels")
    labels.write_bytes(idx(np.zeros(2, np.uint8)))
    return images.read_idx(str(path), str(labels))


def read_config(path):
    return Folder(path.parent).config()


def read_manifest(path):
    return bundle.check(path.parent)


def idx(array):
    head = bytes([0, 0, 8, array.ndim])
    return head + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def pictures():
    """One small image in each form that Pillow can write."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    picture = image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    forms = "PNG JPEG GIF BMP TIFF WEBP AVIF DDS BLP PPM TGA ICO PCX JPEG2000 SGI"
    found = []
    for form in forms.split():
        with io.BytesIO() as file:
            try:
                picture.convert("P" if form == "BLP" else "RGB").save(file, form)
            except (KeyError, OSError, ValueError):
                continue  # this Pillow cannot write it
            found.append(file.getvalue())
    return found


def sounds():
    """A short sound of one channel, and one of two at another rate."""
    found = []
    for channels, width, rate in ((1, 2, 16_000), (2, 3, 44_100)):
        with io.BytesIO() as file:
            with wave.open(file, "wb") as sound:
                sound.setparams((channels, width, rate, 0, "NONE", ""))
                sound.writeframes(bytes(range(120)))
            found.append(file.getvalue())
    return found


def seeds(run):
    """The parsers, the names of their files, and whole files of each."""
    texts = ["O gato dorme.", "A menina não leu o livro."]
    tree = "(S (NP (DT The) (NN cat)) (VP (VBD slept)) (. .))"
    rows = [{"de": t, "translation": {"en": t[::-1]}} for t in texts]
    conll = "The DT B-NP\ncat NN I-NP\n\n# text\n1-2\tdel\tX\n1\tde\tA\n2\tel\tB\n"
    packed = gzip.compress(b"a b\n" * 50)
    manifest = {"format": 1, "step": 3, "weights": "last"}
    manifest["files"] = dict.fromkeys(("config.json", bundle.WEIGHTS), "0" * 64)
    learned = sorted((run / "tokenizer").glob("*.model"))[0].read_bytes()
    vector = b"2 3\nthe 0.5 -1 2e-1\ncat 1 2 3\n"
    sides = {"source": "1", "target": "2"}
    keys = {"source": "de", "target": "translation.en"}
    picture = idx(np.zeros((2, 4, 3), np.uint8))
    return {
        "tsv": (columns(TsvTable, sides), "a.tsv", ["\t".join(texts).encode() * 3]),
        "packed": (columns(TsvTable, {"source": "1"}), "a.tsv.gz", [packed]),
        "jsonl": (
            columns(JsonTable, keys), "a.jsonl",
            ["\n".join(map(json.dumps, rows)).encode()],
        ),
        "trees": (parsed(read_trees, False), "a.mrg", [f"{tree}\n{tree}".encode()]),
        "tagged trees": (
            parsed(lambda text: tags.read_trees(text, "phrases")), "a.mrg",
            [tree.encode()],
        ),
        "conll": (parsed(tags.read_sentence), "a.conll", [conll.encode()]),
        "vectors": (read_vectors, "a.txt", [vector, vector[4:]]),
        "packed vectors": (read_vectors, "a.txt.gz", [gzip.compress(vector)]),
        "idx": (read_idx, "images", [picture, gzip.compress(picture)]),
        "tokenizer": (tokenizer.Tokenizer.load, "a.model", [learned[-2000:], learned]),
        "config": (read_config, "config.json", [(run / "config.json").read_bytes()]),
        "manifest": (read_manifest, "bundle.json", [json.dumps(manifest).encode()]),
        "wav": (wav.read, "a.wav", sounds()),
        "image": (
            lambda path: images.read_image(path, 5, 3, 1), "a.image", pictures()
        ),
    }  # fmt: skip


@pytest.fixture
def fast_cache(tmp_path, monkeypatch):
    """Keep no index of a file that is read once, and flush nothing to the disk."""

    def build(place, make, content=""):
        folder = tmp_path / "built"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder)
        return folder

    monkeypatch.setattr(cache, "build_once", build)
    monkeypatch.setattr(files, "flush", lambda path: None)


def stop(*_):
    raise AssertionError("a parser hangs")


def attack(parse, path: pathlib.Path, whole: list[bytes], times: int, seed: int):
    """Give a parser so many damaged files; return how many it read and refused."""
    read = refused = 0
    before = signal.signal(signal.SIGALRM, stop)
    for number in range(times):
        draw = random.Random(f"{path.name}/{seed}/{number}")
        content = change(draw.choice(whole), draw)
        path.write_bytes(content)
        signal.alarm(60)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                parse(path)
            read += 1
        except UserError as error:
            refused += 1
            assert all("\n" not in problem for problem in error.problems), content
        except BaseException as error:
            error.add_note(f"number {number} of {path.name}: {content[:300]!r}")
            raise
        finally:
            signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    return read, refused


PARSERS = [
    "tsv", "packed", "jsonl", "trees", "tagged trees", "conll", "vectors",
    "packed vectors", "idx", "tokenizer", "config", "manifest", "image", "wav",
]  # fmt: skip


@pytest.mark.parametrize("name", PARSERS)
def test_damaged_bytes_are_read_or_refused_in_one_line(
    name, tiny_run, tmp_path, fast_cache
):
    parse, file, whole = seeds(tiny_run)[name]
    read, refused = attack(parse, tmp_path / file, whole, QUICK, 0)
    assert read + refused == QUICK and refused


def test_what_the_slow_form_found_is_refused(tiny_run, tmp_path, monkeypatch):
    config = (tiny_run / "config.json").read_bytes()
    path = tmp_path / "config.json"
    path.write_bytes(config.replace(b'"imports": []', b'"imports": -1'))
    with pytest.raises(UserError, match="config.json is damaged: its 'imports' is -1"):
        read_config(path)

    def make(*_, **__):
        raise UnicodeDecodeError("utf-8", b"\xbe", 0, 1, "invalid start byte")

    monkeypatch.setattr(tokenizer.sentencepiece, "SentencePieceProcessor", make)
    path.write_bytes(b"a model")
    with pytest.raises(UserError, match="config.json cannot be read: 'utf-8' codec"):
        tokenizer.Tokenizer.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_many_damaged_bytes_are_read_or_refused(name, tiny_run, tmp_path, fast_cache):
    parse, file, whole = seeds(tiny_run)[name]
    times = -(-SLOW // len(PARSERS))
    read, refused = attack(parse, tmp_path / file, whole, times, 1)
    print(f"{name}: {times:,} files, {read:,} read, {refused:,} refused")
    assert read + refused == times and refused
