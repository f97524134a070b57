"""Read data sets of TensorFlow Datasets (TFDS) with random access, without TensorFlow.

`Split` is one split of a data set that was prepared as ArrayRecord; the command
`python -m transformer_jax.data.tfds` prepares your own parallel text as one. Both need
`pip install 'transformer_jax[tfds]'`.
Without TensorFlow, TFDS reads and writes text, labels, numbers, sequences and tensors;
it reads images (with Pillow), and writes them from files but not from arrays. It cannot
read tfrecord, its default format, or unpack downloads.
"""

import contextlib
import functools
import hashlib
import io
import json
import math
import operator
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import flags

from transformer_jax import cli
from transformer_jax.base import files
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.data.reading.records import Parallel, Record, Records, as_text

SPLITS = ("train", "validation", "test")
CHUNK = 256  # records read at once: three times as fast as one by one
INTEGERS = (int, np.integer)  # types of a class label's number
BLOCK = 1 << 16  # bytes hashed at once
HASHED = 1 << 30  # bytes hashed of a split; larger ones by evenly spread blocks
INSTALL = "pip install 'transformer_jax[tfds]'"
PREPARE = (
    'python -c "import tensorflow_datasets as tfds; tfds.builder({name!r}, data_dir='
    "{home!r}, file_format='array_record').download_and_prepare()\""
)


class Split(Records):
    """A split of a prepared data set, such as train[:1000] of wmt14_translate/de-en.

    `name` may also be the folder of a prepared version. `columns` maps each field of a
    record to a feature, such as "question.text" for a nested one; without it, features
    keep their names. Text is str, everything else is what TFDS returns. With `texts`,
    every field must be text or a label, which is replaced by the name of its class.
    Record 17 is train[17:18].
    """

    def __init__(
        self,
        name: str,
        split: str,
        data_dir: str = "",
        columns: dict[str, str] | None = None,
        texts: bool = False,
    ):
        builder = _open(name, data_dir)
        info = builder.info
        config = f"/{info.config_name}" if info.config_name else ""
        self.name = f"{info.name}{config}:{info.version}"
        self.split, self.texts = split, texts
        known = dict(sorted(_features(info.features)))  # TFDS shuffles them
        self.columns = dict(columns or zip(known, known, strict=True))
        for field, feature in self.columns.items():
            if feature not in known:
                raise UserError(
                    f"{self.name} has no feature {feature!r} for the {field}: it has "
                    f"{', '.join(known)}.{nearest(feature, known)}"
                )
        self._keys = {field: known[path][0] for field, path in self.columns.items()}
        self._classes = {}  # class names, for the labels that have them
        for field, path in self.columns.items():
            names = getattr(known[path][1], "names", None) or []
            if texts and names != [str(number) for number in range(len(names))]:
                self._classes[field] = names
        try:
            self._source, self._files = _open_split(builder, split)
        except Exception as error:  # TFDS raises errors of many kinds
            raise UserError(_explain(builder, self.name, split, error)) from error

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Record:
        row = operator.index(index) + (len(self) if index < 0 else 0)
        if not 0 <= row < len(self):
            raise IndexError(f"{self.where(index)}: there are {len(self)}")
        try:
            example = self._source[row]
        except Exception as error:  # a damaged file, or no Pillow for an image
            raise UserError(f"{self.where(row)} cannot be read: {error}") from error
        return self._record(row, example)

    def __iter__(self) -> Iterator[Record]:
        for start in range(0, len(self), CHUNK):
            rows = list(range(start, min(start + CHUNK, len(self))))
            try:
                examples = self._source.__getitems__(rows)
            except Exception:  # of any kind: read one by one to name the record
                yield from (self[row] for row in rows)
                continue
            yield from map(self._record, rows, examples)

    def where(self, index: int) -> str:
        """Name a record by its number, from 0 as in TFDS."""
        return f"{self.name}, split {self.split}, record {index}"

    @functools.cached_property
    def fingerprint(self) -> str:
        """The hash of everything that determines the records, except their folder."""
        about = [self.name, self.split, sorted(self.columns.items()), len(self)]
        about += [self._classes] if self._classes else []
        digest = hashlib.sha256(json.dumps(about).encode())
        paths = [pathlib.Path(file.filename) for file in self._files]
        sizes = [path.stat().st_size for path in paths]
        stride = math.ceil(sum(sizes) / HASHED) or 1  # in blocks
        for file, path, size in zip(self._files, paths, sizes, strict=True):
            part = [path.name, size, file.examples_in_shard, file.skip, file.take]
            digest.update(json.dumps(part).encode())
            with path.open("rb") as content:
                for start in (*range(0, size, stride * BLOCK), max(0, size - BLOCK)):
                    content.seek(start)
                    digest.update(content.read(BLOCK))
        return digest.hexdigest()

    def _record(self, row: int, example: dict[str, Any]) -> Record:
        record = {}
        for field, keys in self._keys.items():
            try:
                record[field] = _text(functools.reduce(operator.getitem, keys, example))
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{self.where(row)}: the {field} is not UTF-8 text: {error}"
                ) from None
            if self.texts:
                value, names = record[field], self._classes.get(field)
                if names and isinstance(value, INTEGERS) and 0 <= value < len(names):
                    value = names[value]  # -1 means unknown
                column, where = self.columns[field], self.where(row)
                record[field] = as_text(value, field, column, where)
        return record


