"""What a run begins with: another run's parameters, or word vectors."""

import functools
import shutil
import types

import jax
import numpy as np
import pytest

import transformer_jax
from transformer_jax import config, optim, sharding, train
from transformer_jax.base.errors import UserError
from transformer_jax.data.text import learning
from transformer_jax.data.text.tokenizer import SPACE
from transformer_jax.models import transformer_config
from transformer_jax.runs import folder as folders
from transformer_jax.runs import run as runs
from transformer_jax.runs.checkpoint import Checkpoints
from transformer_jax.training import log as metrics
from transformer_jax.training import prepare
from transformer_jax.training import warm_start as initial
from transformer_jax.training.warm_start import tables, word_vectors

pytestmark = pytest.mark.usefixtures("one_device")
SMALL = {"data.window": "37", "data.train_size": "211"}


@pytest.fixture(scope="module")
def pretrained(tiny_run_of):
    """A masked language model."""
    return tiny_run_of("masked:opinions", **SMALL)


def load(spec, tiny, **changes):
    known = dict(config.items(config.load(spec)))
    overrides = {k: v for k, v in tiny().items() if k in known}
    return config.load(spec, overrides | changes)


def prepared(loaded, folder, said=None):
    say = [].append if said is None else said.append
    return prepare.prepare(loaded, folders.Folder(folder), say)


def by_path(params):
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {sharding.path_name(path): np.asarray(leaf) for path, leaf in leaves}


def filled(task, mesh, said):
    """(random parameters, what they become)."""
    places = sharding.shardings(
        jax.eval_shape(task.objective.init, jax.random.key(5)), mesh
    )
    params = jax.jit(task.objective.init, out_shardings=places)(jax.random.key(5))
    return params, initial.fill(task, params, mesh, said.append)


def finetune(tiny, pretrained, **changes):
    return load("opinions", tiny, **{"train.initial": str(pretrained)}, **changes)


@pytest.mark.system
def test_a_classifier_takes_all_but_its_head(tiny, pretrained, tmp_path):
    said = []
    task = prepared(finetune(tiny, pretrained), tmp_path / "run").task
    origin = transformer_jax.load(pretrained)
    assert task.data.tokenizer.fingerprint == origin.task.data.tokenizer.fingerprint
    params, result = map(by_path, filled(task, sharding.local_mesh(), said))
    theirs = by_path(origin.params)
    assert set(params) - set(theirs) == {"head/bias", "head/kernel"}
    for name, value in result.items():
        expected = theirs.get(name, params[name])
        np.testing.assert_array_equal(value, expected)
    text = "\n".join(said)
    count = len(theirs)
    assert f"{count} arrays of {pretrained} (averaged parameters of step 12)" in text
    assert f"embedding 1, encoder {count - 1}" in text
    assert "fresh      2 arrays: head 2" in text
    assert f"differs    {pretrained} has model.dropout_embedding 0.0, " in text


def test_the_weights_are_those_of_the_other_runs_choice(tiny, pretrained, tmp_path):
    other = tmp_path / "origin"
    shutil.copytree(pretrained, other)
    folder = folders.Folder(other)
    stored = folder.read("config.json")
    stored["eval"]["weights"] = "last"
    folder.write("config.json", stored)
    said = []
    task = prepared(finetune(tiny, other), tmp_path / "run").task
    _, result = filled(task, sharding.local_mesh(), said)
    last = transformer_jax.load(pretrained, "last").params
    mine = by_path(result)["embedding/embedding"]
    np.testing.assert_array_equal(mine, last["embedding"]["embedding"])
    assert "(last parameters of step 12)" in said[0]


def test_a_mesh_of_several_devices_gets_the_same_at_its_places(
    tiny, pretrained, tmp_path
):
    task = prepared(finetune(tiny, pretrained), tmp_path / "run").task
    sizes = {"data": 2, "fsdp": 2, "tensor": 2, "sequence": 1}
    axes = sharding.AXES
    mesh = jax.make_mesh(
        sharding.mesh_shape(sizes, 8), axes, axis_types=(sharding.AxisType.Auto,) * 4
    )
    params, result = filled(task, mesh, [])
    _, alone = filled(task, sharding.local_mesh(), [])
    for name, value in by_path(alone).items():
        np.testing.assert_array_equal(by_path(result)[name], value)
    same = jax.tree.map(lambda a, b: a.sharding == b.sharding, params, result)
    assert all(jax.tree.leaves(same))


