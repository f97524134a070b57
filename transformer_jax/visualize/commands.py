"""Draw a figure by its name: from command-line flags to a `Figure`.

Each function reads the flags that it needs, opens a run if the figure shows one, and
calls a function of `figures`.
"""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from transformer_jax import cli, optim
from transformer_jax import config as configs
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.data.text.numerals import is_whole
from transformer_jax.models.attention import look_ahead_mask
from transformer_jax.runs import run as runs
from transformer_jax.tasks.protocols import AttentionMaps
from transformer_jax.visualize import (
    aligning,
    capture,
    explain,
    figures,
    gradients,
    measures,
    modules,
    style,
)
from transformer_jax.visualize.figures import beams, training

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# For figures without a run.
SENTENCE = "The girl is making the decision more difficult ."


# Attention of a run


def read(args: Any) -> tuple[runs.Run, Any, str, AttentionMaps]:
    """Open a run and let it read --text, with --target or its own answer."""
    run = open_run(args)
    line = line_of(run, args)
    target = args.target or run.predict([line])[0]
    return run, line, target, run.attention(line, target)


def open_run(args: Any) -> runs.Run:
    """Open the run of --workdir."""
    cli.require("workdir", args.workdir, "the run directory to look into")
    cli.check_weights(args.weights)
    return runs.load(args.workdir, args.weights)


def line_of(run: runs.Run, args: Any) -> Any:
    """Return --text, or the example of the run's data that --example names."""
    if args.text:
        return args.text
    split, _, number = args.example.partition(":")
    if not is_whole(number):
        raise UserError(
            "--text is missing: what the model is to read, or --example=SPLIT:NUMBER "
            "of its own data, such as test:0"
        )
    records = run.records(split)
    if int(number) >= len(records):
        raise UserError(
            f"--example={args.example}: {split} has {len(records)} examples"
        )
    return run.task.inference.question(records[int(number)])


def chosen(args: Any, maps: AttentionMaps, own: bool = False) -> str:
    """Return --kind or the first kind available; `own` allows self-attention only."""
    order = [k for k in ("cross", "encoder", "decoder") if k in maps]
    order = [k for k in order if k != "cross"] if own else order
    if not order:
        raise UserError("this model has no self-attention to draw")
    kind = args.kind or order[0]
    if kind not in order:
        hint = nearest(kind, order)
        raise UserError(f"--kind={kind}: choose {' | '.join(order)}.{hint}")
    return kind


def layer_of(args: Any, maps: AttentionMaps, kind: str) -> int:
    """Return --layer, or the last layer."""
    layer = len(maps[kind]) - 1 if args.layer < 0 else args.layer
    capture.check_place(maps, kind, layer, 0)
    return layer


def draw_attention(args: Any) -> "Figure":
    """Draw all heads with words on both axes; --layer draws one layer alone."""
    _, _, _, maps = read(args)
    kind = chosen(args, maps)
    layer = None if args.layer < 0 else layer_of(args, maps, kind)
    return figures.attention(maps[kind], *style.axis_labels(maps, kind), layer=layer)


def draw_heads(args: Any) -> "Figure":
    """Draw a thumbnail of each head."""
    _, _, _, maps = read(args)
    kind = chosen(args, maps)
    return figures.heads(maps[kind], f"All heads at a glance: {kind}")


def draw_arcs(args: Any) -> "Figure":
    """Draw where --word looks: one arc per weight, one colour per head.

    The pieces of a word look, and are looked at, together.
    """
    _, _, _, maps = read(args)
    kind = chosen(args, maps, own=True)
    pieces, numbers = style.group_words(maps.tokens[kind][0])
    words = style.readable(pieces)
    place = place_of(args.word, words)
    weights = measures.by_word(maps[kind][layer_of(args, maps, kind)], numbers, numbers)
    return figures.arcs(weights[:, place], words, place)


def place_of(word: str, words: list[str]) -> int:
    """Return the position of a word; without a word, the middle of the sentence."""
    if not word:
        return len(words) // 2
    if word not in words:
        raise UserError(f"--word={word}: choose one of {' '.join(words)}")
    return words.index(word)