def _tensorflow_datasets() -> Any:
    try:
        import tensorflow_datasets  # takes half a second, so only when used
        import tensorflow_datasets.core
    except ImportError as error:
        raise UserError(f"{error}: {INSTALL}") from error
    except Exception as error:  # such as that of protobuf for generated code
        reason = str(error).split("\n")[0]
        raise UserError(
            f"TensorFlow Datasets cannot be imported: {reason}. Install versions that "
            "fit each other"
        ) from error
    return tensorflow_datasets


def _open(name: str, data_dir: str) -> Any:
    """Open the builder of a data set, by its name or by the folder of a version."""
    tfds = _tensorflow_datasets()
    folder = pathlib.Path(name).expanduser()
    if (folder / "dataset_info.json").is_file():
        _refuse_programs(folder)
        return tfds.builder_from_directory(folder)
    if name.startswith((".", "/", "~")):
        raise UserError(
            f"{name} holds no dataset_info.json: name the folder of a prepared "
            "version, such as my_corpus/1.0.0"
        )
    if re.match(r"[\w-]+:[^\W\d]", name):  # not a version, as in name:1.0.0
        raise UserError(
            f"{name!r} is a community data set, whose program TFDS would download and "
            "execute: prepare it yourself, and name the folder of its version"
        )
    if data_dir:
        _refuse_programs(
            pathlib.Path(data_dir).expanduser() / re.split("[/:]", name)[0]
        )
    try:
        return tfds.builder(name, data_dir=data_dir or None)
    except tfds.core.registered.DatasetNotFoundError as error:
        home = pathlib.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
        known = tfds.core.registered.list_imported_builders()
        known += [path.name for path in home.glob("*")]
        problem = f"{name!r} is not a data set of TFDS, nor prepared in {home}."
        problem += nearest(re.split("[/:]", name)[0], known)
        try:
            import h5py  # noqa: F401
        except ImportError:  # TFDS then skips what it would import next
            problem += f" Without h5py, TFDS lacks wmt*, glue and more: {INSTALL}"
        raise UserError(problem) from error
    except Exception as error:  # TFDS raises many kinds: for a config, a version …
        reason = " ".join(str(error).split())
        raise UserError(f"TFDS cannot open {name!r}: {reason}") from error