@pytest.mark.system
def test_a_fine_tuned_run_continues_without_the_other(tiny, pretrained, tmp_path):
    origin, folder = tmp_path / "origin", tmp_path / "run"
    shutil.copytree(pretrained, origin)
    short = {"train.steps": "3", "optim.warmup_steps": "2", "eval.splits": ""}
    short |= {"optim.ema": "0.9", "optim.decay_steps": "6"}
    assert train.train(finetune(tiny, origin, **short), folder) == 0
    shutil.rmtree(origin)
    longer = finetune(tiny, origin, **short | {"train.steps": "6"})
    assert train.train(longer, folder) == 0
    entries = metrics.read_entries(folder / "metrics.jsonl")
    assert [e["step"] for e in entries if e["kind"] == "train"] == list(range(1, 7))
    with pytest.raises(UserError, match="train.initial = .*names no run"):
        train.train(longer, tmp_path / "another")


@pytest.mark.system
def test_a_translation_goes_on_as_another_translation(tiny, tiny_run, tmp_path):
    loaded = load("quickstart", tiny, **{"train.initial": str(tiny_run)})
    task = prepared(loaded, tmp_path / "run").task
    _, result = filled(task, sharding.local_mesh(), said := [])
    theirs = by_path(transformer_jax.load(tiny_run).params)
    for name, value in by_path(result).items():
        np.testing.assert_array_equal(value, theirs[name])
    assert len(said) == 1  # nothing is fresh, nothing differs


def test_the_log_says_whose_tokenizer_is_used_and_which_options_are_not(
    tiny, pretrained, tmp_path
):
    said = []
    changes = {"tokenizer.vocab_size": "431", "tokenizer.kind": "bpe"}
    prepared(finetune(tiny, pretrained, **changes), tmp_path / "run", said)
    text = "\n".join(said)
    assert f"tokenizer  that of {pretrained}" in text
    assert "not used, as the tokenizer exists: tokenizer.kind = 'bpe', tok" in text
    assert "tokenizer.vocab_size = 431" in text


def test_parameters_of_another_function_are_a_warning(tiny, pretrained, tmp_path):
    changes = {"model.activation": "gelu_tanh", "model.dropout_layers": "0.2"}
    task = prepared(finetune(tiny, pretrained, **changes), tmp_path / "run").task
    filled(task, sharding.local_mesh(), said := [])
    warning, note = said[-2:]
    assert warning.startswith("warning    the copied parameters belong to another func")
    assert "model.activation 'relu'" in warning and "dropout" not in warning
    assert note.startswith("differs") and "model.dropout_layers" in note


def test_a_name_of_a_foreign_model_is_refused_in_words(tiny, pretrained, tmp_path):
    loaded = load("opinions", tiny, **{"train.initial": "bert-base-uncased"})
    message = "names no run directory, bundle or folder of Hugging Face"
    with pytest.raises(UserError, match=message):
        prepared(loaded, tmp_path / "run")
    near = load("opinions", tiny, **{"train.initial": f"{pretrained}s"})
    with pytest.raises(UserError, match=f"Did you mean '{pretrained.name}'"):
        prepared(near, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model.d_model": "32"},
            r"\(\d+, 32\), but \(\d+, 16\) in train.initial.*: set model.d_model = 16$",
        ),
        ({"model.d_ff": "28"}, r"set model.d_ff = 24$"),
        ({"tokenizer.row_multiple": "7"}, r"set tokenizer.row_multiple = 64$"),
    ],
)
def test_another_shape_is_refused_with_the_key_to_change(
    tiny, pretrained, tmp_path, changes, message
):
    with pytest.raises(UserError, match=message):
        prepared(finetune(tiny, pretrained, **changes), tmp_path / "run")


def test_another_vocabulary_is_refused_in_words(tiny, pretrained, tmp_path):
    made = learning.train(["a b c d e f g"], "char", 20, byte_fallback=False)
    made.save(tmp_path / "other.model")
    given = {"tokenizer.kind": "file", "tokenizer.file": str(tmp_path / "other.model")}
    with pytest.raises(UserError, match="has another vocabulary for the table"):
        prepared(finetune(tiny, pretrained, **given), tmp_path / "run")
    given["tokenizer.file"] = str(pretrained / "tokenizer" / "text.model")
    prepared(finetune(tiny, pretrained, **given), tmp_path / "same")


