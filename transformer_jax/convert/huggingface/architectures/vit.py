"""ViT: the classifier of images."""

import pathlib
from typing import Any

from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.convert.huggingface import links
from transformer_jax.convert.huggingface.architecture import (
    NEUTRAL,
    PROCESSOR,
    Given,
    Options,
    activation,
    refuse,
    their_activation,
)
from transformer_jax.convert.huggingface.architectures.bert import labels_of
from transformer_jax.convert.huggingface.links import Link, Vocabulary
from transformer_jax.tasks.images import About

BYTES = 255  # the largest number of a pixel
BILINEAR = 2


def read_pixels(folder: pathlib.Path) -> dict[str, Any]:
    """Read the folder's preprocessor configuration, which scales an image's pixels."""
    try:
        return files.read_object(folder / PROCESSOR)
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no {PROCESSOR}, which says how pixels are scaled: save the "
            "model's AutoImageProcessor there"
        ) from None


def about(given: Given) -> About:
    """Return the size and the classes of the images of a ViT."""
    size = _side(given, "image_size")
    return About(size, size, given["num_channels"], labels_of(given))


def vit_options(given: Given) -> Options:
    """Return the options of a ViT."""
    refuse(given, qkv_bias=True, problem_type="single_label_classification")
    if given["num_channels"] not in (1, 3):
        raise UserError(
            f"num_channels = {given['num_channels']} is not supported, only 1 and 3"
        )
    if len(labels_of(given)) < 2:
        raise UserError("the ViT has one output: only classifiers are read")
    size = _side(given, "image_size")
    mean, deviation = _normalisation(given[PROCESSOR], size, given["num_channels"])
    return {
        **NEUTRAL,
        "model.encoder_layers": given["num_hidden_layers"],
        "model.d_model": given["hidden_size"],
        "model.d_ff": given["intermediate_size"],
        "model.num_heads": given["num_attention_heads"],
        "model.norm": "pre",
        "model.norm_epsilon": given["layer_norm_eps"],
        "model.activation": activation(given["hidden_act"]),
        "model.positions": "learned",
        "model.patch": _side(given, "patch_size"),
        "model.pixel_mean": mean,
        "model.pixel_deviation": deviation,
        "data.source": "folder",
        "data.image_size": size,
        "data.grey": given["num_channels"] == 1,
    }


def _side(given: Given, name: str) -> int:
    """Return the side of a square, which may be given as height and width."""
    value = given[name]
    sides = value if isinstance(value, list) else [value]
    if len(set(sides)) > 1:
        raise UserError(f"{name} = {value} is not square, and only squares are read")
    return sides[0]


def _normalisation(
    pixels: Given, size: int, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of pixels of 0 to 1; refuse unsupported processing."""
    kind = pixels.get("image_processor_type") or pixels.get("feature_extractor_type")
    if not (kind or "ViT").startswith("ViT"):
        raise UserError(
            f"{PROCESSOR} names the {kind}: only a ViTImageProcessor is read"
        )
    refuse(pixels, do_resize=True, resample=BILINEAR, do_center_crop=False)
    wanted = pixels.get("size", size)
    if wanted not in (size, {"height": size, "width": size}):
        raise UserError(
            f"{PROCESSOR} scales images to {wanted}, but the model reads {size} x "
            f"{size}: only images of exactly that size are read"
        )
    # A pixel p of 0 to 255 becomes (factor p - mean) / deviation there.
    largest = 1.0 * BYTES
    if pixels.get("do_rescale", True):
        # Rounding would turn the 1 / 255 of a file into a factor other than 1.
        largest = round(BYTES * pixels.get("rescale_factor", 1 / BYTES), 9)
    mean, deviation = [0.0] * channels, [1.0] * channels
    if pixels.get("do_normalize", True):
        mean, deviation = pixels["image_mean"], pixels["image_std"]
    mean, deviation = ([n / largest for n in both] for both in (mean, deviation))
    return (
        tuple(mean) if any(mean) else (),
        tuple(deviation) if set(deviation) != {1.0} else (),
    )


def describe_vit(ours: Given) -> dict[str, Any]:
    """Return ViT's config.json, with its preprocessor configuration as one entry."""
    channels = 1 if ours["data.grey"] else 3
    size = ours["data.image_size"]
    return {
        "model_type": "vit",
        "num_hidden_layers": ours["model.encoder_layers"],
        "hidden_size": ours["model.d_model"],
        "intermediate_size": ours["model.d_ff"],
        "num_attention_heads": ours["model.num_heads"],
        "layer_norm_eps": ours["model.norm_epsilon"],
        "hidden_act": their_activation(ours["model.activation"]),
        "image_size": size,
        "patch_size": ours["model.patch"],
        "num_channels": channels,
        "qkv_bias": True,
        PROCESSOR: {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": size, "width": size},
            "resample": BILINEAR,
            "do_rescale": True,
            "rescale_factor": 1 / BYTES,
            "do_normalize": True,
            "image_mean": list(ours["model.pixel_mean"] or [0.0] * channels),
            "image_std": list(ours["model.pixel_deviation"] or [1.0] * channels),
        },
    }


def vit_links(given: Given, rows: Vocabulary) -> list[Link]:
    """Return the links of a ViT."""
    at, side = "vit.embeddings.", _side(given, "patch_size")
    shape = side, side, given["num_channels"]
    made = [
        Link(
            ("class_token",),
            (f"{at}cls_token",),
            lambda x: [x[0, 0]],
            lambda x: [x[None, None]],
        ),
        Link(
            ("positions/table",),
            (f"{at}position_embeddings",),
            lambda x: [x[0]],
            lambda x: [x[None]],
        ),
        # A convolution's [D, channels, rows, columns]; here pixels lie in one axis.
        Link(
            ("patches/kernel",),
            (f"{at}patch_embeddings.projection.weight",),
            lambda x: [x.transpose(2, 3, 1, 0).reshape(-1, len(x))],
            lambda x: [x.reshape(*shape, -1).transpose(3, 2, 0, 1)],
        ),
        links.same("patches/bias", f"{at}patch_embeddings.projection.bias"),
        *links.norm("encoder/norm", "vit.layernorm"),
        *links.dense("head", "classifier"),
    ]
    for i in range(given["num_hidden_layers"]):
        here, there = f"encoder/layer_{i}", f"vit.encoder.layer.{i}"
        for mine, theirs in {
            "self_attention/query": "attention.attention.query",
            "self_attention/key": "attention.attention.key",
            "self_attention/value": "attention.attention.value",
            "self_attention/out": "attention.output.dense",
            "feed_forward/inner": "intermediate.dense",
            "feed_forward/outer": "output.dense",
        }.items():
            made += links.dense(f"{here}/{mine}", f"{there}.{theirs}")
        made += links.norm(f"{here}/self_attention_norm", f"{there}.layernorm_before")
        made += links.norm(f"{here}/feed_forward_norm", f"{there}.layernorm_after")
    return made
