"""TFDS: prepared records have random access without TensorFlow; faults are reported."""

import gzip
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets

from transformer_jax import config
from transformer_jax.base.errors import UserError
from transformer_jax.data import tfds
from transformer_jax.data.reading.sources import Source
from transformer_jax.data.tfds import Split, prepare

GERMAN = [f"Der {i}. Kahn liegt\u2028 am  Ufer.\t" for i in range(19)] + ["", "Schluß"]
ENGLISH = [f'The "{i}th" barge lies ashore.' for i in range(19)] + ["nothing", "end"]
COLUMNS = {"source": "de", "target": "en"}


def write(folder, content):
    """Files with the given names and lines; a name in .gz is compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in content.items():
        raw = "".join(f"{line}\n" for line in lines).encode()
        (folder / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return folder


def corpus(folder, german=GERMAN, english=ENGLISH, name="barges", **options):
    """A data set made of two splits of text; its data_dir."""
    names = {
        "a.de": german,
        "a.en.gz": english,
        "b.de": german[:5],
        "b.en": english[:5],
    }
    text = write(folder / "text", names)
    files = {
        "train": (str(text / "a.de"), str(text / "a.en.gz")),
        "validation": (str(text / "b.de"), str(text / "b.en")),
    }
    prepare(name, ("de", "en"), files, str(folder), **options)
    return str(folder)


class Questions(tensorflow_datasets.core.GeneratorBasedBuilder, skip_registration=True):
    """Every kind of feature that needs no TensorFlow."""

    VERSION = tensorflow_datasets.core.Version("2.0.0")

    def _info(self):
        kinds = tensorflow_datasets.features
        return tensorflow_datasets.core.DatasetInfo(
            builder=self,
            disable_shuffling=True,
            features=kinds.FeaturesDict(
                {
                    "question": {"text": kinds.Text(), "length": np.int32},
                    "answers": kinds.Sequence({"text": kinds.Text(), "at": np.int32}),
                    "label": kinds.ClassLabel(num_classes=3),
                    "mood": kinds.ClassLabel(names=["bad", "fair", "good"]),
                    "grid": kinds.Tensor(shape=(2, 3), dtype=np.uint8),
                    "raw": kinds.Tensor(shape=(), dtype=np.str_),
                }
            ),
        )

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(13),
            "test": self._generate_examples(7),
        }

    def _generate_examples(self, size):
        for i in range(size):
            yield (
                i,
                {
                    "question": {"text": f"line {i}\nnext", "length": i},
                    "answers": [{"text": f"ä{k}", "at": k} for k in range(i % 3)],
                    "label": i % 3,
                    "mood": i % 3 if i else -1,
                    "grid": np.full((2, 3), i, np.uint8),
                    "raw": b"\xff" if i == 11 else b"fine",
                },
            )


def questions(folder, form="array_record", shards=None):
    builder = Questions(data_dir=folder, file_format=form)
    config = tensorflow_datasets.download.DownloadConfig(
        num_shards=shards, try_download_gcs=False
    )
    builder.download_and_prepare(download_config=config)
    return str(folder)


@pytest.fixture(scope="module")
def barges(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("barges"))


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    return questions(tmp_path_factory.mktemp("asked"), shards=3)


def test_records_are_the_lines_in_their_order(barges):
    split = Split("barges", "train", barges, COLUMNS)
    pairs = zip(GERMAN, ENGLISH, strict=True)
    lines = [{"source": de, "target": en} for de, en in pairs]
    assert len(split) == 21
    assert [split[i] for i in (20, 0, 13, -1)] == [lines[i] for i in (20, 0, 13, 20)]
    assert list(split) == lines
    with pytest.raises(IndexError, match="record 21"):
        split[21]


def test_reading_in_chunks_is_reading_one_by_one(asked, monkeypatch):
    monkeypatch.setattr(tfds, "CHUNK", 5)
    split = Split("questions", "train", asked, {"text": "question.text"})
    assert list(split) == [split[i] for i in range(13)]


@pytest.mark.parametrize(
    "part, rows",
    [
        ("train[:3]", range(3)),
        ("train[17:18]", [17]),
        ("train[-2:]", [19, 20]),
        ("train[20:]+validation[:2]", [20, 0, 1]),
    ],
)
def test_parts_of_splits(barges, part, rows):
    split = Split("barges", part, barges, COLUMNS)
    assert [r["target"] for r in split] == [ENGLISH[i] for i in rows]


def test_parts_reach_across_files(asked):
    split = Split("questions", "train[2:11]", asked, {"n": "question.length"})
    assert len(list(split._files)) == 3
    assert [split[i]["n"] for i in range(9)] == list(range(2, 11))


def test_a_folder_prepared_elsewhere_is_opened_by_its_path(barges, tmp_path):
    shutil.copytree(f"{barges}/barges/1.0.0", tmp_path / "copied" / "1.0.0")
    copy = Split(str(tmp_path / "copied" / "1.0.0"), "train", columns=COLUMNS)
    split = Split("barges", "train", barges, COLUMNS)
    assert list(copy) == list(split)
    assert copy.fingerprint == split.fingerprint


def test_tfds_itself_reads_what_was_prepared(barges):
    source = tensorflow_datasets.data_source("barges", split="train", data_dir=barges)
    assert source[3]["de"].decode() == GERMAN[3]


def test_every_kind_of_feature(asked):
    record = Split("questions", "train", asked)[5]
    assert list(record) == [
        "answers.at",
        "answers.text",
        "grid",
        "label",
        "mood",
        "question.length",
        "question.text",
        "raw",
    ]
    assert record["question.text"] == "line 5\nnext"  # a line break is part of it
    assert record["answers.text"] == ["ä0", "ä1"]
    assert (record["label"], record["question.length"]) == (2, 5)
    np.testing.assert_array_equal(record["grid"], np.full((2, 3), 5, np.uint8))


def test_labels_of_a_text_source_become_text_and_other_numbers_are_refused(asked):
    data = config.base("classification").data
    with data.unlocked():
        data.update(source="tfds", folder=asked, tfds_name="questions")
        data.update(text_column="question.text", label_column="label")
    source = Source(data, ("text", "label"))
    assert source.read("train")[5] == {"text": "line 5\nnext", "label": "2"}
    with data.unlocked():
        data.label_column = "mood"
    named = Source(data, ("text", "label")).read("train")
    assert [record["label"] for record in named][:4] == ["-1", "fair", "good", "bad"]
    assert Split("questions", "train", asked)[5]["mood"] == 2
    by = [Split("questions", "train", asked, {"label": "mood"}, t) for t in (0, 1)]
    assert by[0].fingerprint != by[1].fingerprint  # the records are others
    by = [Split("questions", "train", asked, {"label": "label"}, t) for t in (0, 1)]
    assert by[0].fingerprint == by[1].fingerprint
    with data.unlocked():
        data.text_column = "question.length"
    message = r"record 5: the text .'question.length', .* is 5 of type int"
    with pytest.raises(UserError, match=message):
        Source(data, ("text", "label")).read("train")[5]


def test_bytes_that_are_not_text_are_reported_by_record(asked):
    split = Split("questions", "test+train", asked, {"source": "raw"})
    assert split[0] == {"source": "fine"}
    message = r"questions:2.0.0, split test\+train, record 18: the source is not UTF-8"
    with pytest.raises(UserError, match=message):
        split[18]
    with pytest.raises(UserError, match=message):
        list(split)


def test_where_names_version_split_and_record(barges):
    split = Split("barges", "train[:3]", barges, COLUMNS)
    assert split.where(2) == "barges:1.0.0, split train[:3], record 2"


def test_an_unknown_feature_is_refused_with_the_known_ones(barges, asked):
    with pytest.raises(
        UserError, match="no feature 'dee' for the source.* de, en.*'de'"
    ):
        Split("barges", "train", barges, {"source": "dee", "target": "en"})
    with pytest.raises(UserError, match="Did you mean 'question.text'"):
        Split("questions", "train", asked, {"source": "question_text"})


def test_fingerprints_are_of_the_content(barges, tmp_path):
    first = Split("barges", "train", barges, COLUMNS).fingerprint
    again = corpus(tmp_path / "again")
    assert Split("barges", "train", again, COLUMNS).fingerprint == first
    other = corpus(tmp_path / "other", [*GERMAN[:-1], "Schlaß"])  # of the same size
    assert Split("barges", "train", other, COLUMNS).fingerprint != first
    newer = corpus(tmp_path / "newer", version="1.0.1")
    names = [
        Split("barges", "validation", barges, COLUMNS),
        Split("barges", "train[:5]", barges, COLUMNS),
        Split("barges", "train", barges, {"source": "en", "target": "de"}),
        Split("barges", "train", barges, {"source": "de"}),
        Split("barges", "train", newer, COLUMNS),
    ]
    assert len({first, *(split.fingerprint for split in names)}) == 6


def test_large_splits_are_hashed_by_blocks_of_every_file(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(tfds, "HASHED", 3 * tfds.BLOCK)
    shutil.copytree(asked, tmp_path / "copy")
    first = Split("questions", "train", asked).fingerprint
    assert Split("questions", "train", str(tmp_path / "copy")).fingerprint == first
    for path in (tmp_path / "copy").glob("**/*train*"):
        raw = bytearray(path.read_bytes())
        raw[0] ^= 1
        path.write_bytes(raw)
        changed = Split("questions", "train", str(tmp_path / "copy")).fingerprint
        assert changed != first
        first = changed


def test_an_unknown_data_set_names_the_nearest(barges, monkeypatch):
    with pytest.raises(
        UserError, match="'wmt14_translat/de-en' is no.*'wmt14_translate'"
    ):
        Split("wmt14_translat/de-en", "train", barges)
    with pytest.raises(UserError, match="nor prepared in .*Did you mean 'barges'"):
        Split("bargis", "train", barges)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"lacks wmt.*\[tfds\]'"):
        Split("bargis", "train", barges)


def test_without_tfds_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UserError, match=r"pip install 'transformer_jax\[tfds\]'"):
        Split("bargis", "train", "")


@pytest.mark.parametrize(
    "name, message",
    [
        ("wmt14_translate/de-xx", "BuilderConfig de-xx not found"),
        ("wmt14_translate/de-en:9.0.0", "9.0.0, only: 1.0.0"),
        ("wmt 14", "TFDS cannot open 'wmt 14': Parsing builder name"),
        ("./nowhere", "name the folder of a prepared version"),
    ],
)
def test_names_that_cannot_be_opened(name, message, tmp_path):
    with pytest.raises(UserError, match=message):
        Split(name, "train", str(tmp_path))


def test_unprepared_data_is_refused_with_the_command_that_prepares_it(tmp_path):
    with pytest.raises(UserError) as caught:
        Split("glue/sst2", "train", str(tmp_path))
    message = str(caught.value)
    assert f"there is nothing in {tmp_path}/glue/sst2/2.0.0" in message
    command = message.splitlines()[-1].strip().removeprefix('python -c "')
    assert command.removesuffix('"') == (
        "import tensorflow_datasets as tfds; tfds.builder('glue/sst2:2.0.0', "
        f"data_dir='{tmp_path}', file_format='array_record').download_and_prepare()"
    )


def test_another_version_that_is_prepared_is_named(barges, tmp_path):
    shutil.copytree(f"{barges}/barges/1.0.0", tmp_path / "glue" / "sst2" / "1.0.0")
    with pytest.raises(UserError, match=r"\(there is glue/sst2:1.0.0\)"):
        Split("glue/sst2", "train", str(tmp_path))


def test_a_format_without_random_access_is_named(barges, tmp_path):
    shutil.copytree(barges, tmp_path / "copy")
    path = tmp_path / "copy/barges/1.0.0/dataset_info.json"
    path.write_text(path.read_text().replace('"array_record"', '"tfrecord"'))
    with pytest.raises(UserError, match=r"prepared as tfrecord(.|\s)*ANOTHER_FOLDER"):
        Split("barges", "train", str(tmp_path / "copy"), COLUMNS)


@pytest.mark.parametrize(
    "split, message",
    [
        ("trian", r"train \(21 records\), validation \(5 records\).*'train'"),
        ("train[:5]+test", "Unknown split 'test'"),
        ("train[:22]", r"\[:22\] incompatible with 21 examples"),
        ("train[:0]", "holds no records"),
        ("train[9:3]", "holds no records"),
        ("train[", "Unrecognized split format"),
        ("", "Unrecognized split format"),
    ],
)
def test_splits_that_cannot_be_read(barges, split, message):
    with pytest.raises(UserError, match=message):
        Split("barges", split, barges, COLUMNS)


def test_parquet_is_read_whole_or_refused(tmp_path):
    folder = questions(tmp_path, "parquet", shards=3)
    split = Split("questions", "train", folder, {"n": "question.length"})
    assert [r["n"] for r in split] == [split[i]["n"] for i in range(13)]
    assert [r["n"] for r in split] == list(range(13))
    with pytest.raises(UserError, match="from array_record only"):
        Split("questions", "train[:2]", folder)


def test_missing_and_damaged_files_are_named(asked, tmp_path):
    shutil.copytree(asked, tmp_path / "copy")
    first, second, _ = sorted((tmp_path / "copy").glob("**/*train*"))
    first.write_bytes(b"")
    split = Split("questions", "train", str(tmp_path / "copy"))
    with pytest.raises(UserError, match="train, record 0 cannot be read"):
        list(split)
    assert split[12]["question.length"] == 12
    second.unlink()
    with pytest.raises(UserError, match=f"1 of its files are missing.*{second.name}"):
        Split("questions", "train", str(tmp_path / "copy"))


@pytest.mark.parametrize(
    "german, english, message",
    [
        (b"a\nb\n", b"a\n", r"x.de has 2 lines, but .*x.en has 1"),
        (b"a\n", b"a\nb\nc", r"x.de has 1 lines, but .*x.en has 3"),
        (b"a\nb\xff\n", b"a\nb\n", r"x.de, line 2: byte 0xff at column 2"),
        (b"", b"", "x.de is empty"),
        (None, b"a\n", "x.de cannot be read"),
    ],
)
def test_text_that_cannot_be_imported(tmp_path, german, english, message):
    files = (str(tmp_path / "x.de"), str(tmp_path / "x.en"))
    for path, content in zip(files, (german, english), strict=True):
        if content is not None:
            (tmp_path / path).write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare("x", ("de", "en"), {"train": files}, str(tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def test_byte_order_marks_and_carriage_returns_are_not_text(tmp_path):
    (tmp_path / "x.de").write_bytes(b"\xef\xbb\xbfeins\r\nzwei")
    (tmp_path / "x.en").write_bytes(b"one\ntwo\n")
    files = (str(tmp_path / "x.de"), str(tmp_path / "x.en"))
    folder = prepare("x", ("de", "en"), {"train": files}, str(tmp_path / "data"))
    assert [r["de"] for r in Split(str(folder), "train")] == ["eins", "zwei"]


@pytest.mark.parametrize(
    "name, languages, version, message",
    [
        ("My-Corpus", ("de", "en"), "1.0.0", "use a-z, 0-9 and _"),
        (
            "wmt14_translate",
            ("de", "en"),
            "1.0.0",
            "is already a data set of TFDS: choose another",
        ),
        ("x", ("de", "de"), "1.0.0", "both languages are 'de'"),
        ("x", ("de", "en"), "2", "a version is three numbers"),
    ],
)
def test_names_that_a_data_set_cannot_have(tmp_path, name, languages, version, message):
    with pytest.raises(UserError, match=message):
        prepare(name, languages, {}, str(tmp_path), version)


def test_nothing_is_overwritten(barges, tmp_path):
    shutil.copytree(barges, tmp_path / "copy")
    with pytest.raises(UserError, match="barges/1.0.0 exists: remove it, or raise"):
        corpus(tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "barges")
    (tmp_path / "copy" / "barges").touch()  # a file where the folder should be
    with pytest.raises(UserError, match="barges/1.0.0 cannot be written"):
        corpus(tmp_path / "copy")


@pytest.mark.system
def test_the_command_prepares_and_prints_the_config(tmp_path):
    text = write(tmp_path, {"a.de": GERMAN[:3], "a.en": ENGLISH[:3], "b.en": ["one"]})
    command = [
        sys.executable,
        "-m",
        "transformer_jax.data.tfds",
        "--name=barges",
    ]
    command += ["--source_language=de", "--target_language=en", f"--data_dir={text}"]
    done = subprocess.run(
        [*command, f"--train={text}/a.de,{text}/a.en"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"# prepared in {text}/barges/1.0.0; to train with it:",
        "config.data.source = 'tfds'",
        "config.data.tfds_name = 'barges'",
        f"config.data.folder = '{text}'",
        "config.data.source_column = 'de'",
        "config.data.target_column = 'en'",
        "config.data.train_split = 'train'",
        "config.data.validation_split = ''",
        "config.data.test_split = ''",
    ]
    assert len(Split("barges", "train", str(text), COLUMNS)) == 3
    failed = subprocess.run(
        [*command, f"--train={text}/a.de"], capture_output=True, text=True
    )
    assert failed.returncode == 2
    assert failed.stderr == "error: --train names 1 files: give source,target\n"


NAMES = """
import json, sys
from transformer_jax.data.tfds import Split
assert "tensorflow_datasets" not in sys.modules
import tensorflow_datasets as tfds
found = {}
with tfds.testing.mock_data(num_examples=5):
    for name in sys.argv[1:]:
        split = Split(name, "train[:50%]", "/nowhere")
        assert len(split.fingerprint) == 64 and len(list(split)) == 5
        found[split.name] = {k: isinstance(v, str) for k, v in split[3].items()}
