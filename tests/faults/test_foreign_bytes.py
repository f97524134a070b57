"""Foreign bytes: whatever a file holds, its parser returns or names what is wrong.

Each parser gets files that are whole but for some changes, drawn from a seed: flipped,
lost and doubled bytes, cut ends, and words that parsers stumble over. Anything but a
`UserError` of one line fails; the quick form tries a few of each, the slow one 7,200.
"""

import gzip
import io
import json

import numpy as np
import pytest
from damage import QUICK, SLOW, attack, parsed

from transformer_jax.base.errors import UserError
from transformer_jax.data.images import arrays as images
from transformer_jax.data.reading import trees
from transformer_jax.data.reading.records import (
    JsonTable,
    TsvTable,
)
from transformer_jax.data.text import tokenizer, vectors
from transformer_jax.runs import bundle
from transformer_jax.runs.folder import Folder


def columns(table, names):
    return lambda path: list(table(str(path), names))


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


def seeds(run):
    """The parsers, the names of their files, and whole files of each."""
    texts = ["O gato dorme.", "A menina não leu o livro."]
    tree = "(S (NP (DT The) (NN cat)) (VP (VBD slept)) (. .))"
    rows = [{"de": t, "translation": {"en": t[::-1]}} for t in texts]
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
        "vectors": (read_vectors, "a.txt", [vector, vector[4:]]),
        "packed vectors": (read_vectors, "a.txt.gz", [gzip.compress(vector)]),
        "idx": (read_idx, "images", [picture, gzip.compress(picture)]),
        "tokenizer": (tokenizer.Tokenizer.load, "a.model", [learned[-2000:], learned]),
        "config": (read_config, "config.json", [(run / "config.json").read_bytes()]),
        "manifest": (read_manifest, "bundle.json", [json.dumps(manifest).encode()]),
        "image": (
            lambda path: images.read_image(path, 5, 3, 1), "a.image", pictures()
        ),
    }  # fmt: skip


PARSERS = [
    "tsv", "packed", "jsonl", "trees", "vectors", "packed vectors", "idx", "tokenizer",
    "config", "manifest", "image",
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
    read, refused = attack(parse, tmp_path / file, whole, SLOW, 1)
    print(f"{name}: {SLOW:,} files, {read:,} read, {refused:,} refused")
    assert read + refused == SLOW and refused
