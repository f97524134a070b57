"""Each figure shows the numbers that it was given, with their words beside them."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from transformer_jax import config as configs
from transformer_jax import optim, plan, tasks
from transformer_jax.models.positions import sinusoid
from transformer_jax.visualize import figures, measures, modules, style
from transformer_jax.visualize.figures import training
from transformer_jax.visualize.figures.beams import Branch

WORDS = ("The", "girl", "is", "making", "tea")


def draw(figure):
    """Laying out the figure is what warns of labels that find no place."""
    FigureCanvasAgg(figure).draw()
    return figure


def image_of(axes, number=0):
    return np.ma.asarray(axes.images[number].get_array())


def labels_of(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def legend_of(owner):
    return [text.get_text() for text in owner.get_texts()]


@pytest.fixture(scope="module")
def weights():
    random = np.random.default_rng(0)
    return random.dirichlet(np.ones(5), size=(2, 3, 5)).astype(np.float32)


# Attention


def test_thumbnails_stand_by_layer_and_head(weights):
    *panels, bar = draw(figures.heads(weights, "a title")).axes
    for i, axes in enumerate(panels):
        np.testing.assert_array_equal(image_of(axes), weights[divmod(i, 3)])
    assert [axes.get_title() for axes in panels[:3]] == ["0", "1", "2"]
    assert [panels[0].get_ylabel(), panels[3].get_ylabel()] == ["0", "1"]
    assert bar.get_ylabel() == "weight"


def test_pieces_are_joined_into_words():
    pieces = ["▁The", "▁girl", "▁is", "▁mak", "ing", "▁it", ",", "▁", "dif", "ficult"]
    words, numbers = style.group_words([*pieces, ".", "</s>"])
    assert style.readable(words) == [
        "The", "girl", "is", "making", "it", ",", "difficult", ".", "</s>",
    ]  # fmt: skip
    assert numbers == [0, 1, 2, 3, 3, 4, 5, 6, 6, 6, 7, 8]
    assert style.group_words(["1", "2", "3"]) == (["1", "2", "3"], [0, 1, 2])  # times
    assert style.group_words(["▁猫", "が", "犬"])[1] == [0, 1, 2]


def test_arcs_lead_from_the_word_to_what_its_heads_look_at():
    looks = np.array([[0.6, 0.01, 0.0, 0.3, 0.09], [0, 0, 1.0, 0, 0]])
    figure = draw(figures.arcs(looks, WORDS, 3))
    (axes,) = figure.axes
    assert labels_of(axes.xaxis) == list(WORDS)
    bold = [label.get_fontweight() for label in axes.get_xticklabels()]
    assert bold == ["normal", "normal", "normal", "bold", "normal"]
    arcs = [line for line in axes.lines if len(line.get_xdata()) > 1]
    ends = [(round(a.get_xdata()[0]), round(a.get_xdata()[-1])) for a in arcs]
    assert ends == [(3, 0), (3, 4), (3, 2)]  # and 0.01 is left out
    assert len({arc.get_color() for arc in arcs[:2]}) == 1
    assert arcs[2].get_color() != arcs[0].get_color()
    widths = [arc.get_linewidth() for arc in arcs]
    assert widths[2] > widths[0] > widths[1]
    own = [line for line in axes.lines if line.get_marker() == "o"]
    assert [round(line.get_xdata()[0]) for line in own] == [3]
    assert legend_of(figure.legends[0]) == ["head 0", "head 1"]


def test_links_of_one_word_to_two_and_two_to_one_have_their_colours():
    looks = np.zeros((4, 3))  # target words, source words
    looks[0, 0] = looks[1, 1] = looks[2, 1] = 0.9
    looks[3, 2], looks[3, 0] = 0.5, 0.1
    figure = draw(figures.word_links(looks, ["a", "b", "c"], ["w", "x", "y", "z"]))
    (axes,) = figure.axes
    lines = [line for line in axes.lines if len(line.get_xdata())]
    assert len(lines) == 4  # not the one of 0.1
    names = dict(zip(
        [h.get_color() for h in figure.legends[0].get_lines()],
        legend_of(figure.legends[0]), strict=True,
    ))  # fmt: skip
    assert [names[line.get_color()] for line in lines] == [
        "one to one",
        "one source word to several",
        "one source word to several",
        "one to one",
    ]
    assert lines[1].get_xdata()[0] == lines[2].get_xdata()[0]  # both from "b"
    assert [t.get_text() for t in axes.texts] == [*"abcwxyz"]
    two_to_one = figures.word_links(looks.T, ["w", "x", "y", "z"], ["a", "b", "c"])
    found = [
        line.get_color() for line in two_to_one.axes[0].lines if len(line.get_xdata())
    ]
    assert [names[color] for color in found].count("several source words to one") == 2


def test_heads_are_marked_at_their_distance_and_entropy(weights):
    (axes,) = draw(figures.entropy_and_distance(weights)).axes
    for layer in (0, 1):
        x, y = axes.lines[layer].get_data()
        np.testing.assert_allclose(x, measures.distance(weights)[layer])
        np.testing.assert_allclose(y, measures.entropy(weights)[layer])
    assert legend_of(axes.get_legend()) == ["layer 0", "layer 1"]
    assert "in pieces" in axes.get_xlabel() and "in bits" in axes.get_ylabel()


def test_rollout_stands_beside_the_last_layers_mean(weights):
    last, rolled, _ = draw(figures.rollout(weights, WORDS)).axes
    np.testing.assert_allclose(image_of(last), weights[1].mean(0))
    np.testing.assert_allclose(image_of(rolled), measures.rollout(weights)[1])
    assert labels_of(last.yaxis) == labels_of(last.xaxis) == list(WORDS)


def test_patches_are_what_the_class_token_gives_them(weights):
    looks = np.random.default_rng(1).dirichlet(np.ones(7), (2, 3, 7))
    picture = np.linspace(0, 1, 4 * 6).reshape(4, 6, 1)
    figure = draw(figures.patches(looks, picture, (2, 3)))
    panels = figure.axes[:-1]
    assert len(panels) == 2 * (1 + 3)
    np.testing.assert_array_equal(image_of(panels[0]), picture[..., 0])
    seen = looks[1, 2, 0, 1:]
    drawn = panels[7].images[1]
    np.testing.assert_allclose(drawn.get_array(), (seen / seen.max()).reshape(2, 3))
    assert drawn.get_extent() == panels[0].images[0].get_extent() or (
        tuple(drawn.get_extent()) == (-0.5, 5.5, 3.5, -0.5)
    )
    assert panels[7].get_title() == f"head 2: {seen.sum():.2f}"


def test_the_best_aligned_head_is_framed():
    errors = np.array([[0.9, 0.4, 0.5], [0.3, 0.125, 0.7]])
    axes, _ = draw(figures.alignment_errors(errors, 1234)).axes
    np.testing.assert_array_equal(image_of(axes), errors)
    (frame,) = axes.patches
    x, y = frame.get_x() + frame.get_width() / 2, frame.get_y() + frame.get_height() / 2
    assert (round(x), round(y)) == (1, 1)
    assert "12.5 %" in [text.get_text() for text in axes.texts]
    assert "1,234" in axes.get_title()


# Positions and masks


def test_waves_go_through_the_encoding_of_each_word():
    strips = draw(figures.waves(WORDS, 64, (4, 20))).axes
    encoding = sinusoid(jnp.arange(5)[None], 64)[0]
    for axes, depth in zip(strips, (4, 20), strict=True):
        x, y = axes.lines[1].get_data()
        np.testing.assert_array_equal(x, np.arange(5))
        np.testing.assert_array_equal(y, encoding[:, depth])
        between, curve = axes.lines[0].get_data()
        np.testing.assert_allclose(np.interp(x, between, curve), y, atol=1e-3)
    assert labels_of(strips[1].xaxis) == list(WORDS)
    assert strips[0].get_title(loc="left") == "wave of 11.2 words"  # 2π · 10⁴^(4/64)


def test_dot_products_are_highest_at_0_and_the_same_both_ways():
    (axes,) = draw(figures.dot_products(9, (16, 32))).axes
    for line, d_model in zip(axes.lines, (16, 32), strict=True):
        x, y = line.get_data()
        np.testing.assert_array_equal(x, np.arange(-9, 10))
        np.testing.assert_allclose(y, y[::-1], atol=1e-5)
        encoding = np.asarray(sinusoid(jnp.arange(4)[None], d_model)[0])
        share = encoding[0] @ encoding[3] / (encoding[0] @ encoding[0])
        np.testing.assert_allclose(y[9 + 3], share, atol=1e-5)


def test_similarity_is_the_cosine_of_positions_and_of_patches():
    table = np.random.default_rng(0).normal(size=(6, 4))
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    axes, _ = draw(figures.similarity(table)).axes
    np.testing.assert_allclose(image_of(axes), unit @ unit.T)
    *panels, _ = draw(figures.patch_similarity(table, (2, 3))).axes
    np.testing.assert_allclose(image_of(panels[4]), (unit @ unit[4]).reshape(2, 3))
    assert image_of(panels[4])[1, 1] == pytest.approx(1)


def test_a_mask_takes_its_scores_out_and_the_rest_share_the_weight():
    scores = np.arange(6.0).reshape(2, 3)
    allowed = np.array([[1, 0, 0], [1, 1, 0]], bool)
    before, after = np.full((2, 3), 1 / 3), np.array([[1, 0, 0], [0.5, 0.5, 0]])
    shown = figures.masking(scores, allowed, before, after, WORDS[:2], WORDS[:3])
    panels = [axes for axes in draw(shown).axes if axes.get_title()]
    titles = [axes.get_title() for axes in panels]
    assert titles == [f"{n}s {w}" for n in ("score", "weight")
                      for w in ("before the mask", "after it")]  # fmt: skip
    np.testing.assert_array_equal(image_of(panels[0]), scores)
    np.testing.assert_array_equal(np.ma.getmaskarray(image_of(panels[1])), ~allowed)
    np.testing.assert_array_equal(image_of(panels[3]), after)
    hidden = [t for t in panels[1].texts if t.get_text() == "−∞"]
    assert len(hidden) == 3 and {t.get_color() for t in hidden} == {"black"}
    assert labels_of(panels[2].yaxis) == list(WORDS[:2])


def test_padding_is_shown_alone_masked_and_unmasked(weights):
    alone, masked, unmasked = weights[0, 0, :3, :3], weights[0, 1], weights[0, 2]
    figure = draw(figures.padding(alone, masked, unmasked, WORDS[:3]))
    *panels, _ = figure.axes
    for axes, values in zip(panels, (alone, masked, unmasked), strict=True):
        np.testing.assert_array_equal(image_of(axes), values)
    assert labels_of(panels[1].xaxis) == [*WORDS[:3], "<pad>", "<pad>"]


# Training


def test_the_paper_s_rate_peaks_at_the_end_of_its_warmup():
    config = configs.base("translation")
    config.model.d_model, config.optim.warmup_steps = 512, 400
    rates = {"here": optim.make_schedule(config)}
    (axes,) = draw(figures.schedules(rates, 2000)).axes
    x, y = axes.lines[0].get_data()
    assert abs(x[y.argmax()] - 400) < 5
    assert y.max() == pytest.approx((512 * 400) ** -0.5, rel=0.01)
    assert legend_of(axes.get_legend()) == ["here"]


def test_the_target_is_that_of_the_loss_not_a_formula_of_ours():
    np.testing.assert_allclose(
        training.target_of(5, 2, 0.2), [0.05, 0.05, 0.8, 0.05, 0.05], atol=1e-6
    )
    hard, soft = draw(figures.smoothed_target(WORDS, 1, (0.0, 0.2))).axes
    np.testing.assert_allclose([b.get_width() for b in hard.patches], np.eye(5)[1],
                               atol=1e-6)  # fmt: skip
    widths = [bar.get_width() for bar in soft.patches]
    np.testing.assert_allclose(widths, [0.05, 0.8, 0.05, 0.05, 0.05], atol=1e-6)
    assert labels_of(hard.yaxis) == list(WORDS)
    assert hard.yaxis_inverted()


def entries(*losses, kind="train"):
    return [
        {"step": 10 * (i + 1), "kind": kind, "loss": x, "accuracy": 1 / x}
        for i, x in enumerate(losses)
    ]


def test_seeds_are_a_mean_in_a_band_over_the_steps_that_all_have():
    runs = {"base": [entries(4.0, 2.0, 1.0), entries(6.0, 4.0)], "big": [entries(3.0)]}
    loss, accuracy = draw(figures.curves(runs)).axes
    x, y = loss.lines[0].get_data()
    np.testing.assert_array_equal(x, [10, 20])
    np.testing.assert_array_equal(y, [5.0, 3.0])
    (band,) = loss.collections
    assert set(band.get_paths()[0].vertices[:, 1]) >= {4.0, 6.0, 2.0}
    assert to_hex(band.get_facecolor()[0]).upper() == loss.lines[0].get_color()
    assert accuracy.get_title() == "accuracy" and loss.get_xlabel() == "update"


def test_validation_is_dots_and_its_score_a_panel_of_its_own():
    scored = [{**e, "bleu": 20.0} for e in entries(2.0, kind="validation")]
    figure = draw(figures.curves({"base": [[*entries(4.0, 2.0), *scored]]}))
    assert [axes.get_title() for axes in figure.axes] == [
        "loss, nats",
        "accuracy",
        "BLEU",
    ]
    assert figure.axes[0].lines[1].get_marker() == "o"
    assert figure.axes[2].lines[0].get_ydata() == [20.0]
    assert legend_of(figure.legends[0]) == ["base, train", "base, validation"]


def test_runs_that_differ_in_their_seed_alone_are_a_group(tmp_path):
    for name, seed, width in (("a", 0, 128), ("b", 1, 128), ("c", 0, 64)):
        config = configs.load(
            "quickstart", {"seed": str(seed), "model.d_model": str(width)}
        )
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config.to_json())
        lines = map(json.dumps, entries(2.0 + seed))
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    groups = training.read_groups([tmp_path / name for name in "abc"])
    assert {name: len(runs) for name, runs in groups.items()} == {
        "a (2 seeds)": 2,
        "c": 1,
    }


# Decoding and structure

TREE = [
    Branch((5,), ("▁a",), -0.1, 0.9, "best"),
    Branch((6,), ("▁b",), -2.3, 0.1, "discarded"),
    Branch((5, 3), ("▁a", "</s>"), -0.2, 0.9, "best", -0.15),
    Branch((5, 7), ("▁a", "▁c"), -2.0, 0.14, "kept"),
]


def test_a_beam_is_a_tree_whose_discarded_branches_are_grey_and_dotted():
    (axes,) = draw(figures.beam_tree(TREE)).axes
    texts = {t.get_text(): t for t in axes.texts}
    assert set(texts) == {"a .90", "b .10", "</s> .90  score -0.15", "c .14"}
    assert texts["a .90"].get_position()[1] == 0  # the answer is the first row
    assert texts["b .10"].get_position()[1] > texts["c .14"].get_position()[1]
    assert texts["c .14"].get_position()[0] > texts["a .90"].get_position()[0]
    drawn = [line for line in axes.lines if len(line.get_xdata())]
    dotted = [line for line in drawn if line.get_linestyle() == ":"]
    assert len(drawn) == 4 and len(dotted) == 1
    assert dotted[0].get_ydata()[1] == texts["b .10"].get_position()[1]
    short = figures.beam_tree(TREE, steps=1)
    assert len(short.axes[0].texts) == 2


def test_neighbours_are_those_of_the_largest_cosine():
    table = np.random.default_rng(3).normal(size=(30, 8))
    table[7] = table[3] + 0.01
    names = [f"w{i}" for i in range(30)]
    (axes,) = draw(figures.neighbours(table, names, ["w3"], count=2)).axes
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    nearest = np.argsort(-(unit @ unit[3]))[:3]
    assert nearest[1] == 7
    assert {t.get_text() for t in axes.texts} == {f"w{i}" for i in nearest}
    bold = [t.get_text() for t in axes.texts if t.get_fontweight() == "bold"]
    assert bold == ["w3"]


def test_shapes_are_those_of_the_model_and_equal_layers_are_shown_once():
    calls = modules.calls_of(configs.load("quickstart"))
    found = {"/".join(call.path): call for call in calls}
    cross = found["decoder/layer_0/cross_attention"]
    assert cross.inputs == ("[B T 128]", "[B 4 S 32]")
    assert cross.output == "[B T 128], [B 4 T S]"
    assert cross.parameters == 4 * 128 * 128 + 4 * 128
    assert found["embedding"].inputs == ("[B T]",)
    assert found["logits"].inputs == ("[B T 128]",)
    assert "encoder/layer_1" in found and "encoder/layer_1/feed_forward" not in found
    (axes,) = draw(figures.shapes(calls)).axes
    texts = [t.get_text() for t in axes.texts]
    assert "[B T 128], [B 4 S 32] → [B T 128], [B 4 T S]" in texts
    assert texts.index("encoder") < texts.index("decoder") < texts.index("logits")


# A shipped config of each task and model, and each without a name of a variant.
SPECS = {(c.task, c.model.name): spec for spec, c in plan.shipped_variants()}
SPECS = [*dict.fromkeys((*configs.shipped(), *SPECS.values()))]


@pytest.mark.parametrize("spec", SPECS)
def test_every_kind_of_model_has_a_diagram(spec):
    calls = modules.calls_of(configs.load(spec, data=False))
    assert len(calls) > 1 and all(call.output for call in calls if call.parameters)


def test_these_are_all_kinds():
    shown = {configs.load(spec, data=False).task for spec in SPECS}
    assert shown == {*tasks.names()}


# Style


def test_pieces_are_written_as_words_and_their_rest_with_a_dot():
    pieces = ("<s>", "▁ga", "tinho", "▁", ".", "</s>")
    assert style.readable(pieces) == ["<s>", "ga", "·tinho", "␣", ".", "</s>"]


def test_the_same_figure_gives_the_same_bytes(tmp_path):
    for name in ("a.svg", "b.svg"):
        style.save(figures.dot_products(5, (8,)), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_colours_and_dashes_tell_24_lines_apart():
    looks = [tuple(style.line(i).values()) for i in range(24)]
    assert len(set(looks)) == 24
