"""Reports: which runs belong together, what is tested, and what each format says."""

import csv
import html.parser
import io
import json
import math
import statistics

import pytest
from seeded import SCORES, change, put_scores

from transformer_jax.base.errors import UserError
from transformer_jax.report import __main__ as command
from transformer_jax.report import page, significance, tables
from transformer_jax.report.collect import collect
from transformer_jax.report.significance import Difference
from transformer_jax.runs import bundle
from transformer_jax.runs import run as runs
from transformer_jax.runs.folder import find_runs


@pytest.fixture
def read(seeds):
    """A function: the report of all runs of `seeds`."""

    def collected(**how):
        return collect(find_runs("files", [str(seeds)]), **how)

    return collected


def test_runs_are_grouped_by_all_but_their_seeds_and_named_by_what_differs(read):
    found = read()
    assert [(group.name, group.seeds) for group in found.groups] == [
        ("optim.warmup_steps=5", [1, 2, 3]),
        ("optim.warmup_steps=6", [1, 2, 3]),
    ]
    assert found.split == "test" and not found.left_out
    assert found.groups[0].values("BLEU") == SCORES["a"]
    assert found.metrics == ["BLEU", "chrF", "loss", "perplexity"]


def test_groups_that_differ_by_many_options_are_named_by_their_folders(seeds, read):
    for seed in (1, 2, 3):
        change(
            seeds / f"b_{seed}",
            train__steps=13, decode__alpha=0.7, decode__beams=3, train__patience=7,
        )  # fmt: skip
    assert [group.name for group in read().groups] == [f"{seeds}/a_*", f"{seeds}/b_*"]
    for name in ("a", "b"):  # the folder of each seed has a run of both
        for seed in (1, 2, 3):
            (seeds / f"{name}_{seed}").rename(seeds / f"{seed}_{name}")
    named = [group.name for group in read().groups]
    assert named == [f"{seeds}/* (1)", f"{seeds}/* (2)"]
    assert read(baseline=f"{seeds}/2_b").groups[0].name == named[1]


def test_groups_of_other_training_data_are_not_one(seeds, read):
    for seed in (1, 2, 3):
        change(seeds / f"b_{seed}", optim__warmup_steps=5)
    with pytest.raises(UserError, match="a_1 and .*b_1 both have the seed 1"):
        read()
    for seed in (1, 2, 3):
        path = seeds / f"b_{seed}" / "ledger.json"
        ledger = json.loads(path.read_text())
        ledger["train"]["content"] = "other"
        path.write_text(json.dumps(ledger))
    assert [group.name for group in read().groups] == [f"{seeds}/a_*", f"{seeds}/b_*"]


def test_tests_are_paired_by_seed_and_agree_with_scipys(seeds, read):
    stats = pytest.importorskip("scipy.stats")
    found = dict((d.metric, d) for _, d in read().differences())
    assert list(found) == ["BLEU", "chrF", "loss"]  # perplexity is no further test
    wanted = stats.ttest_rel(SCORES["b"], SCORES["a"])
    assert found["BLEU"].paired and found["BLEU"].p == pytest.approx(wanted.pvalue)
    ends = wanted.confidence_interval(0.95)
    middle, half = found["BLEU"].measured, found["BLEU"].interval
    assert (middle - half, middle + half) == pytest.approx((ends.low, ends.high))

    change(seeds / "b_3", seed=4)
    found = dict((d.metric, d) for _, d in read().differences())
    wanted = stats.ttest_ind(SCORES["b"], SCORES["a"], equal_var=False)
    assert not found["BLEU"].paired and found["BLEU"].p == pytest.approx(wanted.pvalue)


def test_pairs_see_what_seeds_do_to_both():
    base = (30.0, 34.0, 38.0)
    better = tuple(value + 1 + 0.01 * i for i, value in enumerate(base))
    assert Difference("BLEU", "a", "b", base, better, same_seeds=True).p < 0.001
    assert Difference("BLEU", "a", "b", base, better).p > 0.5


def test_pairs_that_differ_equally_are_not_taken_for_a_proof():
    """Their deviation is rounding, so that p would be 0 or 1 by chance."""
    for base, gap in (((0.9, 0.92, 0.94), 0.01), ((30.1, 31.3, 30.7), 1.0)):
        better = tuple(value + gap for value in base)
        found = Difference("BLEU", "a", "b", base, better, same_seeds=True)
        assert not found.paired
        assert found.p == Difference("BLEU", "a", "b", base, better).p > 0.05


