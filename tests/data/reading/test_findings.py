"""Findings: each fault of a corpus is reported with its place; clean text has none."""

import functools
import os
import random
import subprocess
import sys

import pytest

from transformer_jax.corpora import phrasebook
from transformer_jax.data.reading import findings
from transformer_jax.data.reading.findings import (
    Finding,
    Overlap,
    Split,
    find_words,
    inspect_corpus,
    inspect_sides,
    inspect_split,
)


@functools.cache
def pairs(size=500, name="train"):
    return tuple((p.source, p.target) for p in phrasebook.generate(name, size))


def make(texts, name="train"):
    records = [{"source": source, "target": target} for source, target in texts]
    return Split(name, records, lambda i, side: f"{name}, line {i + 1}")


def inspect(texts) -> list[Finding]:
    return inspect_split(make(texts))


def find(found, words) -> Finding:
    """The one finding that says this."""
    (finding,) = [f for f in found if words in f.text]
    return finding


def mean(found, words) -> bool:
    return any(words in f.text for f in found)


def damage(texts, damaged, side=0):
    """The pairs with the lines {index: new text} of one side."""
    texts = [list(pair) for pair in texts]
    for i, text in damaged.items():
        texts[i][side] = text
    return [tuple(pair) for pair in texts]


def with_targets(texts, targets):
    return [
        (source, target) for (source, _), target in zip(texts, targets, strict=True)
    ]


def test_clean_text_has_no_findings():
    held_out = [make(pairs(200, name), name) for name in ("validation", "test")]
    found = inspect_corpus(make(pairs(2000)), held_out)
    assert list(found) == [
        "train",
        "validation",
        "train and validation",
        "test",
        "train and test",
    ]
    assert not found["train"] + found["validation"] + found["test"]
    assert not any(finding.serious for both in found.values() for finding in both)


def test_a_split_without_pairs_is_serious():
    assert inspect([]) == [Finding(True, "there are no pairs")]


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "are empty"),
        (" \t", "are empty"),
        ("O gato dorme. ", "begin or end with white space"),
        ("\u00a0O gato dorme.", "begin or end with white space"),
        ("O cora\ufffdo dorme.", "contain U+FFFD"),
        ("O gato\0dorme.", "control or invisible"),
        ("O gato\tdorme.", "control or invisible"),
        ("O gato\rdorme.", "control or invisible"),
        ("\ufeffO gato dorme.", "control or invisible"),
        ("O ga\u200bto dorme.", "control or invisible"),
        ("O gato \x96 ali.", "control or invisible"),
        ("O gato &amp; o rato.", "HTML entities"),
        ("O gato &#39;dorme&#x27;.", "HTML entities"),
        ("O gato @-@ rato dorme.", "tokenizer's marks"),
        ("O ga@@ to dorme.", "tokenizer's marks"),
        ("▁O ▁gato dorme.", "tokenizer's marks"),
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_a_damaged_line_is_named_with_its_place(text, says, side):
    finding = find(inspect(damage(pairs(), {16: text, 234: text}, side)), says)
    name = ("source", "target")[side]
    assert finding.text.startswith(f"2 of 500 {name}s (0.40 %) ")
    assert not finding.serious
    assert finding.examples == (
        f"train, line 17, {name}: {text!r}",
        f"train, line 235, {name}: {text!r}",
    )
    many = inspect(damage(pairs(), {i: text for i in range(5, 500, 67)}, side))
    assert find(many, says).serious == ("white space" not in says)


def test_the_serious_findings_come_first():
    texts = damage(pairs(), {i: "O gato &amp; o rato." for i in range(0, 500, 10)})
    found = [f.serious for f in inspect(damage(texts, {5: "", 6: " Sim.", 7: "@@"}))]
    assert found.count(False) > 2 and found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    "text",
    [
        "über die Brücke",
        "Ärger in Österreich",
        "l’été à Noël",
        "не сегодня",
        "今日は晴れです",
        "žluťoučký kůň",
    ],
)
@pytest.mark.parametrize("read_as", ["cp1252", "latin-1"])
def test_text_encoded_twice_is_found(text, read_as):
    twice = text.encode().decode(read_as, errors="replace")
    assert mean(inspect(damage(pairs(), {5: twice})), "encoded twice")


