"""What cannot work in a model's part of a config; see `checks.py`."""

from ml_collections import ConfigDict

from transformer_jax import decoding, tasks
from transformer_jax.decoding import DecodeRequest
from transformer_jax.decoding.engine import positions_needed

LONGEST = "data.max_length or data.window, and its ends"


def longest_example(config: ConfigDict) -> int:
    """Pieces of an example at most, its ends counted; an image has none."""
    data = config.data
    pieces = data.max_length if "max_length" in data else data.get("window", 0)
    return pieces + tasks.find(config.task).ends


def _impossible_transformer(config: ConfigDict) -> list[str]:
    model, problems = config.model, []
    d, n = model.d_model, model.num_heads
    if d % n and not (model.d_k and model.d_v):
        problems.append(
            f"model.d_model {d} does not divide over model.num_heads {n}: "
            f"use {divisor_near(d, n)} heads, or set model.d_k and model.d_v"
        )
    if n % max(config.mesh.tensor, 1):
        problems.append(
            f"model.num_heads {n} does not divide over mesh.tensor {config.mesh.tensor}"
        )
    problems += _impossible_heads(model)
    if model.positions.startswith("sinusoid") and model.d_model % 2:
        problems.append(
            f"model.d_model {model.d_model} is odd, sinusoids come in pairs: "
            f"use {model.d_model + 1}"
        )
    return problems + _impossible_positions(config)


def _impossible_positions(config: ConfigDict) -> list[str]:
    """A learned table must hold what is read and written, padding apart."""
    model, longest = config.model, longest_example(config)
    if model.positions == "relative":
        return _impossible_buckets(model)
    if model.positions != "learned" or "max_positions" not in model:
        return []
    needed, answer = longest, ""
    if "decode" in config:
        asked = DecodeRequest(range(longest))
        needed = positions_needed(asked, decoding.Options(**config.decode))
    if needed > longest:
        answer = " and its longest answer (decode.extra_length or max_length)"
    if model.max_positions >= needed:
        return []
    return [
        f"model.max_positions {model.max_positions} < {needed}, what an example of "
        f"{longest} pieces ({LONGEST}){answer} needs: raise the table, or lower the "
        "other"
    ]


def _impossible_buckets(model: ConfigDict) -> list[str]:
    """Half of a direction's buckets are exact: the others begin behind them."""
    problems, reads_ahead = [], "encoder_layers" in model
    least = 4 if reads_ahead else 2
    if model.relative_buckets < least:
        problems.append(
            f"model.relative_buckets = {model.relative_buckets}: must be at least "
            f"{least}"
        )
    exact = model.relative_buckets // (2 if "decoder_layers" in model else 4)
    if model.relative_distance <= exact:
        problems.append(
            f"model.relative_distance {model.relative_distance} is not beyond the "
            f"{exact} distances that have a bucket of their own: raise it, or lower "
            f"model.relative_buckets {model.relative_buckets}"
        )
    return problems


def _impossible_heads(model: ConfigDict) -> list[str]:
    """Of queries that share keys, and of queries that are turned."""
    problems = []
    kv_heads = model.kv_heads or model.num_heads
    if kv_heads < 1 or model.num_heads % kv_heads:
        problems.append(
            f"model.num_heads {model.num_heads} does not divide over model.kv_heads "
            f"{model.kv_heads}: so many queries share the keys of one"
        )
    size = model.d_k or model.d_model // model.num_heads
    if model.positions.endswith("rotary") and size % 2:
        problems.append(
            f"rotary positions turn pairs, but a head has {size} numbers: set "
            f"model.d_k to {size + 1}"
        )
    if model.rotary_factor != 1.0 and model.rotary_scaling == "none":
        problems.append(
            f"model.rotary_factor = {model.rotary_factor} has no effect without "
            "model.rotary_scaling: linear or ntk"
        )
    return problems


def _impossible_recurrent(config: ConfigDict) -> list[str]:
    model, problems = config.model, []
    if model.bidirectional and model.d_model % 2:
        problems.append(
            f"model.d_model {model.d_model} is odd, and each direction has half of it: "
            f"use {model.d_model + 1}, or model.bidirectional = False"
        )
    if config.data.batching == "packed":
        problems.append(
            "data.batching = 'packed': a recurrent model would take its state from one "
            "sentence of a row into the next; use buckets"
        )
    for axis in ("tensor", "sequence"):
        if config.mesh[axis] > 1:
            problems.append(
                f"mesh.{axis} {config.mesh[axis]}: a recurrent model would wait for "
                "the other devices at every position; use mesh.data or mesh.fsdp"
            )
    return problems


def divisor_near(number: int, wanted: int) -> int:
    divisors = (d for d in range(1, number + 1) if number % d == 0)
    return min(divisors, key=lambda d: abs(d - wanted))


MODELS = {"transformer": _impossible_transformer, "recurrent": _impossible_recurrent}