def test_text_has_means_corrected_tests_and_curves(read):
    found = read()
    said = tables.write_text(found)
    a, b = SCORES["a"], SCORES["b"]
    for values in (a, b):
        mean, deviation = statistics.fmean(values), statistics.stdev(values)
        assert f"{mean:.2f} ± {deviation:.2f}" in said
    assert said.startswith("report     6 runs in 2 groups, scores of test: mean ±")
    assert "p corrected for 3 tests (Holm)" in said
    p_values = [difference.p for _, difference in found.differences()]
    for p in significance.holm(p_values):
        assert f"  {p:.2g}  " in said
    assert "no seed varies" in said  # their losses are those of one run
    steps = list(found.groups[0].curve("loss"))
    assert "validation loss by step" in said and f"  {steps[-1]}\n" in said
    assert max(map(len, said.splitlines())) < 110


def test_csv_has_a_row_for_each_run(seeds, read):
    rows = list(csv.DictReader(io.StringIO(tables.write_csv(read()))))
    assert [row["run"] for row in rows] == find_runs("files", [str(seeds)])
    assert [float(row["BLEU"]) for row in rows] == [*SCORES["a"], *SCORES["b"]]
    assert {row["optim.warmup_steps"] for row in rows} == {"5", "6"}


class Page(html.parser.HTMLParser):
    """Reads a page: its open elements, its text, and what it loads."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.loaded, self.lines = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.loaded += [found[name] for name in ("src", "href") if name in found]
        if tag == "polyline":
            self.lines.append(found["points"].split())
        if tag not in ("meta", "path", "polygon", "li"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("meta", "path", "polygon", "li"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_stands_alone_and_draws_each_group(seeds, read):
    change(seeds / "a_1", card="<script>alert(1)</script>")
    for seed in (2, 3):
        change(seeds / f"a_{seed}", card="<script>alert(1)</script>")
    found = read()
    text = page.write_page(found)
    seen = Page(text)
    assert not seen.open and not seen.loaded and "<script" not in text
    curves = [group.curve("loss") for group in found.groups]
    assert [len(line) for line in seen.lines[:2]] == [len(curve) for curve in curves]
    assert "corrected" in seen.text and f"{seeds}/a_1" in seen.text


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [
        ((2.6, 3.41), [2.5, 2.75, 3.0, 3.25, 3.5]),
        ((0, 1000), [0, 250, 500, 750, 1000]),
        ((5, 5), [2, 4, 6, 8]),
        ((-0.02, 0.011), [-0.02, -0.01, 0, 0.01, 0.02]),
    ],
)
def test_ticks_are_round_and_contain_the_values(ends, wanted):
    assert page.ticks(*ends) == pytest.approx(wanted)


def test_the_baseline_is_named_by_a_part_of_its_name_or_a_run(seeds, read):
    for name in ("steps=6", f"{seeds}/b_2"):
        assert read(baseline=name).groups[0].name == "optim.warmup_steps=6"
    with pytest.raises(UserError, match="is in the names of 2 groups: choose one of"):
        read(baseline="warmup")
    with pytest.raises(UserError, match="is in the names of 0 groups: choose one of"):
        read(baseline="dropout")


def test_a_run_that_has_not_ended_is_left_out_and_named(seeds, read):
    (seeds / "b_2" / "result.json").unlink()
    found = read()
    assert found.groups[1].seeds == [1, 3]
    assert "not finished: step" in found.left_out[f"{seeds}/b_2"]
    assert f"left out   {seeds}/b_2: not finished" in tables.write_text(found)
    assert "b_2: not finished" in page.write_page(found)
    for name in ("a_1", "a_2", "a_3", "b_1", "b_3"):
        (seeds / name / "result.json").unlink()
    with pytest.raises(
        UserError, match="none of the runs has ended, so there is no score yet"
    ):
        read()


def test_scores_that_cannot_be_compared_are_refused(seeds, read):
    with pytest.raises(
        UserError, match=r"a_1 has no scores of dev \(it has test, validation\)"
    ):
        read(split="dev")
    ledger = seeds / "a_2" / "ledger.json"
    before = ledger.read_text()
    notes = json.loads(before)
    notes["test"]["content"] = "other"
    ledger.write_text(json.dumps(notes))
    with pytest.raises(UserError, match="the test data of .*a_2 are not those of"):
        read()
    ledger.write_text(before)
    put_scores(seeds / "a_2", bleu_signature="nrefs:1|case:lc")
    with pytest.raises(UserError, match="score both by the same rules"):
        read()


def test_scores_of_evaluate_count_if_they_are_of_the_same_parameters(seeds, read):
    """As with a newer sacreBLEU; other parameters or beams do not change a report."""
    path = seeds / "a_2" / "scores.json"
    scores = json.loads(path.read_text())
    scores["test"]["bleu"] = 35.0
    path.write_text(json.dumps(scores))
    assert read().groups[0].values("BLEU")[1] == 35.0
    scores["test"]["beams"] += 1
    path.write_text(json.dumps(scores))
    assert read().groups[0].values("BLEU") == SCORES["a"]


def test_a_run_without_finite_scores_is_left_out_and_points_of_curves_are(seeds, read):
    put_scores(seeds / "a_2", bleu=math.nan)
    path = seeds / "b_1" / "metrics.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    first = next(entry for entry in entries if entry["kind"] == "validation")
    first["loss"] = math.nan
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    found = read()
    assert found.left_out == {f"{seeds}/a_2": "its BLEU is not finite"}
    assert found.groups[0].seeds == [1, 3] and found.groups[1].seeds == [1, 2, 3]
    steps = [list(group.curve("loss")) for group in found.groups]
    assert steps[1] == steps[0][1:] and first["step"] == steps[0][0]
    assert "nan" not in page.write_page(found)
    for path in seeds.iterdir():
        put_scores(path, bleu=math.inf)
    with pytest.raises(UserError, match="no run has finite scores of test"):
        read()


def test_validations_of_other_examples_are_not_compared(seeds, read):
    assert len(read(split="validation").groups) == 2
    for seed in (1, 2, 3):
        change(seeds / f"b_{seed}", eval__answers=5)
    with pytest.raises(UserError, match="validations have answered other examples"):
        read(split="validation")
    assert len(read().groups) == 2


def test_a_bundle_is_left_out(seeds, read, tmp_path_factory):
    place = tmp_path_factory.mktemp("bundle") / "exported"
    bundle.export(runs.load(seeds / "a_1"), place)
    found = collect([f"{seeds}/a_1", str(place)])
    assert found.left_out == {
        str(place): "a bundle, which keeps no scores: name its run"
    }


def test_runs_without_a_split_in_common_are_refused(seeds, read):
    for name in ("scores.json", "result.json"):
        path = seeds / "a_1" / name
        found = json.loads(path.read_text())
        scores = found if name == "scores.json" else found["scores"]
        scores["dev"] = scores.pop("test")
        path.write_text(json.dumps(found))
    found = read()  # the last validation is what all have
    assert found.split == "validation" and len(found.groups) == 2
    (seeds / "a_1" / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="have no scores of the same split"):
        read()


def test_one_run_or_one_seed_each_is_shown_without_tests(seeds):
    alone = collect([f"{seeds}/a_1"])
    assert alone.groups[0].name == f"{seeds}/a_1" and not alone.differences()
    said = tables.write_text(collect([f"{seeds}/a_1", f"{seeds}/b_1"]))
    assert "2 runs in 2 groups" in said and "corrected" not in said and "30.10" in said


def test_the_command_writes_by_the_ending_of_the_output(seeds, tmp_path, run_main):
    assert run_main(command, f"--files={seeds}").startswith("report     6 runs")
    for ending, begins in ((".html", "<!doctype html>"), (".csv", "group,")):
        output = tmp_path / f"report{ending}"
        said = run_main(command, f"--files={seeds}", f"--output={output}")
        assert said == f"written    {output}\n"
        assert output.read_text().startswith(begins)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--output=x.pdf", "--files=."], "end its name in .html, .csv, .txt"),
        ([], "name runs, or a folder of runs"),
    ],
)
def test_a_command_line_that_cannot_work_is_refused(words, says, run_main, capsys):
    with pytest.raises(SystemExit):
        run_main(command, *words)
    assert says in capsys.readouterr().err