def test_where_nothing_fits_both_runs_are_named(pretrained):
    loaded = config.base("language")
    loaded.train.initial = str(pretrained)
    other = types.SimpleNamespace(
        data=types.SimpleNamespace(vocabularies={}, labels=()),
        objective=types.SimpleNamespace(init=lambda key: {"gate": jax.numpy.ones(3)}),
        config=loaded,
    )
    message = r"\(masked, transformer\) has no parameter .*\(language, transformer\)"
    with pytest.raises(UserError, match=message):
        initial.Origin(loaded).check(other)


# Word vectors


def vectors_for(tokenizer, folder, size=16, every=1):
    """A file with a vector for each n-th word of a vocabulary."""
    words = word_vectors._words(tokenizer)
    random = np.random.default_rng(1)
    rows = list(words)[::every]
    table = {words[row].lower(): random.normal(3, 5, size) for row in rows}
    lines = [f"{w} {' '.join(f'{x:.5f}' for x in v)}\n" for w, v in table.items()]
    path = folder / "vectors.txt"
    path.write_text("absent" + " 1" * size + "\n" + "".join(lines))
    return path, table, words


@pytest.mark.parametrize("kind", ["unigram", "word"])
def test_rows_of_words_begin_as_their_vectors_the_others_at_random(
    tiny, tmp_path, kind
):
    settings = {"tokenizer.kind": kind, "tokenizer.user_symbols": "<mask>"}
    loaded = load("masked", tiny, **SMALL, **settings)
    task = prepared(loaded, tmp_path / "run").task
    path, table, words = vectors_for(task.data.tokenizer, tmp_path, every=3)
    with loaded.unlocked():
        loaded.model.word_vectors = str(path)
    params, result = filled(task, sharding.local_mesh(), said := [])
    before, after = (np.asarray(p["embedding"]["embedding"]) for p in (params, result))
    known = [row for row, word in words.items() if word.lower() in table]
    given = np.stack([table[words[row].lower()] for row in known])
    assert len(known) > 20
    np.testing.assert_allclose(
        after[known], given * (16**-0.5 / given.std()), rtol=1e-3, atol=1e-4
    )
    assert after[known].std() == pytest.approx(16**-0.5, rel=1e-3)
    others = sorted({*range(len(before))} - {*known})
    np.testing.assert_array_equal(after[others], before[others])
    counts = f"{len(known):,} of the {len(words):,} words of embedding"
    assert said == [f"vectors    {counts} begin as in {path}"]


def test_a_word_is_a_piece_with_a_space_or_a_sign():
    special = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "<0x41>"]
    pieces = [*special, f"{SPACE}the", "ing", SPACE, ".", f"{SPACE},"]
    tokenizer = types.SimpleNamespace(
        vocab_size=len(pieces), pieces=lambda ids: [pieces[i] for i in ids]
    )
    assert word_vectors._words(tokenizer) == {6: "the", 9: ".", 10: ","}


def test_two_tables_each_have_their_words(tiny, tmp_path):
    two = {"tokenizer.shared": "false", "model.tie": "decoder"}
    loaded = load("quickstart", tiny, **two)
    task = prepared(loaded, tmp_path / "run").task
    path, *_ = vectors_for(task.data.target_tokenizer, tmp_path)
    with loaded.unlocked():
        loaded.model.word_vectors = str(path)
    params, result = filled(task, sharding.local_mesh(), said := [])
    assert "of source_embedding and " in said[0] and "of target_embedding" in said[0]
    changed = {
        name
        for name, value in by_path(result).items()
        if not np.array_equal(value, by_path(params)[name])
    }
    assert changed == {"source_embedding/embedding", "target_embedding/embedding"}


