"""The tokenizer: what goes in comes out, whatever it is."""

import io
import unicodedata

import pytest
import sentencepiece

from transformer_jax import config
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, EOS, PAD, UNK
from transformer_jax.data.reading.records import Concatenation, Generated
from transformer_jax.data.text import learning, tokenizer

TEXTS = [f"O gato número {i} dorme na casa da Maria." for i in range(300)]


@pytest.fixture(scope="module", params=["unigram", "bpe", "char", "byte"])
def trained(request):
    if request.param == "byte":
        return tokenizer.Bytes()
    return learning.train(TEXTS, request.param, 380)


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def sampled(request):
    return learning.train(TEXTS, request.param, 380)


def settings(**changes):
    chosen = config.base().tokenizer
    with chosen.unlocked():
        chosen.update(vocab_size=350, **changes)
    return chosen


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
        "ﬁ ① ½ Å é é ＡＢＣ",  # text that normalisation would rewrite
        "non\u00a0breaking\u2009thin\u3000wide",
        "🎉 漢字 ру́сский",
        "▁literal ▁▁ marks▁",
        "<s> </s> <unk> <pad> <0x41>",
    ],
)
def test_the_round_trip_changes_nothing(trained, text):
    assert trained.decode(trained.encode(text)) == text


RUNNING = [
    "the cat sat on the mat .",
    "",
    '"The cat," said the dog,\n\n"sat."',
    '"Yes"\n"No"',
    "\n\n",
    "a dog  ran",
] * 50


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "byte"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_text_inside_a_sentence_loses_nothing_and_gets_no_space(kind, lowercase):
    learned = tokenizer.Bytes()
    if kind != "byte":
        learned = learning.train(RUNNING, kind, 400, lowercase=lowercase)
    texts = [
        *("\nthe cat", "\n\nthe cat", '"The cat', '\n"No"', " the cat", "  the cat"),
        *("the cat", "at sat", "", " ", "\n", "▁the", " ▁ the▁", "the▁cat", "漢 the"),
    ]
    for text in texts:
        ids = learned.encode_inside(text)
        # After a piece of another text, nothing is treated as the start of a sentence.
        read = learned.decode([*learned.encode("a"), *ids])
        assert read == "a" + (text.lower() if learned.lowercase else text)
        if kind == "char":  # as before: the text after a newline
            assert ids == learned.encode("\n" + text)[2:]


def test_words_inside_a_text_are_encoded_as_words():
    learned = learning.train(RUNNING, "word", 400)
    for text in ("the cat sat", " the cat sat"):
        ids = learned.encode_inside(text)
        assert learned.pieces(ids) == ["▁the", "▁cat", "▁sat"]
    assert learned.pieces(learned.encode_inside("cat")) == ["▁cat"]


def test_no_text_becomes_unknown_or_a_control_id(trained):
    ids = trained.encode("<s> </s> 漢 🎉 ▁ \0")
    assert not {PAD, UNK, BOS, EOS} & set(ids)


def test_special_ids_are_those_of_the_package(trained):
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert trained.pieces([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert trained.decode([BOS, *trained.encode("O gato"), EOS, PAD]) == "O gato"


def test_training_is_repeatable():
    again = [learning.train(TEXTS, "unigram", 350).fingerprint for _ in range(2)]
    assert again[0] == again[1]


def test_a_vocabulary_is_at_most_what_was_asked_for(trained):
    assert 256 < trained.vocab_size <= 380


def test_many_texts_at_once_are_encoded_as_one_by_one(trained):
    texts = ["O gato dorme.", "", "▁ literal", "漢字 \0", *TEXTS[:7]]
    assert trained.encode_all(texts) == [trained.encode(text) for text in texts]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "word", "char"])
def test_a_vocabulary_larger_than_the_text_allows_is_as_large_as_it_allows(kind):
    assert 20 < learning.train(TEXTS, kind, 50_000).vocab_size < 5000