@pytest.mark.parametrize(
    "text",
    [
        "„So ein Spaß“, sagte er – „großer Spaß…“",
        "«Au Café»… dit-elle à l’été",
        "NÃO É A IRMÃ DE SÃO JOÃO, MAS A MÃE “DELA”",
        "La España de «CORUÑA» “Ñ”",
        "Đà Nẵng, Â Ê Ô Ơ, rất đẹp…",
        "не сегодня — «завтра»",
        "今日は「晴れ」です…",
        "Åse på Øya – «Ålesund»",
    ],
)
def test_text_encoded_once_is_not_suspected(text):
    assert not mean(inspect(damage(pairs(), {5: text})), "encoded twice")


def test_other_characters_are_not_taken_for_control_characters():
    plain = damage(pairs(), {5: "Il a dit\u00a0: «\u202fmerci\u00a0!\u202f» 👨‍👩‍👧"})
    assert not mean(inspect(plain), "invisible")


def test_spaced_punctuation_is_tokenised_text():
    def tokenise(text):
        return text.replace(".", " .").replace(",", " ,").replace("?", " ?")

    spaced = [(tokenise(source), target) for source, target in pairs()]
    finding = find(inspect(spaced), "as if tokenised")
    assert finding.serious and "sacreBLEU" in finding.text
    assert "sources" in finding.text
    few = inspect(spaced[:10] + list(pairs()[10:]))
    assert not mean(few, "as if tokenised")
    some = inspect(spaced[:50] + list(pairs()[50:]))
    assert not find(some, "as if tokenised").serious
    assert not mean(
        inspect([(f"{s} ?", "Oui !") for s, _ in pairs()]), "as if tokenised"
    )


def test_spaced_punctuation_is_not_a_fault_if_the_task_wants_it():
    records = [{"source": "he ran .", "target": "(S (NP XX )NP XX )S"}] * 40
    for apart in (False, True):
        split = Split("train", records, lambda i, side: f"line {i + 1}", apart)
        assert mean(inspect_split(split), "as if tokenised") != apart


def test_lower_cased_text_is_noted():
    lower = inspect([(source, target.lower()) for source, target in pairs()])
    finding = find(lower, "no capital letter")
    assert finding.text.startswith("500 of 500 targets (100.00 %)")
    assert not finding.serious
    half = [(source.lower(), target) for source, target in pairs()[:250]]
    assert not mean(inspect(half + list(pairs()[250:])), "no capital letter")
    chinese = [(source, "今日は晴れです。") for source, _ in pairs()]
    assert not mean(inspect(chinese), "no capital letter")


def test_targets_equal_to_their_sources_are_counted():
    few = {3: pairs()[3][0], 8: pairs()[8][0]}
    finding = find(inspect(damage(pairs(), few, side=1)), "equal to the source")
    assert finding.text.startswith("2 of 500 pairs (0.40 %)")
    assert not finding.serious
    assert finding.examples[0].startswith("train, line 4: ")
    many = {i: pairs()[i][0] for i in range(0, 500, 10)}
    assert find(inspect(damage(pairs(), many, 1)), "equal to the source").serious
    empty = [("", "")] * 3 + list(pairs())
    assert not mean(inspect(empty), "equal to the source")


def test_repeated_pairs_are_counted_with_the_most_frequent():
    again = [pairs()[0]] * 3 + [pairs()[7]]
    finding = find(inspect(list(pairs()) + again), "repeat an earlier one")
    assert finding.text.startswith("4 of 504 pairs (0.79 %)")
    assert "one occurs 4 times" in finding.text
    assert finding.examples[0].startswith("train, line 501: ")
    assert not finding.serious
    assert find(inspect(pairs() * 3), "repeat an earlier one").serious


def test_sides_with_several_partners_are_counted():
    (one, its), (two, other) = pairs()[:2]
    more = [
        (one, "Something."),
        (one, "Another thing."),
        (two, "Nothing."),
        (two, other),
    ]
    found = inspect(list(pairs()) + more + [("Algo.", other)])
    finding = find(found, "have several targets")
    assert finding.text.startswith("2 of 501 different sources (0.40 %)")
    assert "up to 3" in finding.text
    assert finding.examples == (  # the most ambiguous first
        f"train, line 1, source: {one!r}",
        f"train, line 2, source: {two!r}",
    )
    finding = find(found, "have several sources")
    assert finding.examples == (f"train, line 2, target: {other!r}",)


