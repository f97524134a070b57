"""Groups of seeds: how they are named, checked, scored and compared."""

import functools
import json
import math
import re
import statistics

import pytest
from seeded import SCORES, change, put_scores

from transformer_jax import config, evaluate
from transformer_jax.base.errors import UserError
from transformer_jax.report import groups, significance
from transformer_jax.report.significance import Difference
from transformer_jax.runs import run as runs
from transformer_jax.runs.folder import Folder, find_runs

# Student's t: a printed table's figures.
TABLE = {
    (0.975, 1): 12.706, (0.975, 2): 4.303, (0.975, 3): 3.182, (0.975, 4): 2.776,
    (0.975, 10): 2.228, (0.975, 30): 2.042, (0.975, 120): 1.980, (0.95, 5): 2.015,
    (0.995, 7): 3.499, (0.9995, 2): 31.599, (0.8, 4): 0.941,
}  # fmt: skip


@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (3, 7), (5, 2)])
def test_the_interval_is_scipys(sizes):
    stats = pytest.importorskip("scipy.stats")
    a = tuple(31 + math.sin(7 * i) for i in range(sizes[0]))
    b = tuple(31.5 + 3 * math.cos(5 * i) for i in range(sizes[1]))
    found = Difference("BLEU", "a", "b", a, b)
    wanted = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    assert found.measured - found.interval == pytest.approx(wanted.low)
    assert found.measured + found.interval == pytest.approx(wanted.high)


def test_welchs_own_numbers():
    # Worked by hand: means 2 and 6, variances 1 and 4, so s² = 1/3 + 4/3 = 5/3 and
    # ν = (5/3)² / ((1/3)²/2 + (4/3)²/2) = 50/17.
    error, freedom = significance.welch((1.0, 2.0), (3, 3))
    assert error == pytest.approx(math.sqrt(5 / 3))
    assert freedom == pytest.approx(50 / 17)
    found = Difference("BLEU", "a", "b", (1, 2, 3), (4, 6, 8))
    assert found.means == (2, 6) and found.deviations == (1, 2)
    tiny = significance.welch((1e-200, 2e-200), (3, 3))
    assert tiny[1] == pytest.approx(50 / 17)


def apart(gap, a=(-1.0, 0.0, 1.0)):
    """Two groups whose means are so many standard deviations apart."""
    return Difference("BLEU", "a", "b", a, tuple(x + gap for x in (-1.0, 0.0, 1.0)))


@pytest.mark.parametrize(("gap", "size"), [(1.0, 17), (0.8, 26), (0.5, 64)])
def test_the_seeds_needed_are_those_of_cohens_tables(gap, size):
    """Cohen (1988): two-sided level 0.05, power 0.8."""
    for sign in (1, -1):
        assert apart(sign * gap).seeds_needed == size


def test_p_is_scipys_and_agrees_with_the_interval():
    stats = pytest.importorskip("scipy.stats")
    for gap in (0.5, 2.0, 2.3, 9.0):
        found = apart(gap)
        wanted = stats.ttest_ind(found.values, found.baseline_values, equal_var=False)
        assert found.p == pytest.approx(wanted.pvalue)
        assert (found.p < 0.05) == found.is_seen
    assert Difference("BLEU", "a", "b", (1.0, 1.0), (2.0, 2.0)).p == 1


def test_several_p_values_are_corrected_by_holms_steps():
    # Holm's procedure by hand: 3 × 0.01, 2 × 0.02, then 0.03 < 0.04.
    assert significance.holm([0.02, 0.03, 0.01]) == pytest.approx([0.04, 0.04, 0.03])
    assert significance.holm([0.9, 0.6]) == [1, 1] and significance.holm([]) == []
    said = significance.describe_corrected({"BLEU": 0.03, "chrF": 0.04})
    assert said == (
        "2 metrics were tested, each at 5 % by itself. Corrected for their number "
        "(Holm): BLEU p = 0.06, chrF p = 0.06"
    )
    assert significance.describe_corrected({"BLEU": 0.03}) == ""


def test_a_difference_beyond_the_seeds_is_said():
    said = significance.describe(apart(9))
    assert "(95 % interval over seeds: +6.7330 to +11.2670, Welch's t)" in said
    assert "beyond what the seeds vary by: b is higher than a" in said
    assert "b is lower than a" in significance.verdict(apart(-9))


def test_a_difference_within_the_seeds_says_how_many_would_show_it():
    assert significance.verdict(apart(1)) == (
        "no difference can be told: the seeds vary by more. If it is as large as "
        "measured, about 17 seeds of each would show it four times in five: 14 more "
        "of b and 14 more of a"
    )
    more = tuple(-1 + i / 8 for i in range(17))  # these are enough of one
    said = significance.verdict(apart(0.9, more))
    assert said.endswith(" more of b") or said.endswith("more of a"), said
    assert "even 1,000 seeds" in significance.verdict(apart(0.01))
    assert "the means are equal" in significance.verdict(apart(0))