def test_words_are_single_pieces_and_unseen_ones_are_unknown():
    words = learning.train(TEXTS, "word", 330)
    assert words.pieces(words.encode("O gato dorme")) == ["▁O", "▁gato", "▁dorme"]
    assert words.encode("O cachorro dorme")[1] == UNK
    assert words.decode(words.encode("O gato dorme na casa")) == "O gato dorme na casa"


def test_without_byte_fallback_unseen_characters_are_unknown():
    plain = learning.train(TEXTS, "bpe", 100, byte_fallback=False)
    assert UNK in plain.encode("漢")
    assert UNK in plain.encode("▁漢")
    assert plain.decode(plain.encode("O gato")) == "O gato"


def test_symbols_are_one_piece_wherever_they_occur():
    tagged = learning.train(TEXTS, "bpe", 380, symbols=["<2pt>", "@@"])
    assert tagged.pieces(tagged.encode("<2pt> O gato@@")) == [
        "▁", "<2pt>", "▁O", "▁gato", "@@"
    ]  # fmt: skip
    assert tagged.decode(tagged.encode("<2pt> O gato@@")) == "<2pt> O gato@@"


@pytest.mark.parametrize("kind", ["unigram", "bpe", "word", "char"])
def test_only_capital_letters_are_lost(kind):
    """The rule is stored in the model's file, so it applies wherever it is loaded."""
    texts = [text.replace("Maria", "ÉCOLE ﬁ ß Straße") for text in TEXTS]
    kept = learning.train(texts, kind, 420)
    lowered = learning.train(texts, kind, 420, symbols=["<DE>"], lowercase=True)
    assert lowered.lowercase and not kept.lowercase and not tokenizer.Bytes().lowercase
    text = "O gato NÚMERO 3 dorme na casa da ÉCOLE ﬁ ß Straße."
    assert lowered.encode(text) == lowered.encode(text.lower())
    assert lowered.encode_all([text]) == [lowered.encode(text)]
    if kind != "word":
        assert lowered.decode(lowered.encode(text)) == text.lower()
    assert "<DE>" in "".join(lowered.pieces(lowered.encode("<DE> O gato")))
    if kind in ("unigram", "bpe"):
        assert lowered.decode(lowered.sample(text, 0.3, 5)) == text.lower()


def test_a_sample_spells_the_same_text_in_other_pieces(sampled):
    text = TEXTS[7]
    found = [sampled.sample(text, 0.3, seed) for seed in range(29)]
    assert {sampled.decode(ids) for ids in found} == {text}
    assert len({tuple(ids) for ids in found}) > 5
    assert min(map(len, found)) >= len(sampled.encode(text))


def test_a_sample_is_a_function_of_its_seed_whatever_came_before(sampled):
    first = [sampled.sample(text, 0.3, seed) for seed, text in enumerate(TEXTS[:11])]
    sampled.encode(TEXTS[3])
    again = [sampled.sample(TEXTS[i], 0.3, i) for i in reversed(range(11))]
    assert first == again[::-1]


def test_bpe_dropout_of_strength_zero_is_the_plain_segmentation():
    bpe = learning.train(TEXTS, "bpe", 380)
    assert bpe.sample(TEXTS[5], 0.0, 1) == bpe.encode(TEXTS[5])
    longer = [
        sum(len(bpe.sample(text, strength, 3)) for text in TEXTS[:50])
        for strength in (0.0, 0.1, 0.5)
    ]
    assert longer[0] < longer[1] < longer[2]


