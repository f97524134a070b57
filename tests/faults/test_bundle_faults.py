"""Bundles that strangers made, or that came over a bad line: never another answer."""

import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import transformer_jax
from transformer_jax.base.errors import UserError
from transformer_jax.runs import bundle


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle") / "made"
    bundle.export(transformer_jax.load(tiny_run), folder)
    return folder


@pytest.fixture
def copy(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "copy")


def names(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def make_fifo(path):
    path.unlink()
    os.mkfifo(path)


def make_folder(path):
    path.unlink()
    path.mkdir()


def make_link(path):
    moved = path.rename(path.parent.parent / f"moved-{path.name}")
    path.symlink_to(moved)


DAMAGE = {
    "a flipped bit": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
    "other content": lambda path: path.write_text('["other"]'),
    "a FIFO": make_fifo,
    "a folder": make_folder,
    "a link": make_link,
    "one more byte": lambda path: path.write_bytes(path.read_bytes() + b" "),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_any_file_is_refused_in_one_line(exported, tmp_path, damage):
    for i, name in enumerate(names(exported)):
        copy = shutil.copytree(exported, tmp_path / str(i) / "bundle")
        DAMAGE[damage](copy / name)
        if name == bundle.MANIFEST and damage in ("a flipped bit", "one more byte"):
            continue  # which may be a blank more, or another step: see below
        with pytest.raises(UserError) as caught:
            transformer_jax.load(copy)
        for problem in caught.value.problems:
            assert str(copy) in problem and "\n" not in problem


def change_manifest(copy, **changes):
    path = copy / bundle.MANIFEST
    about = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(about))
    return about


def seal(copy):
    """Make a manifest that agrees with the files, as a stranger can."""
    change_manifest(
        copy,
        files={n: bundle._hash(copy / n) for n in names(copy) if n != bundle.MANIFEST},
    )


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/hostname", "tokenizer/../../secret", "tokenizer", ".",
     "tokenizer\\x", "extra", "", "tokenizer/\0"],
)  # fmt: skip
def test_a_manifest_that_names_other_places_is_refused(copy, name):
    (copy.parent / "secret").write_text("x")
    about = json.loads((copy / bundle.MANIFEST).read_text())
    change_manifest(copy, files={**about["files"], name: "0" * 64})
    with pytest.raises(UserError, match="no bundle has that|is missing from the bund"):
        transformer_jax.load(copy)


def test_a_file_that_the_manifest_does_not_name_is_refused(copy):
    (copy / "tokenizer" / "more").write_text("x")
    with pytest.raises(UserError, match="more does not belong to the bundle"):
        transformer_jax.load(copy)
    os.mkfifo(copy / "fifo")
    with pytest.raises(UserError, match="fifo is a link or a device"):
        transformer_jax.load(copy)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": []}, {"files": {}}, {"files": {"config.json": 3}}, {"step": "9"},
        {"weights": None}, {"format": "1"}, {"format": [1]},
    ],
)  # fmt: skip
def test_a_manifest_of_other_kinds_is_refused(copy, changes):
    change_manifest(copy, **changes)
    with pytest.raises(UserError):
        transformer_jax.load(copy)


def test_a_file_that_is_too_large_is_not_read(copy, monkeypatch):
    monkeypatch.setattr(bundle, "LARGEST", 10)
    with pytest.raises(UserError, match=r"bytes: at most 10 are read"):
        transformer_jax.load(copy)


def more(tensors):
    tensors["more"] = np.zeros(3, np.float32)


def integers(tensors):
    name = sorted(tensors)[0]
    tensors[name] = tensors[name].astype(np.int32)


def infinite(tensors):
    tensors[sorted(tensors)[0]].flat[0] = np.inf


def other_shape(tensors):
    name = sorted(tensors)[0]
    tensors[name] = tensors[name][:1]


def fewer(tensors):
    tensors.popitem()


TENSORS = {
    more: "has more, which its config.json does not make",
    integers: "has .* as I32, not F32 or BF16 or F16",
    infinite: "has numbers that are not finite",
    other_shape: "but its config.json makes it",
    fewer: "has nothing for",
}


@pytest.mark.parametrize("change", TENSORS)
def test_other_tensors_are_refused_though_the_manifest_agrees(copy, change):
    tensors = {k: v.copy() for k, v in load_file(copy / bundle.WEIGHTS).items()}
    change(tensors)
    save_file(tensors, copy / bundle.WEIGHTS)
    seal(copy)
    with pytest.raises(UserError, match=TENSORS[change]):
        transformer_jax.load(copy)


def test_a_manifest_without_the_weights_is_refused(copy):
    manifest = json.loads((copy / bundle.MANIFEST).read_text())
    del manifest["files"][bundle.WEIGHTS]
    (copy / bundle.MANIFEST).write_text(json.dumps(manifest))
    (copy / bundle.WEIGHTS).unlink()
    said = "bundle.json does not name weights.safetensors: copy the bundle again"
    with pytest.raises(UserError, match=said):
        transformer_jax.load(copy)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, (1 << 40).to_bytes(8, "little") + b"{}", b"x" * 99]
)
def test_weights_with_a_false_header_are_refused(copy, content):
    (copy / bundle.WEIGHTS).write_bytes(content)
    seal(copy)
    with pytest.raises(UserError, match="weights.safetensors cannot be read"):
        transformer_jax.load(copy)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"task": 3}', b"\xff"])
def test_a_config_of_another_kind_is_refused_though_the_manifest_agrees(copy, content):
    (copy / "config.json").write_bytes(content)
    seal(copy)
    with pytest.raises(UserError, match="config.json"):
        transformer_jax.load(copy)


@pytest.mark.parametrize("key", ["encoder_layers", "decoder_layers"])
def test_more_layers_than_can_be_made_are_refused_before_any_is(copy, key):
    config = json.loads((copy / "config.json").read_text())
    config["model"][key] = 100_000  # to shape these would take minutes, and all memory
    (copy / "config.json").write_text(json.dumps(config))
    seal(copy)
    with pytest.raises(UserError, match=rf"{key} = 100000: .* at most 1000"):
        transformer_jax.load(copy)
