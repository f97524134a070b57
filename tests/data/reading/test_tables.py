"""Tables with named columns: CSV as Python and pandas write it, Parquet, Arrow."""

import csv
import json
import random
import sys

import numpy as np
import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.data.reading.tables import ArrowTable, CsvTable, saved_files

NAMES = {"source": "german", "target": "english"}


def write(path, text):
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


def rows_of(table):
    """Return the records, after checking that both ways of reading agree."""
    found = list(table)
    assert [table[i] for i in range(len(table))] == found
    return found


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_is_read_as_the_csv_module_wrote_it(tmp_path, delimiter, end):
    draw = random.Random(1)
    cells = [
        "",
        "plain",
        'say "no"',
        f"a{delimiter}b",
        "two\nlines",
        "x\n\n\ny",
        "é",
        '"',
    ]
    rows = [[draw.choice(cells[1:]), draw.choice(cells), str(i)] for i in range(97)]
    with open(tmp_path / "a.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
        writer.writerow(["german", "english", "id"])
        writer.writerows(rows)
    found = rows_of(CsvTable(str(tmp_path / "a.csv"), NAMES))
    assert found == [{"source": row[0], "target": row[1]} for row in rows]


def test_csv_says_where_a_record_begins_and_skips_empty_lines(tmp_path):
    path = write(tmp_path / "a.csv", 'english,german\n"a\nb",x\n\nc,y\n\n')
    table = CsvTable(path, NAMES)
    assert rows_of(table) == [
        {"source": "x", "target": "a\nb"},
        {"source": "y", "target": "c"},
    ]
    assert [table.where(i) for i in range(2)] == [f"{path}, line 2", f"{path}, line 5"]
    with pytest.raises(IndexError):
        table[2]


def test_csv_without_a_header_has_numbered_columns(tmp_path):
    path = write(tmp_path / "a.csv", "good,1\nbad,0\n")
    table = CsvTable(path, {"text": "1", "label": "2"})
    assert rows_of(table) == [
        {"text": "good", "label": "1"},
        {"text": "bad", "label": "0"},
    ]
    named = CsvTable(write(tmp_path / "b.csv", "2,1\nx,y\n"), {"text": "1"})
    assert rows_of(named) == [{"text": "y"}]  # a header of numbers


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("german,englisch\na,b\n", "no column 'english' for the target.*did you mean"),
        ("german,english\na,b\nc,d,e\n", "line 3 has 3 cells, but the first line 2"),
        ("german,english\na,b\nc\n", "line 3 has 1 cells, but the first line 2"),
        ('german,english\na,b\n"c,d\ne,f\n', "line 3 opens a quoted cell"),
        ("\n\n", "has no line that is a record"),
    ],
)
def test_csv_that_is_none_is_refused_by_line(tmp_path, text, words):
    with pytest.raises(UserError, match=f"(?i){words}"):
        list(CsvTable(write(tmp_path / "a.csv", text), NAMES))


def test_the_fingerprint_of_csv_is_that_of_its_content_and_columns(tmp_path):
    text = "german,english\na,b\n"
    prints = {
        CsvTable(write(tmp_path / "a.csv", text), NAMES).fingerprint,
        CsvTable(write(tmp_path / "b.csv", text + "c,d\n"), NAMES).fingerprint,
        CsvTable(
            str(tmp_path / "a.csv"), {"source": "english", "target": "german"}
        ).fingerprint,
    }
    again = CsvTable(write(tmp_path / "c.csv", text), NAMES)
    assert len(prints) == 3
    assert again.fingerprint in prints


def test_a_spreadsheet_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match=r"is a spreadsheet: save it as CSV \(UTF-8\)"):
        CsvTable(str(tmp_path / "a.xlsx"), NAMES)


ROWS = [{"text": f"text {i}", "label": i % 3, "deep": {"x": str(i)}} for i in range(23)]
CLASSES = {
    "info": {"features": {"label": {"_type": "ClassLabel", "names": ["a", "b", "c"]}}}
}
COLUMNS = {"text": "text", "label": "label", "source": "deep.x"}


def table_of(classes=True):
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pylist(ROWS)
    if classes:
        table = table.replace_schema_metadata({"huggingface": json.dumps(CLASSES)})
    return table


def write_as(kind, path, table):
    import pyarrow as pa
    import pyarrow.parquet

    if kind == "parquet":
        pa.parquet.write_table(table, path, row_group_size=5)
        return
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
@pytest.mark.parametrize("classes", [True, False])
def test_columns_are_read_by_name_and_classes_by_theirs(tmp_path, kind, classes):
    write_as(kind, tmp_path / "a", table_of(classes))
    table = ArrowTable(str(tmp_path / "a"), COLUMNS)
    expected = [
        {
            "text": row["text"],
            "label": "abc"[row["label"]] if classes else str(row["label"]),
            "source": row["deep"]["x"],
        }
        for row in ROWS
    ]
    assert rows_of(table) == expected
    order = np.random.default_rng(0).permutation(len(ROWS))
    assert [table[int(i)] for i in order] == [expected[i] for i in order]
    assert table.where(6).endswith("a, row 7")


def test_what_is_no_table_or_lacks_a_column_is_refused(tmp_path):
    write_as("parquet", tmp_path / "a", table_of())
    with pytest.raises(UserError, match="no column 'txt' for the text.*text"):
        ArrowTable(str(tmp_path / "a"), {"text": "txt"})
    with pytest.raises(
        UserError,
        match="has no 'deep.y' .data.text_column.: 'y' was looked for among x",
    ):
        ArrowTable(str(tmp_path / "a"), {"text": "deep.y"})[0]
    with pytest.raises(UserError, match="row 1: the text .* must be text"):
        ArrowTable(str(tmp_path / "a"), {"text": "deep"})[0]
    (tmp_path / "b").write_bytes((tmp_path / "a").read_bytes()[:100])
    (tmp_path / "c").write_text("hello")
    for name in "bc":
        with pytest.raises(UserError, match="cannot be read as Parquet or Arrow"):
            ArrowTable(str(tmp_path / name), {"text": "text"})


def test_a_folder_of_datasets_is_read_by_its_splits(tmp_path):
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        write_as("stream", tmp_path / name / "data-00000-of-00001.arrow", table_of())
        about = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (tmp_path / name / "state.json").write_text(json.dumps(about))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    [path] = saved_files(str(tmp_path / "train"))
    assert len(ArrowTable(path, COLUMNS)) == 23
    with pytest.raises(UserError, match="has the splits test, train: name them"):
        saved_files(str(tmp_path))
    assert saved_files(str(tmp_path / "nothing")) is None


def test_without_pyarrow_the_way_to_get_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="needs pyarrow: pip install 'transformer_jax"):
        ArrowTable(str(tmp_path / "a"), COLUMNS)


def test_without_a_header_the_delimiter_is_the_one_that_divides_evenly(tmp_path):
    path = write(tmp_path / "a.csv", "a, b, c;x\nd;y\ne, f;z\n")
    table = CsvTable(path, {"source": "2", "target": "1"})
    assert rows_of(table)[0] == {"source": "x", "target": "a, b, c"}