def draw_words(args: Any) -> "Figure":
    """Draw which words of a translation belong to which words of its source."""
    run, line, target, maps = read(args)
    layer = layer_of(args, maps, chosen(args, maps))
    sides = line.split(), target.split()
    weights = aligning.word_attention(run, line, target, sides, args.when)[layer]
    weights = weights.mean(axis=0) if args.head < 0 else weights[args.head]
    return figures.word_links(weights, *sides)


def draw_entropy(args: Any) -> "Figure":
    """Draw how far and how widely each head looks."""
    _, _, _, maps = read(args)
    return figures.entropy_and_distance(maps[chosen(args, maps, own=True)])


def draw_rollout(args: Any) -> "Figure":
    """Draw the attention of all layers combined, down to the words."""
    _, _, _, maps = read(args)
    kind = chosen(args, maps, own=True)
    return figures.rollout(maps[kind], style.readable(maps.tokens[kind][0]))


def draw_patches(args: Any) -> "Figure":
    """Draw what an image classifier looks at, over the picture."""
    _, _, _, maps = read(args)
    if maps.picture is None or maps.grid is None:
        raise UserError("only images have patches: use a run of configs/images.py")
    return figures.patches(maps["encoder"], maps.picture, maps.grid)


def draw_alignment(args: Any) -> "Figure":
    """Draw the alignment error rate of each head on the phrasebook's gold links."""
    errors = aligning.head_errors(open_run(args), args.split, args.sentences, args.when)
    for layer, head, error in aligning.best_heads(errors):
        print(f"layer {layer}, head {head}: alignment error rate {100 * error:.1f} %")
    return figures.alignment_errors(errors, args.sentences)


# Positions and masks


def draw_positions(args: Any) -> "Figure":
    """Draw the positional encoding as a heat map."""
    return figures.positional_encoding(args.length, args.d_model)


def draw_slices(args: Any) -> "Figure":
    """Draw the positional encoding along the positions, at --depths."""
    depths = numbers("depths", args.depths)
    if max(depths) >= args.d_model:
        raise UserError(
            f"--depths={args.depths}: --d_model={args.d_model} has depths up to "
            f"{args.d_model - 1}"
        )
    return figures.positional_slices(args.length, args.d_model, depths)