def test_odd_ratios_of_lengths_are_shown_with_the_worst_first():
    long = "The cat sleeps in the garden of the house of the teacher."
    texts = damage(pairs(), {11: long, 40: f"{long} {long} {long}", 60: "Sim."}, 1)
    texts = damage(texts, {11: "Sim.", 40: "Sim.", 60: "Não."})
    finding = find(inspect(texts), "lengths differ")
    assert finding.text.startswith("2 of 500 pairs")
    assert [e.split(":")[0] for e in finding.examples] == [
        "train, line 41",
        "train, line 12",
    ]
    assert not finding.serious
    many = damage(pairs(), {i: "Sim." for i in range(0, 500, 10)})
    assert find(inspect(many), "lengths differ").serious
    short = [("Sim.", "Yes, of course!"), ("", long), *pairs()]
    assert not mean(inspect(short), "lengths differ")


def test_odd_ratios_of_words_are_found_too():
    letters = " ".join("abcdefghijklmnopqrstuvwxyz")
    joined = "Anticonstitucionalissimamente independentemente nisso"
    texts = damage(damage(pairs(), {9: letters}, 1), {9: joined})
    assert find(inspect(texts), "lengths differ").text.startswith("1 of 500")
    # In unspaced text, the number of words means nothing.
    unspaced = [(source, target.replace(" ", "")) for source, target in pairs()]
    (source, target), *_ = unspaced
    long = (" ".join([source] * 4), target * 4)
    assert not mean(inspect([long, *unspaced]), "lengths differ")


def test_extremely_long_lines_are_found():
    long = " ".join(target for _, target in pairs()[:40])
    finding = find(inspect(damage(pairs(), {77: long}, 1)), "are usual")
    assert finding.text.startswith("1 of 500 targets")
    assert f"{len(long):,} characters" in finding.text
    (example,) = finding.examples
    assert example.startswith("train, line 78, target: ") and "…" in example[-3:]
    assert len(example) < 160


def test_the_example_shows_where_the_fault_is():
    text = "palavra " * 200 + "&quot; fim"
    (example,) = find(inspect(damage(pairs(), {5: text})), "HTML").examples
    assert "'…" in example and "&quot; fim" in example


def test_lines_in_another_script_are_found():
    texts = damage(pairs(), {4: "Сегодня хорошая погода.", 9: "今日は晴れです。"}, 1)
    texts = damage(texts, {12: "Ele leu «Война и мир» ontem à noite.", 13: "1984."}, 1)
    finding = find(inspect(texts), "another script than Latin")
    assert finding.text.startswith("2 of 500 targets (0.40 %)")
    assert finding.examples[0] == "train, line 5, target: 'Сегодня хорошая погода.'"
    assert not finding.serious
    many = damage(pairs(), dict.fromkeys(range(0, 500, 10), "Погода"), 1)
    assert find(inspect(many), "another script").serious
    writings = ("これはペンです。東京。", "東京都千代田区。", "コンピューター。")
    japanese = [(source, writings[len(source) % 3]) for source, _ in pairs()]
    assert not mean(inspect(japanese), "another script")


def test_a_large_split_is_sampled_evenly_and_says_so(monkeypatch):
    monkeypatch.setattr(findings, "WINDOW", 50)
    monkeypatch.setattr(findings, "WINDOWS", 4)
    windows = [(w.start, len(w)) for w in make(pairs()).windows]
    assert windows == [(0, 50), (150, 50), (300, 50), (450, 50)]
    texts = damage(pairs(), dict.fromkeys(range(440, 460), "Погода"), 1)
    finding = find(inspect(texts), "another script")
    assert finding.text.startswith("10 of 200 sampled targets (5.00 %)")


def test_two_sides_in_one_language_are_noted():
    turns = [(pairs()[i][1], pairs()[-i][1]) for i in range(1, 500)]
    found = inspect(turns)
    assert not find(found, "one language").serious
    assert not any(f.serious for f in found)  # the sides of a dialogue need not align


def test_swapped_held_out_sides_are_serious():
    train, held_out = make(pairs()), pairs(50, "validation")
    (finding,) = inspect_sides(train, make([(t, s) for s, t in held_out], "validation"))
    assert finding.serious and finding.text.startswith("train or validation is swapped")
    assert finding.examples[1].startswith("validation, line 1: ")
    assert not inspect_sides(train, make(held_out, "validation"))
    for side in (0, 1):  # one side alone in the other's language is not swapped
        alone = [(pair[side], pair[side]) for pair in held_out]
        assert not inspect_sides(train, make(alone, "validation"))