def test_vectors_of_no_word_or_of_another_size_are_refused(tiny, tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("xyzzy" + " 1" * 16 + "\n")
    loaded = load("masked", tiny, **SMALL, **{"model.word_vectors": str(path)})
    task = prepared(loaded, tmp_path / "run").task
    with pytest.raises(UserError, match=r"none of 0 of the \d+ words of embedding"):
        filled(task, sharding.local_mesh(), [])
    path.write_text("the" + " 1" * 15 + "\n")
    with pytest.raises(UserError) as caught:
        load("masked", tiny, **SMALL, **{"model.word_vectors": str(path)})
    text = str(caught.value)
    assert "vectors of 15 numbers, but model.d_model is 16" in text
    assert "set model.d_model = 15 and model.num_heads = 1" in text
    with pytest.raises(UserError, match="there is no file nowhere"):
        load("masked", tiny, **SMALL, **{"model.word_vectors": "nowhere"})


def test_a_table_cannot_begin_with_both_nor_stay_random():
    for changes, message in (
        ({"model.word_vectors": "v", "train.initial": "r"}, "cannot begin with both"),
        ({"model.train_word_vectors": "false"}, "would freeze a random table"),
    ):
        with pytest.raises(UserError, match=message):
            config.load("quickstart", changes)
    assert transformer_config.divisor_near(300, 7) == 6


@pytest.mark.system
def test_a_frozen_table_stays_and_all_else_moves(tiny, tmp_path):
    loaded = load("masked", tiny, **SMALL)
    task = prepared(loaded, tmp_path / "learn").task
    path, *_ = vectors_for(task.data.tokenizer, tmp_path)
    frozen = {"model.word_vectors": str(path), "model.train_word_vectors": "false"}
    short = {"train.steps": "6", "eval.splits": "", "optim.clip_norm": "0.5"}
    loaded = load("masked", tiny, **SMALL, **frozen, **short)
    folder = folders.Folder(tmp_path / "run")
    assert train.train(loaded, folder.path) == 0
    saved = Checkpoints(folder.checkpoints)
    like = runs.abstract_params(task, sharding.local_mesh())
    first, last = (by_path(saved.restore_params(s, like)) for s in (3, 6))
    for name, value in first.items():
        same = np.array_equal(value, last[name])
        assert same == (name == "embedding/embedding"), name
    assert first["embedding/embedding"].std() == pytest.approx(16**-0.5, rel=0.1)


def test_a_frozen_table_has_no_moments(tiny):
    loaded = load("quickstart", tiny)
    with loaded.unlocked():
        loaded.model.train_word_vectors = False
    table, kernel = np.ones((5, 3)), np.ones((3, 7))
    params = {"embedding": {"embedding": table}, "out": {"kernel": kernel}}
    state = optim.make_optimizer(loaded).init(params)
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(state)]
    assert (3, 7) in shapes and (5, 3) not in shapes


def test_a_config_takes_over_the_model_that_it_starts_from(tiny, pretrained, tmp_path):
    tiny_options = tiny()
    known = dict(config.items(config.load("opinions")))
    kept = {
        name: value
        for name, value in tiny_options.items()
        if name in known and not name.startswith(("model.", "tokenizer."))
    }
    changed = functools.partial(initial.adopt, path=str(pretrained))
    loaded = config.load("opinions", kept, change=changed)
    origin = folders.Folder(pretrained).config()
    for name in ("d_model", "d_ff", "num_heads", "encoder_layers", "norm"):
        assert loaded.model[name] == origin.model[name]
    usual = config.load("opinions").model
    assert loaded.model.dropout_residual == usual.dropout_residual
    assert loaded.model.pooling == usual.pooling  # which the origin does not have
    done = prepared(loaded, tmp_path / "run", said := [])
    _, params = filled(done.task, sharding.local_mesh(1), said)
    theirs = by_path(transformer_jax.load(pretrained).params)
    ours = by_path(params)
    same = [name for name in ours if name in theirs]
    assert len(same) > 10
    for name in same:
        np.testing.assert_array_equal(ours[name], theirs[name])


# Another vocabulary, and more positions


