"""The tokenizer: what goes in comes out, whatever it is."""

import pytest

from transformer_jax.data import tokenizer
from transformer_jax.errors import UserError
from transformer_jax.ids import BOS, EOS, PAD, UNK

TEXTS = [f"O gato número {i} dorme na casa da Maria." for i in range(300)]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def trained(request):
    return tokenizer.train(TEXTS, request.param, 380)


@pytest.mark.parametrize(
    "text",
    [
        "O gato dorme.",
        "",
        "   ",
        " leading and trailing  ",
        "two  spaces\tand a tab",
        "a\nnewline\r",
        "nul \0 bell \a escape \x1b",
        "ﬁ ① ½ Å é é ＡＢＣ",  # what normalisation would rewrite
        "non\u00a0breaking\u2009thin\u3000wide",
        "🎉 漢字 ру́сский",
        "▁literal ▁▁ marks▁",
        "<s> </s> <unk> <pad> <0x41>",
    ],
)
def test_the_round_trip_changes_nothing(trained, text):
    assert trained.decode(trained.encode(text)) == text


def test_no_text_becomes_unknown_or_a_control_id(trained):
    ids = trained.encode("<s> </s> 漢 🎉 ▁ \0")
    assert not {PAD, UNK, BOS, EOS} & set(ids)


def test_ids_are_those_of_the_package(trained):
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert trained.pieces([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert trained.decode([BOS, *trained.encode("O gato"), EOS, PAD]) == "O gato"


def test_training_is_repeatable():
    again = [tokenizer.train(TEXTS, "unigram", 350).fingerprint for _ in range(2)]
    assert again[0] == again[1]


def test_a_vocabulary_is_at_most_what_was_asked_for(trained):
    assert 256 < trained.vocab_size <= 380


def test_text_that_cannot_train_a_tokenizer_is_a_plain_error():
    with pytest.raises(UserError, match="20 pieces"):
        tokenizer.train(TEXTS, "bpe", 20)


def test_saving_and_loading_keeps_the_model(trained, tmp_path):
    trained.save(tmp_path / "a.model")
    assert tokenizer.Tokenizer.load(tmp_path / "a.model").model == trained.model
    (tmp_path / "b.model").write_bytes(b"not a model")
    with pytest.raises(UserError, match="b.model"):
        tokenizer.Tokenizer.load(tmp_path / "b.model")