def test_a_training_split_that_disagrees_with_all_others_is_blamed():
    held_out = [make(pairs(50, name), name) for name in ("validation", "test")]
    swapped = make([(t, s) for s, t in pairs()])
    found = inspect_corpus(swapped, held_out)["train"]
    assert found[0].serious
    assert found[0].text.startswith("train seems swapped: all of validation, test")
    assert "swapped" not in str(inspect_corpus(make(pairs()), held_out)["train"])


@pytest.mark.parametrize("start", [0, 45, 500, 870])
@pytest.mark.parametrize("shift", [-3, -1, 1, 2])
def test_misaligned_sides_are_found_where_they_begin(start, shift):
    targets = [target for _, target in pairs(1200)]
    if shift > 0:  # only the target has these lines
        targets = targets[:start] + ["Yes."] * shift + targets[start:-shift]
    else:
        targets = targets[:start] + targets[start - shift :] + ["Yes."] * -shift
    finding = find(
        inspect(with_targets(pairs(1200), targets)), "the right target comes"
    )
    assert finding.serious
    place = int(finding.text.split(" on,")[0].split()[-1])
    assert abs(place - (start + 1)) <= 8
    assert finding.examples[0].startswith(f"train, line {place}: ")
    assert f"{abs(shift)} line(s) {'later' if shift > 0 else 'earlier'}" in finding.text
    assert f"only the {'target' if shift > 0 else 'source'} has" in finding.text


@pytest.mark.parametrize(
    "pair",
    [
        lambda draw: ("a" * (n := draw(9, 90)) + ".", "я" * (n + draw(0, 30))),
        lambda draw: ("uma casa" + (end := "?.!"[draw(0, 2)]), "один дом" + end),
        lambda draw: (f"casa {(n := draw(1000, 1999))}.", f"дом {n}."),
        lambda draw: ("Veja " + (w := f"N{'ahc'[draw(0, 2)]}to"), f"Мы – {w}s"),
        lambda draw: ("你好" + ("？", "！", "。")[n := draw(0, 2)], "Hello" + "?!."[n]),
    ],
    ids=["lengths", "last characters", "numbers", "names", "full width"],
)
def test_any_trait_that_survives_translation_reveals_a_shift(pair):
    texts = [pair(random.Random(i).randint) for i in range(400)]
    assert not mean(inspect(texts), "the right target comes")
    targets = [target for _, target in texts]
    shifted = inspect(with_targets(texts, [*targets[1:], targets[0]]))
    assert mean(shifted, "the right target comes 1 line(s) earlier")


def test_a_shift_between_the_windows_of_a_large_split_is_located(monkeypatch):
    monkeypatch.setattr(findings, "WINDOW", 100)
    monkeypatch.setattr(findings, "WINDOWS", 4)
    targets = [target for _, target in pairs(1200)]
    shifted = with_targets(pairs(1200), targets[:600] + targets[601:] + ["Yes."])
    finding = find(inspect(shifted), "the right target comes")
    assert "in 2 of 4 windows" in finding.text
    assert abs(int(finding.text.split(" on,")[0].split()[-1]) - 601) <= 8


def test_a_shift_that_is_corrected_later_is_found():
    targets = [target for _, target in pairs(1200)]
    targets[300:900] = [*targets[301:900], "Yes."]
    finding = find(
        inspect(with_targets(pairs(1200), targets)), "the right target comes"
    )
    assert "about train, line 30" in finding.text


@pytest.mark.parametrize("lost_from", [0, 600])
def test_sides_that_do_not_belong_together_are_serious(lost_from):
    targets = [target for _, target in pairs(2000)]
    rest = targets[lost_from:]
    random.Random(0).shuffle(rest)
    found = inspect(with_targets(pairs(2000), targets[:lost_from] + rest))
    finding = find(found, "agree only by chance")
    assert finding.serious
    place = int(finding.text.split(" on,")[0].split()[-1])
    assert lost_from - 400 <= place - 1 <= lost_from + 400