def _refuse_programs(folder: pathlib.Path) -> None:
    """Refuse prepared data whose features are classes of other packages.

    TFDS would import the modules that a features.json names.
    """
    for path in folder.rglob("features.json"):
        try:
            found = files.read_object(path)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        for name in _class_names(found):
            if "." in name and not name.startswith("tensorflow_datasets."):
                raise UserError(
                    f"{path} names the class {name}, whose module TFDS would execute: "
                    "only features of TFDS itself are read"
                )


def _class_names(content: Any) -> Iterator[str]:
    """Yield the Python classes that a features.json names for its features."""
    if isinstance(content, list):
        for value in content:
            yield from _class_names(value)
    elif isinstance(content, dict):
        for key, value in content.items():
            if key in ("pythonClassName", "type") and isinstance(value, str):
                yield value
            yield from _class_names(value)


def _open_split(builder: Any, split: str) -> tuple[Any, list]:
    """Open the examples of a split; list the parts of files that contain them."""
    splits = builder.info.splits  # none in tfds.testing.mock_data
    if splits and splits[split].num_examples < 1:
        raise ValueError("it holds no records.")
    source = builder.as_data_source(split)
    files = list(builder.info.splits[split].file_instructions) if splits else []
    if gone := [f.filename for f in files if not pathlib.Path(f.filename).is_file()]:
        raise ValueError(f"{len(gone)} of its files are missing, such as {gone[0]}.")
    if files and len(source) != splits[split].num_examples:
        raise ValueError("TFDS reads parts of a split from array_record only.")
    return source, files


def _explain(builder: Any, name: str, split: str, error: Exception) -> str:
    """Explain why a split cannot be read, and what to do about it."""
    info, folder, home = builder.info, builder.data_path, builder.data_dir_root
    formats = {form.value for form in info.available_file_formats()}
    prepared = builder.is_prepared()
    if prepared and formats & {"array_record", "parquet"}:
        sizes = [f"{s} ({info.splits[s].num_examples} records)" for s in info.splits]
        asked = re.sub(r"\[.*?\]", "", split).split("+")
        unknown = [s for s in asked if s not in info.splits]
        return (
            f"{name}, split {split!r}: {' '.join(str(error).split())} It has "
            f"{', '.join(sizes)}; parts are written train[:1000], train[90%:]."
            f"{nearest(unknown[0], info.splits) if unknown else ''}"
        )
    if prepared:
        problem = f"{folder} is prepared as {', '.join(formats)}, not as array_record"
        home = "ANOTHER_FOLDER"
    else:
        problem = f"{name} is not prepared: there is nothing in {folder}"
        others = [p.parent.name for p in folder.parent.glob("*/dataset_info.json")]
        if others:
            names = [f"{name.split(':')[0]}:{version}" for version in sorted(others)]
            problem += f" (there is {', '.join(names)})"
    command = PREPARE.format(name=name, home=str(home))
    return (
        f"{problem}. Prepare it on a machine with a network, and copy the folder (only "
        "this step needs TensorFlow: pip install tensorflow tensorflow-datasets "
        f"importlib_resources h5py):\n  {command}"
    )


def _features(feature: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple]]:
    """Yield (name, (keys, feature)) of each feature, a nested one as "answers.text"."""
    inner = getattr(feature, "feature", feature)  # of a sequence
    if not hasattr(inner, "items"):
        yield ".".join(keys), (keys, inner)
        return
    for key, part in inner.items():
        yield from _features(part, (*keys, key))


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8")
    strings = isinstance(value, np.ndarray) and value.dtype == object
    return [_text(v) for v in value] if strings or isinstance(value, list) else value