def test_seeds_that_score_alike_say_nothing_of_others():
    found = Difference("BLEU", "a", "b", (99.0, 99.0), (100.0, 100.0))
    assert found.interval is None and not found.is_seen
    assert "interval" not in significance.describe(found)
    assert "score exactly alike" in significance.verdict(found)
    alone = Difference("BLEU", "a", "b", (99.0, 99.0), (100.0, 100.5))
    assert alone.interval > 0  # one side varies


def test_a_group_is_named_by_what_its_paths_share():
    name = significance.name_groups
    assert name(["r/a_1", "r/a_2"], ["r/b_1", "r/b_2"]) == ("r/a_*", "r/b_*")
    assert name(["r/1", "r/2"], ["r/3", "r/4"]) == ("r/1, r/2", "r/3, r/4")
    assert name(["a", "b"], ["r/3", "r/4"]) == ("a, b", "r/3, r/4")


def test_runs_are_named_by_commas_patterns_repetition_and_their_folder(tmp_path):
    paths = [str(tmp_path / name) for name in ("a_1", "a_2", "b,c", "d[1]")]
    a, b, comma, bracket = paths
    for path in paths:
        (tmp_path / path).mkdir()
    (tmp_path / "a_3").write_text("no directory")
    find = functools.partial(find_runs, "workdir")
    assert find([f"{a},{b}"]) == find([a, b]) == find([f"{tmp_path}/a_*"]) == [a, b]
    assert find([comma, bracket]) == [comma, bracket]
    assert find([f"{b},gs://bucket/x"]) == [b, "gs://bucket/x"]
    with pytest.raises(UserError, match=r"q_\*: no directory has such a name"):
        find([f"{tmp_path}/q_*"])
    runs_of = [tmp_path / "sweep" / f"seed_{i}" for i in (2, 9, 10)]
    for path in runs_of:
        (path / "inside").mkdir(parents=True)
        (path / "config.json").write_text("{}")
        (path / "inside" / "config.json").write_text("{}")  # such as a tokenizer's
    found = [str(path) for path in runs_of]
    assert find([f"{tmp_path}/sweep"]) == find([f"{tmp_path}/sw*"]) == found
    assert find(found[:1]) == found[:1]


@pytest.fixture
def compare(run_main):
    """A function: what `evaluate` prints of groups."""
    return functools.partial(run_main, evaluate)


def test_groups_are_compared_by_the_scores_that_their_runs_have(seeds, compare):
    out = compare(
        f"--workdir={seeds}/b_*", "--split=test",
        *(f"--compare={seeds}/a_{i}" for i in (1, 2, 3)),
    )  # fmt: skip
    assert out.count("scores.json") == 6 and "scored now" not in out
    for name in ("BLEU", "chrF"):
        assert f"{name}: mean ± standard deviation over seeds" in out
    a, b = SCORES["a"], SCORES["b"]
    for name, values in (("a", a), ("b", b)):
        said = f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
        assert f"3 seeds  {said}  {seeds}/{name}_*" in out
    stats = pytest.importorskip("scipy.stats")
    interval = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    assert (
        f"difference  {statistics.mean(b) - statistics.mean(a):+.2f}  (95 % interval "
        f"over seeds: {interval.low:+.2f} to {interval.high:+.2f}, Welch's t)"
    ) in out
    assert f"beyond what the seeds vary by: {seeds}/b_* is higher than" in out


@pytest.mark.system
def test_a_run_without_its_scores_is_scored_and_keeps_them(
    seeds, compare, tiny_run, one_device
):
    (seeds / "a_2" / "scores.json").unlink()
    put_scores(seeds / "b_3", step=1)  # of other parameters
    out = compare(f"--workdir={seeds}/a_*", "--split=test", f"--compare={seeds}/b_*")
    assert out.count(", scores.json: ") == 4
    assert re.search(r"a_2  seed 2, averaged parameters of step \d+, scored now", out)
    wanted = json.loads((tiny_run / "scores.json").read_text())["test"]
    for name in ("a_2", "b_3"):
        found = json.loads((seeds / name / "scores.json").read_text())["test"]
        assert found["bleu"] == wanted["bleu"] and found["step"] == wanted["step"]