for module in ("tensorflow", "jax", "torch"):
    assert module not in sys.modules, module
print(json.dumps(found))
"""


@pytest.mark.system
def test_names_of_tfds_resolve_without_tensorflow():
    names = ["wmt14_translate/de-en", "glue/sst2", "ted_hrlr_translate/pt_to_en"]
    done = subprocess.run(
        [sys.executable, "-c", NAMES, *names, "lm1b", "mnist"],
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout) == {
        "wmt14_translate/de-en:1.0.0": {"de": True, "en": True},
        "glue/sst2:2.0.0": {"idx": False, "label": False, "sentence": True},
        "ted_hrlr_translate/pt_to_en:1.0.0": {"en": True, "pt": True},
        "lm1b:1.1.0": {"text": True},
        "mnist:3.0.1": {"image": False, "label": False},
    }


def test_prepared_data_cannot_name_a_program(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "helper.py").write_text("import pathlib\npathlib.Path('X').touch()\n")
    monkeypatch.chdir(tmp_path)
    home = corpus(tmp_path / "data")
    (path,) = (tmp_path / "data").rglob("features.json")
    path.write_text(
        path.read_text().replace(
            "tensorflow_datasets.core.features.translation_feature.", "helper."
        )
    )
    for name, place in (("barges", home), (str(path.parent), "")):
        with pytest.raises(
            UserError, match="names the class helper.Translation, whose"
        ):
            Split(name, "train", place, COLUMNS)
    with pytest.raises(UserError, match="'kubric:movi' is a community data set"):
        Split("kubric:movi", "train", home, COLUMNS)
    assert not (tmp_path / "X").exists()


def test_a_package_that_cannot_be_imported_is_explained(tmp_path, monkeypatch):
    """Of TFDS a hollow module is left, if a package that it needs is too new."""
    core = tmp_path / "tensorflow_datasets" / "core"
    core.mkdir(parents=True)
    (core.parent / "__init__.py").write_text("", encoding="utf-8")
    (core / "__init__.py").write_text(
        "raise ValueError('gencode 6 runtime 5\\nmore')", encoding="utf-8"
    )
    for name in [n for n in sys.modules if n.startswith("tensorflow_datasets")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="imported: gencode 6 runtime 5. Install"):
        tfds.Split("a", "train")