def prepare(
    name: str,
    languages: tuple[str, str],
    files: dict[str, tuple[str, str]],
    data_dir: str = "",
    version: str = "1.0.0",
) -> pathlib.Path:
    """Prepare parallel text as a data set of TFDS; return the folder of this version.

    `files` names two files per split, plain or .gz, with one sentence per line.
    """
    tfds = _tensorflow_datasets()
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise UserError(f"{name!r}: use a-z, 0-9 and _, as in my_corpus")
    if name in tfds.core.registered.list_imported_builders():
        raise UserError(f"{name!r} is already a data set of TFDS: choose another name")
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise UserError(f"{version!r}: a version is three numbers, such as 1.0.0")
    if languages[0] == languages[1]:
        raise UserError(f"both languages are {languages[0]!r}: they must differ")
    # Faulty text raises here, before anything is written.
    corpora = {
        split: Parallel(dict(zip(languages, pair, strict=True)))
        for split, pair in files.items()
    }
    make = functools.partial(_parallel_text(), name, version, languages, corpora)
    builder = make(data_dir=data_dir or None, file_format="array_record")
    if builder.data_path.exists():
        raise UserError(f"{builder.data_path} exists: remove it, or raise the version")
    offline = tfds.download.DownloadConfig(try_download_gcs=False)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints about downloads
            builder.download_and_prepare(download_config=offline)
    except OSError as error:
        raise UserError(f"{builder.data_path} cannot be written: {error}") from error
    return pathlib.Path(builder.data_path)


@functools.cache
def _parallel_text() -> type:
    """Define the builder's class here, because its base class takes long to import."""
    tfds = _tensorflow_datasets()

    # pyright takes a base of type Any for `object`, which has no such argument.
    class ParallelText(  # pyright: ignore[reportGeneralTypeIssues]
        tfds.core.GeneratorBasedBuilder,
        skip_registration=True,  # pyright: ignore[reportCallIssue]
    ):
        """Sentences in two languages from local files, in the order of the files."""

        url_infos = None  # else TFDS needs importlib_resources to find them

        def __init__(self, name, version, languages, corpora, **options):
            self.name, self.VERSION = name, tfds.core.Version(version)
            self.languages, self.corpora = languages, corpora
            super().__init__(**options)

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.Translation(self.languages),
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager):
            return {s: self._generate_examples(c) for s, c in self.corpora.items()}

        def _generate_examples(self, records):
            return enumerate(records)

    return ParallelText


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_string("name", "", "The data set to make, such as my_corpus.")
    flags.DEFINE_string("source_language", "", "The source language, such as de.")
    flags.DEFINE_string("target_language", "", "The target language, such as en.")
    for split in SPLITS:
        flags.DEFINE_string(split, "", f"The two files of {split}: a.de,a.en")
    flags.DEFINE_string("data_dir", "", "The output folder (default: that of TFDS).")
    flags.DEFINE_string("version", "1.0.0", "Raise it when the text changes.")


def main(overrides: dict[str, str]) -> None:
    """Prepare a data set, and print the options of a config that name it."""
    args = flags.FLAGS
    for key in overrides:
        raise UserError(f"--config.{key} is for training: this command has no config")
    cli.require("name", args.name, "the name of the data set, such as my_corpus")
    cli.require("train", args.train, "the two training files: train.de,train.en")
    for side in ("source", "target"):
        key = f"{side}_language"
        cli.require(key, getattr(args, key), f"the language of the {side}, such as de")
    given = {split: getattr(args, split) for split in SPLITS}
    files = {s: tuple(names.split(",")) for s, names in given.items() if names}
    for split, pair in files.items():
        if len(pair) != 2:
            raise UserError(f"--{split} names {len(pair)} files: give source,target")
    languages = (args.source_language, args.target_language)
    if not cli.is_terminal():
        _tensorflow_datasets().disable_progress_bar()
    folder = prepare(args.name, languages, files, args.data_dir, args.version)
    print(f"# prepared in {folder}; to train with it:")
    keys = {"source": "tfds", "tfds_name": args.name, "folder": args.data_dir}
    keys |= {"source_column": languages[0], "target_column": languages[1]}
    keys |= {f"{split}_split": split if split in files else "" for split in SPLITS}
    for key, value in keys.items():
        print(f"config.data.{key} = {value!r}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