def test_scores_are_taken_only_of_the_same_parameters_search_and_data(seeds):
    member, _ = groups.open_groups(
        *([f"{seeds}/{n}_{i}" for i in (1, 2)] for n in "ab")
    )
    member = member[0]
    options = runs.decode_options(member.config)

    def find(weights="", **changes):
        searched = runs.decode_options(member.config, **changes)
        return groups.find_scores(member, "test", "test", weights, searched)

    assert find()["bleu"] == 30.1
    assert find("last") is None and find(beams=options.beams + 1) is None
    for wrong in ({"bleu": "x"}, {"bleu": math.nan}, {"schema": 1}, {"alpha": 3.0}):
        before = (member.folder.path / "scores.json").read_text()
        put_scores(member.folder.path, **wrong)
        assert find() is None, wrong
        (member.folder.path / "scores.json").write_text(before)
    ledger = member.folder.read_note("ledger.json")
    for key in ("fingerprint", "content"):
        other = {**ledger, "test": {**ledger["test"], key: "other"}}
        member.folder.write("ledger.json", other)
        assert find() is None, key
    member.folder.write("ledger.json", ledger)
    assert find() is not None


def spoil_seed(seeds):
    change(seeds / "a_2", seed=3)


def spoil_config(seeds):
    change(seeds / "a_3", train__steps=13, decode__alpha=0.7)


def spoil_ledger(seeds):
    path = seeds / "a_2" / "ledger.json"
    ledger = json.loads(path.read_text())
    ledger["train"] |= {"content": "other", "examples": 79}
    path.write_text(json.dumps(ledger))


def spoil_test_data(seeds):
    for i in (1, 2, 3):
        change(seeds / f"a_{i}", data__test_size=10)


def spoil_case(seeds):
    put_scores(seeds / "a_2", bleu_signature="nrefs:1|case:lc")


@pytest.mark.parametrize(
    ("spoil", "theirs", "says"),
    [
        (None, "b_1", "--workdir names 3 runs and --compare 1 run: a group needs two"),
        (
            None,
            "b_1,{}/b_2,{}/b_1/",
            "b_1 and .*b_1/? are the same run: name each once",
        ),
        (None, "b_1,{}/b_2,{}/a_1", "b_1|a_1 and .*a_1 are the same run: name each"),
        (spoil_seed, "b_*", "a_2 and .*a_3 both have the seed 3: .*--config.seed=4"),
        (
            spoil_config,
            "b_*",
            "--workdir: decode.alpha is 0.6 in .*a_1 and 0.7 in .*a_3: the runs of a "
            "group differ by their seed alone; .*\n.*train.steps is 12 in .* and 13 in",
        ),
        (spoil_ledger, "b_*", "a_1 was trained on 80 examples and .*a_2 on 79 others"),
        (
            spoil_test_data,
            "b_*",
            r"the test data of .*a_1 \(10 examples\) are not those",
        ),
        (
            spoil_case,
            "b_*",
            "bleu_signature is .*case:mixed.* of .* and nrefs:1.case:lc of .*a_2: "
            "score both by the same rules",
        ),
    ],
)
def test_what_is_no_two_groups_is_refused(seeds, compare, spoil, theirs, says):
    if spoil:
        spoil(seeds)
    with pytest.raises(UserError, match=says):
        compare(
            f"--workdir={seeds}/a_*", "--split=test",
            f"--compare={seeds}/{theirs.format(seeds, seeds)}",
        )  # fmt: skip


def test_groups_of_two_tasks_are_refused(tmp_path, monkeypatch):
    def open_member(path):
        given = config.base("masked" if "a_" in path else "language")
        given.seed = int(path[-1])
        return groups.Member(Folder(tmp_path / path), given)

    monkeypatch.setattr(groups, "open_member", open_member)
    said = "--compare: .*b_1 was trained for the task language, .*a_1 for masked"
    with pytest.raises(UserError, match=said):
        groups.open_groups(["a_1", "a_2"], ["b_1", "b_2"])


def test_a_score_that_is_no_number_is_refused(seeds):
    group, _ = groups.open_groups(*([f"{seeds}/{n}_{i}" for i in (1, 2)] for n in "ab"))
    with pytest.raises(UserError, match="the BLEU of .*a_1 is nan: leave out this run"):
        groups.measure(group[0], {"bleu": math.nan, "chrf": 50.0})


def test_what_changes_no_answer_may_differ_within_a_group(seeds, compare):
    change(seeds / "a_3", log__every=7, model__remat="full", timeout__save=11)
    assert compare(f"--workdir={seeds}/a_*", "--split=test", f"--compare={seeds}/b_*")


def test_answers_of_a_group_are_not_written(seeds, compare, capsys):
    with pytest.raises(SystemExit):
        compare(f"--workdir={seeds}/a_*", "--split=test", "--answers=x")
    assert "--answers is for one run" in capsys.readouterr().err
