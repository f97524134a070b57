"""Error analysis: each rule on made-up sentences, and the analysis of a tiny run."""

import dataclasses
import html.parser
import random
import shutil

import pytest

from transformer_jax import cli, evaluate
from transformer_jax.base.errors import UserError
from transformer_jax.data.reading.records import Tagged
from transformer_jax.report.analysis import analyser, faults, sections, words
from transformer_jax.report.analysis.faults import Sentence
from transformer_jax.report.analysis.output import Analysis
from transformer_jax.report.analysis.sections import Sections, System
from transformer_jax.report.analysis.training_text import TrainingText
from transformer_jax.report.analysis.words import Names, Span
from transformer_jax.tasks.parts.scoring import LabelScoring

GOOD = Sentence(
    "Am 3. Mai sah Tom zwei kleine Hunde.",
    "On May 3, Tom saw two small dogs.",
    "Tom saw two little dogs on May 3.",
    chrf=61.0,
    names={"tom": "Tom", "mary": "Mary"},
    vocabulary=set("on may tom saw two small little dogs".split()),
)
FAULTS = [  # rule, what differs from GOOD, what is found
    ("empty", {"answer": " "}, "empty"),
    ("unfinished", {"answer": "On May 3, Tom saw two"}, "ends in 'two'"),
    ("unfinished", {"answer": "On 3 May Tom saw two »dogs.«"}, "ends in '«'"),
    ("copy of the source", {"answer": "May 3 zwei kleine Hunde."}, "zwei, kleine, hun"),
    ("copy of the source", {"answer": "Hunde."}, "copied: hunde"),
    ("repetition", {"answer": "Tom saw saw dogs on 3 May."}, "again: saw"),
    ("repetition", {"answer": "Tom saw two and Tom saw two."}, "again: tom saw two"),
    ("hallucination", {"answer": "He likes tea.", "chrf": 9.9}, "almost nothing"),
    ("hallucination", {"seen": 0.2}, "looks at 20% of"),
    ("missing name or number", {"answer": "He saw 2 dogs."}, "missing: 3, Tom"),
    ("added name or number", {"answer": "mary, Tom: 3 and 30."}, "added: 30, Mary"),
    ("unknown word", {"answer": "Tom saw two dogglings."}, "unknown: dogglings"),
    ("too short", {"answer": "Tom saw dogs 3."}, "0.45 of the reference"),
    ("too long", {"answer": "Tom saw the dogs, " * 3 + "3."}, "1.70 of the reference"),
    ("source word not translated", {"unread": ("Hunde",)}, "not looked at: Hunde"),
]


@pytest.mark.parametrize(("name", "change", "found"), FAULTS)
def test_each_rule_finds_its_fault_and_none_in_a_good_answer(name, change, found):
    [rule] = [rule for rule in faults.RULES if rule.name == name]
    assert found in rule.find(dataclasses.replace(GOOD, **change))
    assert rule.find(GOOD) == ""


def test_every_rule_has_an_example_above():
    assert {rule.name for rule in faults.RULES} == {name for name, *_ in FAULTS}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("empty", {"answer": "", "reference": ""}),
        ("unfinished", {"answer": "Tom saw »dogs.”", "reference": "Dogs."}),
        ("unfinished", {"answer": "dogs", "reference": "two dogs"}),
        (
            "copy of the source",
            {"source": "Tom!", "answer": "Tom!", "reference": "Tom."},
        ),
        ("repetition", {"answer": "so so", "reference": "so so"}),
        ("hallucination", {"answer": "", "chrf": 0.0}),  # it has another fault
        ("hallucination", {"answer": "so so so", "chrf": 0.0}),
        ("hallucination", {"source": "Nein, danke schön!", "seen": 0.2}),
        ("missing name or number", {"answer": "tom, 3"}),  # a system without capitals
        ("unknown word", {"answer": "dogglings", "vocabulary": None}),
        ("unknown word", {"answer": "hunde"}),  # a copy, not an invention
        ("too short", {"answer": "No.", "reference": "Of course not."}),
    ],
)
def test_what_is_no_fault(name, change):
    [rule] = [rule for rule in faults.RULES if rule.name == name]
    assert rule.find(dataclasses.replace(GOOD, **change)) == ""