def test_a_given_model_with_other_ids_is_renumbered(tmp_path):
    """SentencePiece's own default: unknown 0, start 1, end 2, no padding."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=300,
        model_type="bpe", byte_fallback=True, minloglevel=2,
    )  # fmt: skip
    path = tmp_path / "given.model"
    path.write_bytes(model.getvalue())
    given = learning.make(settings(kind="file"), None, ("source",), str(path), [])
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    text = "O gato número 漢 dorme."
    ids = given.encode(text)
    assert given.vocab_size == 301  # and our own padding
    assert given.pieces(ids) == theirs.encode(text, out_type=str)
    assert given.decode([BOS, *ids, EOS, PAD]) == theirs.decode(theirs.encode(text))
    assert not {PAD, UNK, BOS, EOS} & set(ids)
    assert given.encode_inside(" gato") == given.encode("gato")
    assert given.encode_inside("gato") != given.encode("gato")
    assert given.encode_all([text, "▁"]) == [ids, given.encode("▁")]
    assert len(given.pieces(range(301))) == len(set(given.pieces(range(301)))) == 301


def records(*texts):
    pairs = [{"source": t, "target": t.upper()} for t in texts]
    return Concatenation([Generated(lambda: pairs, repr(texts))])


def test_a_tokenizer_is_learned_once_for_the_same_text(monkeypatch):
    first = learning.make(settings(), records(*TEXTS), ("source",), "", [])
    monkeypatch.setattr(learning, "train", lambda *a, **k: pytest.fail("again"))
    again = learning.make(settings(), records(*TEXTS), ("source",), "", [])
    assert again.model == first.model
    monkeypatch.undo()
    for other in (("target",), ("source", "target")):
        found = learning.make(settings(), records(*TEXTS), other, "", [])
        assert found.model != first.model


def test_other_symbols_are_another_tokenizer():
    given = records(*TEXTS)
    for symbols in ((), ("<x>",), ("<y>", "<x>")):
        made = learning.make(settings(user_symbols=symbols), given, ("source",), "", [])
        found = {p for p in made.pieces(range(made.vocab_size)) if p in ("<x>", "<y>")}
        assert found == set(symbols)


def test_learning_from_some_lines_draws_them_from_the_whole_text():
    half = ["aaaa bbbb"] * 500 + ["cccc dddd"] * 500
    learned = learning.make(settings(lines=40), records(*half), ("source",), "", [])
    pieces = learned.pieces(range(260, learned.vocab_size))
    assert {"a", "d"} <= set("".join(pieces))


def test_sides_share_a_vocabulary_or_have_their_own(tmp_path):
    given = records(*TEXTS)
    fields = ("source", "target")
    shared = learning.for_sides(settings(), given, fields, {"source": ["<x>"]})
    assert list(shared) == ["shared"] and "<x>" in shared["shared"].pieces(range(9))
    symbols = {"source": ["<x>"]}
    own = learning.for_sides(settings(shared=False), given, fields, symbols)
    assert list(own) == ["source", "target"]
    # Only sources have a tag.
    assert "<x>" in own["source"].pieces(range(9))
    assert "<x>" not in own["target"].pieces(range(own["target"].vocab_size))


def test_there_must_be_one_model_file_per_vocabulary(trained, tmp_path):
    trained.save(tmp_path / "a.model")
    one = settings(kind="file", file=str(tmp_path / "a.model"))
    assert list(learning.for_sides(one, None, ("source", "target"), {})) == ["shared"]
    with one.unlocked():
        one.shared = False
    with pytest.raises(UserError, match="names 1 files for 2 vocabularies"):
        learning.for_sides(one, None, ("source", "target"), {})


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("size", [1, 9, 268])
def test_a_vocabulary_too_small_for_the_text_is_refused_with_both_numbers(kind, size):
    texts = ["bead cafe", "fade"] * 20  # 7 characters, one of them the space
    with pytest.raises(UserError, match="but a vocabulary for this text") as caught:
        learning.train(texts, kind, size, symbols=["<a>", "<b>", "<a>"])
    assert str(caught.value) == (
        f"tokenizer.vocab_size is {size}, but a vocabulary for this text has at least "
        "269 pieces: 4 special ones, 2 symbols (tokenizer.user_symbols, or tags), 256 "
        "bytes (tokenizer.byte_fallback), 7 different characters. Set "
        "tokenizer.vocab_size to 269 or more"
    )
    made = learning.train(texts, kind, 269, symbols=["<a>", "<b>", "<a>"])
    assert made.vocab_size == 269


@pytest.mark.parametrize(("kind", "least"), [("word", 4), ("char", 260)])
def test_a_vocabulary_too_small_for_any_text_is_refused(kind, least):
    said = f"vocab_size is 3, but .* has at least {least} pieces: 4 special ones"
    with pytest.raises(UserError, match=said):
        learning.train(TEXTS, kind, 3)
    assert learning.train(TEXTS, kind, least).vocab_size == least


@pytest.mark.parametrize("symbol", ["", "<unk>", "<s>", "<0x41>"])
def test_a_symbol_that_cannot_be_a_piece_is_refused(symbol):
    with pytest.raises(
        UserError, match="is empty or a piece of every vocabulary: leave"
    ):
        learning.train(TEXTS, "bpe", 400, symbols=["<ok>", symbol])


@pytest.mark.parametrize("kind", ["unigram", "word"])
def test_a_text_without_words_is_refused_in_plain_words(kind):
    with pytest.raises(UserError, match="no text to learn a tokenizer from: every li"):
        learning.train(["", ""], kind, 400)


def test_another_failure_to_learn_names_both_keys(monkeypatch):
    def fail(**_):
        raise RuntimeError("a reason")

    monkeypatch.setattr(
        tokenizer.sentencepiece.SentencePieceTrainer, "train", staticmethod(fail)
    )
    said = r"400 bpe pieces \(tokenizer.vocab_size, tokenizer.kind\) cannot .*a reason"
    with pytest.raises(UserError, match=said):
        learning.train(TEXTS, "bpe", 400)


def test_saving_and_loading_keeps_the_model(trained, tmp_path):
    trained.save(tmp_path / "a.model")
    assert tokenizer.Tokenizer.load(tmp_path / "a.model").model == trained.model
    (tmp_path / "b.model").write_bytes(b"not a model")
    with pytest.raises(UserError, match="b.model"):
        tokenizer.Tokenizer.load(tmp_path / "b.model")


def test_a_faulty_line_is_reported_rather_than_a_failure_to_learn():
    def texts():
        yield from ["a few words"] * 50
        raise UserError("corpus.tsv, line 51 has 1 tab-separated column")

    with pytest.raises(UserError, match="^corpus.tsv, line 51 has 1 tab-separated"):
        learning.train(texts(), "bpe", 300)


@pytest.mark.parametrize("model", [b"", bytes(1000), b"no model"])
def test_a_damaged_model_is_a_plain_error(tmp_path, model):
    (tmp_path / "text.model").write_bytes(model)
    with pytest.raises(UserError, match="the tokenizer .*text.model cannot be read"):
        tokenizer.Tokenizer.load(tmp_path / "text.model")


ACCENTS = ["A maçã é boa.", "Não há pão.", "O avô vê a mãe."] * 9


def test_a_decomposed_text_is_composed_unless_its_marks_were_learned():
    text, apart = "maçã", unicodedata.normalize("NFD", "maçã")
    composed = learning.train(ACCENTS, "bpe", 330)
    assert composed.compose(apart) == composed.compose(text) == text
    learned = [unicodedata.normalize("NFD", line) for line in ACCENTS]
    decomposed = learning.train(learned, "bpe", 330)
    assert decomposed.compose(apart) == apart and decomposed.compose(text) == text
    assert tokenizer.Bytes().compose(apart) == apart
    assert composed.compose("e\u0327 日本") == "\u0229 日本"


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
def test_characters_that_no_piece_has_are_unknown(kind):
    made = learning.train(ACCENTS, kind, 330)
    assert made.find_unknown("A mãe é boa.\t▁") == ()
    assert made.find_unknown("A 🎉 日本 日\x00") == ("🎉", "日", "本", "\x00")


def test_words_that_a_word_model_lacks_are_unknown():
    made = learning.train(ACCENTS, "word", 30)
    assert made.find_unknown("A maçã é azul azul.") == ("azul", "azul.")
    assert tokenizer.Bytes().find_unknown("🎉") == ()


def test_a_model_without_capitals_knows_those_that_it_lower_cases():
    made = learning.train(ACCENTS, "bpe", 330, lowercase=True)
    assert made.find_unknown("A MAÇÃ É BOA.") == ()
