"""Spoken commands: deterministic, with held-out sentences and voices."""

import numpy as np
import pytest

from transformer_jax.family.speech import voice as speech
from transformer_jax.family.speech.recordings import Spoken
from transformer_jax.family.speech.voice import synthesizer


def test_a_sound_is_a_function_of_the_split_and_its_number():
    text = "open the window"
    first, again = (speech.speak(text, "train", 3) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first).max() == pytest.approx(0.5)
    for other in (("train", 4), ("validation", 3)):
        sound = speech.speak(text, *other)
        assert len(sound) != len(first) or np.abs(sound - first).max() > 0.1


def test_held_out_sentences_and_voices_are_not_in_training():
    found = {split: set(speech.sentences(split, 300)) for split in speech.SPLITS}
    assert all(len(texts) == 300 for texts in found.values())
    assert found["test"] == found["test_noise"]
    assert not found["train"] & (found["validation"] | found["test"])
    assert not found["validation"] & found["test"]
    pitches = [
        {speech.voice_of(split, i).pitch for i in range(speech.VOICES[split])}
        for split in ("train", "validation", "test")
    ]
    assert len(set.union(*pitches)) == sum(speech.VOICES.values())


def test_every_word_of_the_lexicon_is_heard_in_training():
    words = {w for text in speech.sentences("train", 2000) for w in text.split()}
    assert words == set(speech.LEXICON) and 40 <= len(words) <= 80


def test_louder_noise_is_the_only_difference_of_the_noisy_test():
    text = speech.sentences("test", 1)[0]
    clean, noisy = (speech.speak(text, s, 0) for s in ("test", "test_noise"))
    assert len(clean) == len(noisy)
    silence = slice(0, 500)  # before the first word
    assert noisy[silence].std() / noisy.std() > 2 * clean[silence].std() / clean.std()


def test_a_vowel_has_its_resonances_where_the_table_has_them():
    """The energy of /i/ is near 270 and 2290 Hz, that of /a/ near 730 and 1090."""
    voice = synthesizer.draw_voice(np.random.RandomState(1))
    voice = voice._replace(
        pitch=100.0, tract=1.0, habits=np.ones_like(voice.habits), breath=0.0
    )
    response = np.abs(
        synthesizer._tract(np.array([[270.0, 2290, 3010], [730, 1090, 2440]]), voice)
    )
    hertz = synthesizer._hertz()
    for row, formants in zip(
        response, [(270, 2290, 3010), (730, 1090, 2440)], strict=True
    ):
        peaks = hertz[1:-1][(row[1:-1] > row[:-2]) & (row[1:-1] > row[2:])]
        for formant in formants:
            assert np.abs(peaks - formant).min() < 60


def test_a_change_of_the_synthesizer_changes_the_content(monkeypatch):
    before = Spoken("train", 5).content
    assert before == Spoken("train", 5).content
    monkeypatch.setattr(synthesizer, "TRANSITION", 9)
    assert Spoken("train", 5).content != before