def test_pieces_are_put_together_from_the_longest_parts():
    class Of:
        lowercase = False

        def __init__(self, *pieces):
            self.all = ["<pad>", "<unk>", "<s>", "</s>", *pieces]
            self.vocab_size = len(self.all)

        def pieces(self, ids):
            return [self.all[i] for i in ids]

    old = Of("<0x41>", f"{SPACE}the", SPACE, "t", "he", "h", "e", "r")
    new = Of(f"{SPACE}there", f"{SPACE}the", "x", "hex", "<0x41>", "<0x42>", "There")
    found = tables.find_parts(old, new)
    assert found[:4] == [[0], [1], [2], [3]]
    assert found[4:] == [[5, 11, 10], [5], [], [], [4], [], []]
    old.lowercase = True
    assert tables.find_parts(old, new)[-1] == [7, 8, 11, 10]
    assert tables.describe_parts(found) == (
        "of 11 pieces, 6 keep their row, 1 begin as the mean of their parts, 4 are new"
    )


@pytest.mark.parametrize("axis", [0, -1])
def test_rows_are_means_of_their_parts_and_others_stay(axis):
    old, drawn = np.arange(15.0).reshape(5, 3), -np.ones((4, 3))
    change = tables.take_rows([[2], [0, 4], []], axis)
    turned = (old.T, drawn.T) if axis else (old, drawn)
    found = np.asarray(change(turned[1], turned[0]))
    found = found.T if axis else found
    np.testing.assert_allclose(found, [old[2], (old[0] + old[4]) / 2, *drawn[2:]])
    numbers = np.asarray(
        tables.take_rows([[1], [0, 1]], 0)(np.zeros(3), np.array([2.0, 4]))
    )
    np.testing.assert_allclose(numbers, [4, 3, 0])


def test_a_translator_goes_on_with_another_vocabulary(tiny, tiny_run, tmp_path):
    """Its rows come by piece, from one table to two; all else is taken whole."""
    changes = {"tokenizer.replace": "true", "tokenizer.vocab_size": "350"}
    changes |= {"tokenizer.shared": "false", "model.tie": "decoder"}
    loaded = load("quickstart", tiny, **{"train.initial": str(tiny_run)}, **changes)
    task = prepared(loaded, tmp_path / "run").task
    random, result = filled(task, sharding.local_mesh(), said := [])
    theirs = transformer_jax.load(tiny_run)
    old = by_path(theirs.params)["embedding/embedding"]
    result, random = by_path(result), by_path(random)
    other = theirs.task.data.vocabularies["embedding"]
    for side in ("source", "target"):
        name = f"{side}_embedding"
        parts = tables.find_parts(other, task.data.vocabularies[name])
        table = result[f"{name}/embedding"]
        kinds = set()
        for row, found in enumerate(parts):
            kinds.add(min(len(found), 2))
            wanted = old[found].mean(0) if found else random[f"{name}/embedding"][row]
            np.testing.assert_allclose(table[row], wanted, rtol=1e-5, atol=1e-6)
        assert {1, 2} <= kinds
        assert any(line.startswith(f"rows       {name}: of ") for line in said)
    inner = [name for name in by_path(theirs.params) if "embedding" not in name]
    for name in inner:
        np.testing.assert_array_equal(result[name], by_path(theirs.params)[name])
    assert inner and not any("fresh" in line for line in said)


@pytest.mark.parametrize(
    ("stack", "side"), [("encoder", "source"), ("decoder", "target")]
)
def test_one_stack_is_a_side_of_a_model_with_two(stack, side):
    single = {
        f"{stack}/layer_0/bias": 1,
        "embedding/embedding": 2,
        "positions/table": 3,
        "embedding_norm/scale": 4,
        "pooler/kernel": 5,
    }
    double = {
        "encoder/layer_0/bias": 6,
        "decoder/layer_0/bias": 7,
        f"{side}_embedding/embedding": 8,
        f"{side}_positions/table": 9,
        f"{side}_norm/scale": 10,
    }
    found = tables.by_own_names(double, single)
    assert {name: found.get(name) for name in double if side in name} == {
        f"{side}_embedding/embedding": 2,
        f"{side}_positions/table": 3,
        f"{side}_norm/scale": 4,
    }
    found = tables.by_own_names(single, double)
    names = "embedding/embedding", "positions/table", "embedding_norm/scale"
    assert [found[name] for name in names] == [8, 9, 10]
    # Names that agree, and the other side, stay as they are.
    for own, theirs in ((single, single), (double, double)):
        assert tables.by_own_names(own, theirs) == theirs
    other = {"source": "target", "target": "source"}[side]
    for name in (f"{other}_embedding/embedding", f"{other}_positions/table"):
        assert name not in tables.by_own_names({**double, name: 0}, single)