def draw_waves(args: Any) -> "Figure":
    """Draw short and long waves of the encoding over the words of --text."""
    words = (args.text or SENTENCE).split()
    depths = [2 * (args.d_model * share // 200) for share in (1, 8, 18, 30)]
    return figures.waves(words, args.d_model, depths)


def draw_distances(args: Any) -> "Figure":
    """Draw the dot products of positions against their distance."""
    return figures.dot_products(args.length)


def draw_similarity(args: Any) -> "Figure":
    """Draw how similar the learned positions of words or patches are."""
    run = open_run(args)
    table = capture.position_table(run)
    vision = getattr(run.task.objective.module, "vision", None)
    if vision is not None:
        return figures.patch_similarity(table[1:], vision.grid)
    return figures.similarity(table[: args.length], "Similarity of learned positions")


def draw_mask(args: Any) -> "Figure":
    """Draw the look-ahead mask over the words of --text."""
    words = (args.text or SENTENCE).split()
    mask = look_ahead_mask(jnp.arange(len(words))[None])
    return figures.mask(mask, words, words, "Look-ahead mask")


def draw_masking(args: Any) -> "Figure":
    """Draw scores and weights of a decoder's head before and after its mask."""
    run, line, target, maps = read(args)
    kind = args.kind or "decoder"
    capture.check_place(maps, kind, 0, max(args.head, 0))
    place = kind, layer_of(args, maps, kind), max(args.head, 0)
    found = capture.follow_head(run, line, target, *place)
    before = explain.from_scores(found.scaled).weights
    labels = found.query_labels, found.key_labels
    shown = found.scaled, found.allowed, before, found.weights
    return figures.masking(*shown, *labels)


def draw_padding(args: Any) -> "Figure":
    """Draw a head's weights with padding after the sentence, with and without mask."""
    run, line, target, maps = read(args)
    kind = chosen(args, maps, own=True)
    place = kind, layer_of(args, maps, kind), max(args.head, 0)
    found = capture.follow_head(run, line, target, *place)
    return figures.padding(*with_padding(found, args.pad), found.key_labels)


def with_padding(found: explain.Computation, count: int):
    """Return weights alone, padded with a mask, and without one.

    The queries and keys of padding are zeros.
    """
    if found.queries is None or found.keys is None:
        raise ValueError("a table of scores has no vectors to pad")
    queries, keys = (
        np.pad(x, ((0, count), (0, 0))) for x in (found.queries, found.keys)
    )
    real = np.arange(len(keys)) < len(found.keys)
    seen = np.pad(found.allowed, ((0, count), (0, count)), constant_values=True)
    masked = explain.compute(queries, keys, allowed=seen & real).weights
    return found.weights, masked, explain.compute(queries, keys, allowed=seen).weights


# Training, decoding, structure


def draw_schedule(args: Any) -> "Figure":
    """Draw the paper's learning rate for several --d_models and --warmups."""
    rates = {}
    for d_model in numbers("d_models", args.d_models):
        for warmup in numbers("warmups", args.warmups):
            config = configs.base("translation")
            config.model.d_model, config.optim.warmup_steps = d_model, warmup
            name = f"d_model {d_model}, warmup {warmup:,}"
            rates[name] = optim.make_schedule(config)
    return figures.schedules(rates, args.steps)


def draw_smoothing(args: Any) -> "Figure":
    """Draw the target of the loss with and without label smoothing."""
    words = (args.text or "dog cat sat mat .").split()
    truth = words.index(args.word) if args.word in words else len(words) // 3
    return figures.smoothed_target(words, truth, (0.0, args.smoothing))


def draw_curves(args: Any) -> "Figure":
    """Draw the training of one or several RUNs; seeds of one config form a band."""
    folders = [*args.run, *([args.workdir] if args.workdir else [])]
    if not folders:
        raise UserError("name run directories after 'curves'")
    return figures.curves(training.read_groups(folders))


def draw_beam(args: Any) -> "Figure":
    """Draw the search for an answer to --text as a tree."""
    run = open_run(args)
    options = {"beams": args.beams} if args.beams else {}
    found = beams.search(run, line_of(run, args), args.candidates, **options)
    return figures.beam_tree(found, args.steps_shown)


def draw_neighbours(args: Any) -> "Figure":
    """Draw --words with their nearest neighbours in the embedding."""
    table, pieces = capture.embedding_table(open_run(args))
    whole = [
        i for i, p in enumerate(pieces) if p[:1] == style.SPACE and p[1:].isalpha()
    ]
    words = [pieces[i][1:] for i in whole]
    asked = args.words.split(",") if args.words else words[20:23]
    for word in asked:
        if word not in words:
            hint = nearest(word, words)
            raise UserError(
                f"--words: {word!r} is not a single piece of this run.{hint}"
            )
    return figures.neighbours(table[whole], words, asked, args.count)


def draw_reach(args: Any) -> "Figure":
    """Draw how far gradients reach in RUNs, or in new models of four kinds."""
    if not args.run:
        return figures.reach(gradients.reach_untrained(args.length))
    curves = {}
    for path in args.run:
        run = runs.load(path)
        records = run.records(args.split)
        few = [records[i] for i in range(min(args.sentences, len(records)))]
        curves[run.folder.place.name] = gradients.reach(run, few)
    return figures.reach(curves)


def draw_shapes(args: Any) -> "Figure":
    """Draw the modules of a config's model, and the shapes of their tensors."""
    spec = args.config or "quickstart"
    return figures.shapes(
        modules.calls_of(configs.load(spec, data=False)), f"Model of {spec}"
    )


def numbers(name: str, text: str) -> list[int]:
    """Read numbers separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--{name}={text}: give numbers separated by commas") from None