def test_numbers_are_the_same_with_other_separators():
    assert words.numbers("12.500 Euro um 9:30") == words.numbers("12,500 at 9.30")
    assert words.numbers("1,5") != words.numbers("1 5")


def test_unread_words_are_needed_for_the_reference_alone():
    source = ["Der", "Hund", "bellt", "laut", "–"]
    for_answer, for_reference = [0.0, 0.1, 0.9, 0.1, 0.0], [0.9, 0.9, 0.9, 0.3, 0.9]
    found = faults.unread_words(source, for_answer, for_reference, {"Der"})
    assert found == ("Hund",)  # "laut" is hardly needed, "–" is no word


def test_tokens_keep_numbers_and_hyphens_and_divide_chinese():
    assert words.tokens("Tom's half-day: 3,500 m.") == [
        "Tom's", "half-day", ":", "3,500", "m", "."
    ]  # fmt: skip
    assert words.tokens("我爱TV。") == ["我", "爱", "TV", "。"]
    assert words.words("The End!") == ["the", "end"]


def test_names_are_capitalised_on_both_sides_and_rarely_otherwise():
    names = Names()
    names.add("Tom gab Maria die Hand. In Rom.", "Tom gave Mary a hand. In Rome.")
    names.add("In der Hand.", "Hand in hand, in the hand.")
    assert names.known() == {"tom": "Tom"}
    assert words.names_in("TOM's hand", names.known()) == {"Tom"}
    assert names.vocabulary() >= {"gave", "mary"} and "gab" not in names.vocabulary()


def test_marks_name_words_that_differ_by_whether_the_reference_has_them():
    found = words.mark("The big dog sleeps.", "The dog sleeps now.")
    assert found == [Span("The "), Span("big", "wrong"), Span(" dog sleeps.")]
    found = words.mark("The big dog", "The dog", "A big cat")
    assert found == [
        Span("The", "right"), Span(" big "), Span("dog", "right")
    ]  # fmt: skip


@pytest.fixture
def training():
    """A function: the training text of some pairs."""

    def read(*pairs, **how):
        records = [{"source": s, "target": t} for s, t in pairs]
        return TrainingText(records, Names(), **how)

    return read


def test_the_nearest_pair_is_that_of_a_search_through_all(training, monkeypatch):
    monkeypatch.setattr("transformer_jax.report.analysis.training_text.BLOCK", 7)
    draw = random.Random(3)
    syllables = "ka to mi sel ra bu".split()

    def sentence():
        return " ".join("".join(draw.choices(syllables, k=2)) for _ in range(4))

    pairs = [(sentence(), f"target {i}") for i in range(53)]
    queries = [sentence() for _ in range(5)] + [pairs[17][0].upper(), "", "ö"]

    def grams(text):
        text = f" {text.lower()} "
        return {text[i : i + 4] for i in range(len(text) - 3)}

    found = training(*pairs).nearest(queries)
    assert found[5] == (1.0, pairs[17])
    for query, (overlap, pair) in zip(queries, found, strict=True):
        scores = [
            2 * len(grams(query) & grams(source))
            / max(len(grams(query)) + len(grams(source)), 1)
            for source, _ in pairs
        ]  # fmt: skip
        assert overlap == pytest.approx(max(scores))
        assert pair == pairs[scores.index(max(scores))]
    assert training(*pairs).nearest(["", "ö"])[1] == (0.0, ("", ""))


def system(name, *answers, references, chrf=50.0):
    """A system whose sources are "a b c …" of different lengths."""
    rows = enumerate(zip(answers, references, strict=True))
    return System(
        name,
        [Sentence("a " * (1 + 5 * i), r, a, chrf + i) for i, (a, r) in rows],
    )