@pytest.mark.parametrize(
    "order",
    [
        lambda pair: len(pair[0]),
        lambda pair: pair[1],
        lambda pair: (len(pair[1]), hash(pair[1][::-1].encode())),
        lambda pair: pair[0][::-1],
    ],
)
@pytest.mark.parametrize("size", [500, 400, 120, 101, 100, 99, 12, 1])
def test_aligned_sides_in_any_order_and_number_are_not_suspected(order, size):
    assert not [f for f in inspect(sorted(pairs()[:size], key=order)) if f.serious]


def test_overlap_reports_how_alike_training_and_held_out_pairs_are():
    long = "O menino alto leu um livro longo na casa da professora ontem"
    held_out = [
        pairs()[3],
        (pairs()[5][0], "Something else."),
        (pairs()[7][0].upper().replace(".", " ..."), pairs()[7][1]),
        (f"{long} à noite.", "One."),
        ("Nada disso aparece em outro lugar, nem um pouco.", "Two."),
        ("...", "Three."),
    ]
    train = make([*pairs(), (f"{long}.", "x"), ("!", "y")])
    found = inspect_corpus(train, [make(held_out, "test")])["train and test"]
    (finding,) = found
    assert finding.text.startswith("4 of 6 pairs (66.67 %) of test occur in train: ")
    assert (
        "1 word for word, 1 with another target, 1 except for case and" in finding.text
    )
    assert "1 nearly (70 %" in finding.text
    assert finding.serious
    exact, other, case = finding.examples
    assert exact.startswith("test, line 1: ") and " = train, line 4: " in exact
    assert other.startswith("test, line 2: ") and " = train, line 6: " in other
    assert case.startswith("test, line 3: ") and " = train, line 8: " in case


def test_more_than_one_percent_of_known_pairs_is_serious():
    for known, serious in ((2, False), (3, True)):
        held_out = list(pairs(200, "validation"))
        held_out[-known:] = pairs()[:known]
        found = inspect_corpus(make(pairs()), [make(held_out, "validation")])
        (finding,) = found["train and validation"]
        assert f"{known} word for word" in finding.text
        assert finding.serious == serious


def test_near_copies_are_exactly_those_of_an_exhaustive_search():
    def triples(text):
        words = find_words(text)
        return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}

    chance = random.Random(0)
    changed = []
    for source, target in pairs():
        words = source.split()
        for _ in range(chance.randrange(4)):
            words[chance.randrange(len(words))] = chance.choice(["sim", "não", ""])
        changed.append((" ".join(words), target))
    held_out = make(changed, "test")
    overlap = Overlap(make(pairs()), [held_out])
    for i, pair in enumerate(pairs()):
        overlap.add(i, *pair)
    known = [triples(source) for source, _ in pairs()]
    own = [triples(source) for source, _ in changed]
    near = {
        i
        for i, held in enumerate(own)
        if any(len(held & t) >= 0.7 * len(held | t) for t in known if held)
    }
    same = {i for i, (level, _) in overlap.best.items() if level}
    assert near - same and set(overlap.best) == near | same


def test_overlap_sees_text_without_spaces():
    held_out = make([("今日はとても良い天気ですね。", "x")], "test")
    overlap = Overlap(make([("", "")]), [held_out])
    overlap.add(0, "今日はとても良い天気です。", "y")
    overlap.add(1, "明日は雨が降るでしょう。", "y")
    (finding,) = overlap.findings(held_out)
    assert "1 nearly" in finding.text


def test_training_is_read_once():
    class Counted(list):
        passes = looks = 0

        def __iter__(self):
            Counted.passes += 1
            return super().__iter__()

        def __getitem__(self, index):
            Counted.looks += 1
            return super().__getitem__(index)

    split = make(pairs())
    train = Split(split.name, Counted(split.records), split.where)
    inspect_corpus(train, [make(pairs(50, n), n) for n in ("validation", "test")])
    assert Counted.passes == 1
    assert Counted.looks <= 500 + 10  # the sample, and examples


@pytest.mark.system
def test_findings_are_the_same_in_each_run():
    script = """
from transformer_jax.corpora import phrasebook
from transformer_jax.data.reading import findings
texts = [(p.source, p.target) for p in phrasebook.generate("train", 200)]
texts += [(source, "Yes.") for source, _ in texts[::7]] + texts[:5]
records = [{"source": source, "target": target} for source, target in texts]
print(findings.inspect_split(findings.Split("train", records, lambda i, side: str(i))))
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1 and "several" in outputs.pop()
