"""Read the protocol buffer of a SentencePiece model.

Only the fields that this package uses are described here; a message keeps the others
when it is written again. The module of the sentencepiece package with all of them loads
under newer versions of protobuf alone, and a machine may need an older one for other
packages (as Colab does).
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

STRING, BYTES, BOOL, FLOAT, INT32, MESSAGE = 9, 12, 8, 2, 5, 11  # protobuf's types
OPTIONAL, REPEATED = 1, 3
PACKAGE = "transformer_jax"
# For each message its fields: name, number, type, and the default or the message.
MESSAGES: dict[str, list[tuple[str, int, int, str]]] = {
    "Piece": [
        ("piece", 1, STRING, ""),
        ("score", 2, FLOAT, "0"),
        ("type", 3, INT32, "1"),
    ],
    "TrainerSpec": [
        ("model_type", 3, INT32, "1"),
        ("split_by_whitespace", 22, BOOL, "true"),
        ("treat_whitespace_as_suffix", 24, BOOL, "false"),
        ("byte_fallback", 35, BOOL, "false"),
        ("unk_surface", 44, STRING, " \u2047 "),
    ],
    "NormalizerSpec": [
        ("precompiled_charsmap", 2, BYTES, ""),
        ("add_dummy_prefix", 3, BOOL, "true"),
        ("remove_extra_whitespaces", 4, BOOL, "true"),
        ("escape_whitespaces", 5, BOOL, "true"),
    ],
    "Model": [
        ("pieces", 1, MESSAGE, "Piece"),
        ("trainer_spec", 2, MESSAGE, "TrainerSpec"),
        ("normalizer_spec", 3, MESSAGE, "NormalizerSpec"),
        ("denormalizer_spec", 5, MESSAGE, "NormalizerSpec"),
    ],
}


def _describe() -> Any:
    """Make the class of a model."""
    file = descriptor_pb2.FileDescriptorProto(
        name="sentencepiece.proto", package=PACKAGE, syntax="proto2"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, default in fields:
            label = REPEATED if field == "pieces" else OPTIONAL
            added = message.field.add(name=field, number=number, type=kind, label=label)
            if kind == MESSAGE:
                added.type_name = f".{PACKAGE}.{default}"
            else:
                added.default_value = default
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    model = pool.FindMessageTypeByName(f"{PACKAGE}.Model")
    return message_factory.GetMessageClass(model)


_Model = _describe()


def parse_model(model: bytes) -> Any:
    """Parse a SentencePiece model into its protocol buffer."""
    return _Model.FromString(model)