def test_groups_are_scored_alone_and_words_by_their_frequency(training):
    references = ["the cat sleeps", "the dog barks loudly now"]
    text = training(("a", "the the the"), ("b", "cat"), ("b b b", "dog the the"))
    one = system("x", "the cat runs", "the dog barks loudly now", references=references)
    parts = Sections([one], faults.RULES, text).make({"<2en>": [0], "<2de>": [1]})
    tables = {part.title: part.table for part in parts}
    assert [row[0] for row in tables["scores by length"]] == ["words", "1–5", "6–10"]
    assert tables["scores by length"][2][1:] == ["1", "100.00", "100.00"]
    assert [row[0] for row in tables["scores by tag"]] == ["tag", "<2en>", "<2de>"]
    assert "scores by rarest word" not in tables  # all sources have the same
    assert tables["words by frequency"] == [
        ["times", "words", "precision", "recall", "F1"],
        ["0", "4", "75.0%", "75.0%", "75.0%"],  # sleeps; runs; barks loudly now
        ["1", "2", "100.0%", "100.0%", "100.0%"],
        ["5–9", "2", "100.0%", "100.0%", "100.0%"],
    ]
    rarest = [Sentence(source, "r", "r") for source in ("a", "b a", "c")]
    parts = Sections([System("x", rarest)], (), text).make({})
    [table] = [part.table for part in parts if part.title == "scores by rarest word"]
    assert [row[:2] for row in table[1:]] == [["0", "1"], ["1", "2"]]
    worst = next(part for part in parts if part.title == "worst sentences")
    assert [label for label, _ in worst.examples[0].lines][-1] == "its target"


def test_two_systems_are_shown_side_by_side_where_they_differ_most():
    references = ["one", "two", "three"]
    a = system("x", "one", "too", "three", references=references, chrf=50.0)
    b = system("y", "won", "two", "three", references=references, chrf=50.0)
    b.sentences[0], b.sentences[1] = (
        dataclasses.replace(one, chrf=score)
        for one, score in zip(b.sentences, (20.0, 90.0), strict=False)
    )
    parts = {part.title: part for part in Sections([a, b], (), None).make({})}
    [first], [second] = (parts[f"{x} is better"].examples for x in "AB")
    assert first.heading == "sentence 1: chrF A 50.0, B 20.0"
    assert dict(first.lines)["A"] == [Span("one", "right")]
    assert dict(second.lines)["A"] == [Span("too", "wrong")]
    assert parts["faults"].table[0][1:] == [
        "sentences A", "share A", "sentences B", "share B"
    ]  # fmt: skip


