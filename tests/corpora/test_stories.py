"""The embedded stories keep their rules, and the checker sees which are broken."""

import itertools

import pytest

from transformer_jax.corpora import stories
from transformer_jax.corpora.stories import checker, generate, tell
from transformer_jax.corpora.stories.lexicon import GENDERS
from transformer_jax.corpora.stories.plots import PLOTS
from transformer_jax.data.draws import split_of

STORY = (
    "Once there was a humble prince called Yusuf who lived in a quiet hamlet. "
    "One morning, Yusuf lost his black hat in the park. "
    "He looked under every tree, but he could not find the hat. "
    "Then he met a wise sailor named Emma. "
    "Emma knew the park well and looked for the hat with him. "
    "Soon Emma saw the black hat under a tree. "
    "And Yusuf never forgot the wise sailor."
)


def broken(story):
    return {rule for rule, kept in checker.check(story).kept.items() if not kept}


def test_a_story_depends_on_split_index_and_seed_alone():
    assert generate("train", 40)[17] == tell("train", 17)
    told = [tell(*key) for key in itertools.product(stories.SPLITS, (0, 1), (0, 1))]
    assert len(set(told)) == 12
    with pytest.raises(ValueError, match="dev.*train, validation, test"):
        generate("dev", 1)


def test_stories_hardly_ever_repeat_and_have_up_to_eight_sentences():
    found = generate("train", 5000)
    assert len(set(found)) == 5000
    counts = {len(checker.split_sentences(story)) for story in found[:1000]}
    assert counts == {7, 8}


def test_no_hero_and_matter_of_a_held_out_story_are_in_training():
    about = {plot.stages[1].wordings: plot for plot in PLOTS}
    for split in stories.SPLITS:
        for story in generate(split, 200):
            readings = [
                reading
                for sentence in checker.split_sentences(story)
                for reading in checker.read_sentence(sentence)
            ]
            second = {reading.wording for reading in readings}
            [plot] = [p for w, p in about.items() if second & set(w)]
            values = {k: v for r in reversed(readings) for k, v in r.values.items()}
            combination = f"{values['A']} {plot.name} {values[plot.about]}"
            assert split_of(combination) == split


def test_every_generated_story_keeps_every_rule():
    for split in stories.SPLITS:
        found = checker.rates(generate(split, 400))
        assert set(found.values()) == {1.0}


@pytest.mark.parametrize(
    ("old", "new", "rules"),
    [
        ("", "", set()),
        ("hat in the park", "hatt in the park", {"words", "sentences", "order"}),
        ("could not find", "could find not", {"sentences", "order"}),
        ("And Yusuf never", "And Hugo never", {"names"}),
        ("Soon Emma", "Soon Yusuf", {"names"}),
        ("He looked", "She looked", {"pronouns"}),
        ("humble prince", "humble princess", {"pronouns"}),
        ("with him", "with her", {"pronouns"}),
        ("Soon Emma saw the black hat", "Soon Emma saw the red hat", {"things"}),
        ("under a tree", "under a rock", {"things"}),
        ("a wise sailor", "an wise sailor", {"sentences", "order"}),
        ("Then he met a wise sailor named Emma. ", "", {"order"}),
        (" And Yusuf never forgot the wise sailor.", "", {"order", "end"}),
        ("forgot the wise sailor.", "forgot the", {"sentences", "order", "end"}),
    ],
)
def test_a_damaged_story_breaks_the_rules_that_it_should(old, new, rules):
    assert old in STORY
    assert broken(STORY.replace(old, new, 1) if old else STORY) == rules


def test_stories_of_two_plots_break_the_order():
    other = tell("train", 0)
    sentences = checker.split_sentences(STORY)
    mixed = sentences[:3] + checker.split_sentences(other)[3:]
    assert {"order", "names"} <= broken(" ".join(mixed))


def test_sentences_in_another_order_are_noticed():
    for seed in range(20):
        sentences = checker.split_sentences(tell("test", seed))
        sentences[1:3] = reversed(sentences[1:3])
        assert "order" in broken(" ".join(sentences))


def test_rates_are_shares_of_stories_and_of_words():
    found = checker.rates([STORY, STORY.replace("hat in", "hatt in")])
    words = len(stories.words_of(STORY))
    assert found["words"] == found["consistent"] == 0.5 and found["names"] == 1
    assert found["real words"] == pytest.approx(1 - 1 / words / 2)


def test_every_name_has_one_gender():
    assert set(GENDERS.values()) == {"she", "he"} and len(GENDERS) == 48
