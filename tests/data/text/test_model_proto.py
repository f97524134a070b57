"""Models of SentencePiece as read here and by the package's own description."""

import io

import pytest
import sentencepiece

from transformer_jax.corpora.phrasebook import generate
from transformer_jax.data.text.model_proto import MESSAGES, parse_model

try:
    from sentencepiece import sentencepiece_model_pb2 as theirs
except Exception as error:  # the version of protobuf may be too old for it
    pytest.skip(str(error).split("\n")[0], allow_module_level=True)


@pytest.fixture(scope="module")
def model():
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(pair.source for pair in generate("test", 1000)),
        model_writer=file, vocab_size=450, byte_fallback=True, minloglevel=2,
        treat_whitespace_as_suffix=True, user_defined_symbols=["<x>"],
    )  # fmt: skip
    return file.getvalue()


def values(message, name):
    return {field: getattr(message, field) for field, _, kind, _ in MESSAGES[name]}


def test_what_is_read_is_what_sentencepiece_reads(model):
    mine, whole = parse_model(model), theirs.ModelProto.FromString(model)
    assert len(mine.pieces) == len(whole.pieces) == 450
    for a, b in zip(mine.pieces, whole.pieces, strict=True):
        assert values(a, "Piece") == values(b, "Piece")
    for part, name in (
        ("trainer_spec", "TrainerSpec"),
        ("normalizer_spec", "NormalizerSpec"),
        ("denormalizer_spec", "NormalizerSpec"),
    ):
        found, wanted = (values(getattr(one, part), name) for one in (mine, whole))
        assert found == wanted
    assert mine.trainer_spec.treat_whitespace_as_suffix
    # Defaults are those of an empty model.
    empty, theirs_empty = parse_model(b""), theirs.ModelProto()
    for name in ("TrainerSpec", "NormalizerSpec"):
        part = {"TrainerSpec": "trainer_spec"}.get(name, "normalizer_spec")
        found, wanted = (values(getattr(o, part), name) for o in (empty, theirs_empty))
        assert found == wanted


def test_a_model_that_is_changed_keeps_all_else(model):
    mine, whole = parse_model(model), theirs.ModelProto.FromString(model)
    mine.normalizer_spec.add_dummy_prefix = False
    whole.normalizer_spec.add_dummy_prefix = False
    again = theirs.ModelProto.FromString(mine.SerializeToString())
    assert again == whole