class Reader(html.parser.HTMLParser):
    """Check that all tags are closed in order; count what links elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.links, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        self.open += [tag] * (tag != "meta")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_well_formed_escaped_and_needs_nothing_else():
    lines = [("answer", [Span("<b>&"), Span("x", "wrong")])]
    examples = [sections.Example(f"sentence {i}", lines) for i in range(5)]
    part = sections.Section(
        "faults <", "a & b", [["fault", "n"], ["<i>", "2"]], examples
    )
    found = Analysis("Analysis of <x>", ["x"], [part], ["Left out: <y>"])
    reader = Reader()
    reader.feed(found.page())
    assert not reader.open and not reader.links
    assert "<b>&x" in reader.text and "Left out: <y>" in reader.text
    assert "2 more" in reader.text and "sentence 4" in reader.text
    text = found.text()
    assert "    answer  <b>&[-x]" in text and "sentence 3" not in text


def records_of(run, count):
    return list(run.records("test"))[:count]


def rule_names(found):
    [table] = [part.table for part in found.sections if part.title == "faults"]
    return [row[0] for row in table[1:]]


def test_what_cannot_be_analysed_is_named(run, monkeypatch):
    records = records_of(run, 5)
    answers = [record["target"] for record in records]

    def refuse(self, split):
        raise UserError(f"there is no {split}.tsv")

    lost = dataclasses.replace(run, task=dataclasses.replace(run.task, inspector=None))
    monkeypatch.setattr(type(run), "records", refuse)
    found = analyser.analyse({"x": (lost, answers)}, records)
    assert "training text (there is no train.tsv)" in found.left_out[0]
    assert "the model has no cross-attention: the rules use words" in found.left_out[1]
    titles = [part.title for part in found.sections]
    assert "words by frequency" not in titles and "worst sentences" in titles
    assert rule_names(found) == [
        r.name for r in faults.RULES if not r.needs & {"training", "attention"}
    ]
    replies = run.config.copy_and_resolve_references()
    with replies.unlocked():
        replies.task = "conversation"
    found = analyser.analyse(
        {"x": (dataclasses.replace(run, config=replies), answers)}, records
    )
    assert "does not say what its source says" in found.left_out[1]
    assert rule_names(found) == [r.name for r in faults.RULES if not r.needs]


def test_attention_and_training_text_reach_the_rules(run):
    records = records_of(run, 7)
    answers = [record["target"] for record in records[:-1]] + [""]
    found = analyser.analyse({"x": (run, answers)}, records)
    assert not found.left_out and found.title == "Analysis of 7 answers of x"
    rows = {row[0]: row[1:] for part in found.sections for row in part.table}
    assert rows["empty"] == ["1", "14.3%"] and rows["unknown word"] == ["0", "0.0%"]
    assert "words by frequency" in [part.title for part in found.sections]
    looks = analyser._look(run, records, answers, answers)
    assert all(0 < seen <= 1 for seen, _ in looks)
    assert not any(unread for _, unread in looks)  # the same text needs the same


def test_tags_are_scored_apart_and_are_no_words(run):
    records = [
        {"source": Tagged(r["source"], f"<{i % 2}>"), "target": r["target"]}
        for i, r in enumerate(records_of(run, 5))
    ]
    answers = [record["target"] for record in records]
    plain = dataclasses.replace(run, task=dataclasses.replace(run.task, inspector=None))
    found = analyser.analyse({"x": (plain, answers)}, records)
    first = found.sections[0]
    assert first.title == "scores by tag"
    assert [row[:2] for row in first.table[1:]] == [["<0>", "3"], ["<1>", "2"]]
    shown = dict(found.sections[-1].examples[0].lines)["source"][0].text
    assert not shown.startswith("<")


def test_a_task_that_is_not_scored_by_bleu_is_refused_in_words(run):
    config = run.config.copy_and_resolve_references()
    with config.unlocked():
        config.task = "classification"
    task = dataclasses.replace(run.task, scoring=LabelScoring())
    said = (
        "--analyse is for runs of the task conversation or translation, and the task "
        "classification is judged by accuracy.*: use --answers=FILE to read"
    )
    with pytest.raises(UserError, match=said):
        analyser.refuse_unfit(dataclasses.replace(run, config=config, task=task))


def test_a_group_of_runs_is_not_analysed(run_main, capsys):
    with pytest.raises(SystemExit):
        run_main(evaluate, "--workdir=A,B", "--split=test", "--analyse=-")
    assert "--analyse is for one run, or one and another" in capsys.readouterr().err


def test_the_name_of_the_page_may_be_left_out():
    words = ["evaluate", "--analyse", "--split=test"]
    assert cli._spell_out(words) == ["evaluate", "--analyse=-", "--split=test"]
    words[1] = "--analyse=x.html"
    assert cli._spell_out(words) == words


@pytest.mark.system
def test_evaluate_analyses_a_run_and_another(tiny_run, run_main, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "other")
    page = tmp_path / "page.html"
    said = run_main(
        evaluate, f"--workdir={tiny_run}", f"--compare={tmp_path / 'other'}",
        "--split=test", f"--analyse={page}", "--beams=1",
    )  # fmt: skip
    assert f"Analysis of 11 answers of {tiny_run} and {tmp_path / 'other'}" in said
    assert f"\nA = {tiny_run}\nB = {tmp_path / 'other'}\n" in said
    assert "\nwords by frequency\n" in said and "\nworst sentences\n" in said
    assert "is better\n" not in said  # they are the same
    assert said.endswith(f"\nwritten    {page}\n")
    assert "worst sentences" in page.read_text(encoding="utf-8")