@pytest.mark.parametrize("table", ["embedding", "target_embedding"])
def test_outputs_that_are_apart_are_taken_by_piece_too(table):
    """Also if both have as many rows, in which the same piece has another place."""
    sizes = {f"{table}/embedding": (4, 3), "projection/kernel": (3, 4)}
    sizes["output_bias/bias"] = (4,)
    theirs = {
        name: np.arange(np.prod(s), dtype=float).reshape(s) for name, s in sizes.items()
    }
    own = {name: -np.ones(shape) for name, shape in sizes.items()}
    settings = config.base("translation")
    parts = {table: [[0], [2], [1], []]}
    changes = tables.find_changes(settings, own, theirs, parts, [])
    assert set(changes) == set(own)
    for name, (source, change) in changes.items():
        axis = 0 if name.startswith(table) else -1
        before, after = theirs[source], change(own[name], theirs[source])
        np.testing.assert_array_equal(
            np.take(after, [0, 1, 2], axis), np.take(before, [0, 2, 1], axis)
        )
        assert np.all(np.take(after, [3], axis) == -1)


@pytest.mark.system
def test_a_run_with_another_vocabulary_trains_and_continues(tiny, tiny_run, tmp_path):
    changes = {"tokenizer.replace": "true", "tokenizer.vocab_size": "350"}
    loaded = load("quickstart", tiny, **{"train.initial": str(tiny_run)}, **changes)
    assert train.train(loaded, tmp_path / "run") == 0
    longer = load("quickstart", tiny, **{"train.initial": str(tiny_run)}, **changes)
    longer.train.steps = 18
    assert train.train(longer, tmp_path / "run") == 0
    run = transformer_jax.load(tmp_path / "run")
    assert run.task.data.source_tokenizer.vocab_size == 350
    assert len(run.predict(["ele vê a casa"])) == 1


@pytest.mark.system
def test_more_positions_begin_as_the_first_ones(tiny, tiny_run_of, tmp_path):
    small = {"model.positions": "learned", "model.max_positions": "67"}
    before = tiny_run_of("quickstart", **small)
    small["model.max_positions"] = "150"
    loaded = load("quickstart", tiny, **{"train.initial": str(before)}, **small)
    task = prepared(loaded, tmp_path / "run").task
    _, result = filled(task, sharding.local_mesh(), said := [])
    result, theirs = by_path(result), by_path(transformer_jax.load(before).params)
    names = [name for name in theirs if name.endswith("positions/table")]
    for name in names:
        repeated = np.concatenate([theirs[name]] * 3)[:150]
        np.testing.assert_array_equal(result[name], repeated)
    assert names and "67 rows are repeated to fill 150" in "\n".join(said)


def test_a_tokenizer_replaces_only_that_of_another_run(tiny):
    with pytest.raises(
        UserError, match="replaces the tokenizer of train.initial, which"
    ):
        load("quickstart", tiny, **{"tokenizer.replace": "true"})


@pytest.mark.system
def test_outputs_are_taken_by_their_labels(tiny, tiny_run_of, tmp_path):
    """A head whose outputs mean something else does not begin as if they did not."""
    before = tiny_run_of("opinions")
    changes = {"train.initial": str(before)}
    task = prepared(load("opinions", tiny, **changes), tmp_path / "run").task
    labels = task.data.labels
    assert len(labels) > 1 and labels == transformer_jax.load(before).task.data.labels
    task.data.labels = (*labels[1:], "of its own")
    random, result = map(by_path, filled(task, sharding.local_mesh(), said := []))
    theirs = by_path(transformer_jax.load(before).params)
    for name in ("head/kernel", "head/bias"):
        np.testing.assert_array_equal(result[name][..., :-1], theirs[name][..., 1:])
        np.testing.assert_array_equal(result[name][..., -1], random[name][..., -1])
    count = f"{len(labels) - 1} of {len(labels)}"
    assert f"labels     {count} are also the other run's" in "\n".join(said)
    task.data.labels = labels
    result = by_path(filled(task, sharding.local_mesh(), said := [])[1])
    np.testing.assert_array_equal(result["head/kernel"], theirs["head/kernel"])
    assert not any(line.startswith("labels") for line in said)
