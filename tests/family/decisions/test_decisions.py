"""Decisions: windows of episodes, rollouts by the rules, returns in and out."""

import json
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import transformer_jax
from transformer_jax import config, evaluate
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.data.batches import Batch, Shape
from transformer_jax.family.decisions import cartpole, episodes, rollouts
from transformer_jax.family.decisions import figure as decisions_figure
from transformer_jax.family.decisions import figure as playing
from transformer_jax.family.decisions import task as decisions
from transformer_jax.report.collect import collect

OTHER = config.base("translation")
FEW = {
    "data.train_size": "20", "data.validation_size": "5", "data.test_size": "5",
    "data.window": "6", "data.asked": "(20.0, 30.0)", "data.batch_tokens": "96",
    "eval.episodes": "3", "eval.splits": "test", "eval.answers": "0",
    "eval.batch_rows": "8",
}  # fmt: skip


@pytest.fixture(scope="module")
def path(quick_run_of):
    return quick_run_of("decisions", **FEW)


@pytest.fixture(scope="module")
def run(path):
    return transformer_jax.load(path)


@pytest.mark.system
def test_scores_say_how_they_were_played_so_that_runs_can_be_reported(path, tmp_path):
    """Runs whose scores lack the rules of their task could not be compared."""
    stored = json.loads((path / "config.json").read_text())
    entry = json.loads((path / "scores.json").read_text())["test"]
    rules = {name: stored["eval"][name] for name in ("episodes", "greedy")}
    assert rules.items() <= entry.items()
    other = shutil.copytree(path, tmp_path / "other")
    (other / "config.json").write_text(json.dumps({**stored, "seed": 7}))
    [group] = collect([str(path), str(other)]).groups
    assert group.seeds == sorted([stored["seed"], 7])


def test_the_return_to_go_counts_this_step_and_those_that_follow():
    assert episodes.returns_to_go(np.array([1.0, 2, 4])).tolist() == [7, 6, 4]


def test_windows_overlap_by_half_and_have_each_step_with_the_returns_of_its_episode():
    steps = 17
    episode = {
        "states": np.arange(steps * 4.0).reshape(steps, 4),
        "actions": np.arange(steps) % 2,
        "rewards": np.ones(steps),
    }
    windows = episodes.cut(episode, 6, 3)
    begins = [int(window["states"][0, 0]) // 4 for window in windows]
    assert begins == [0, 3, 6, 9, 12]
    assert [len(window["actions"]) for window in windows] == [6, 6, 6, 6, 5]
    for begin, window in zip(begins, windows, strict=True):
        wanted = np.arange(steps - begin, steps - begin - len(window["actions"]), -1)
        np.testing.assert_array_equal(window["returns"], wanted)
    assert len(episodes.cut({k: v[:2] for k, v in episode.items()}, 6, 3)) == 1


def test_the_returns_asked_for_are_shared_out_so_that_each_is_chosen_once(run):
    records = run.records("test")
    assert run.task.scoring.count_answered(records) == 2
    spaced = [(2 * i + 1) * len(records) // 4 for i in range(2)]
    asked = [run.task.inference.question(records[i]) for i in spaced]
    assert [*map(str, asked)] == ["20", "30"]


def test_weights_are_chosen_on_other_states_than_the_test_plays_from(run):
    inference = run.task.inference
    test, validation = (
        inference.question(run.records(split)[0]) for split in ("test", "validation")
    )
    assert test.begins == inference.parse("20").source[1]  # which `predict` answers
    states = [
        decisions.first_states(cartpole, asked, 3) for asked in (test, validation)
    ]
    assert not np.isin(states[0], states[1]).any()


def test_a_batch_has_scaled_steps_and_the_loss_counts_the_real_ones(run):
    task = run.task
    record = dict(run.records("train")[0])
    short = {k: v[:4] if np.ndim(v) else v for k, v in record.items()}
    rows = task.data.encode([record, short])
    columns = {k: np.stack([row[k] for row in rows]) for k in rows[0]}
    batch = Batch(Shape(4, (6,)), np.array([[0], [-1], [1], [-1]]))
    arrays = task.data.collate(columns, batch)
    assert arrays["real"].sum(axis=1).tolist() == [6, 0, 4, 0]
    np.testing.assert_allclose(arrays["returns"][0] * 500, record["returns"])
    scaled = arrays["states"][2, :4] * cartpole.SCALES
    np.testing.assert_allclose(scaled, record["states"][:4], rtol=1e-6)
    loss = jax.jit(task.objective.loss)
    sums = loss(run.params, jax.tree.map(jnp.asarray, arrays))
    assert float(sums.weight) == 10
    arrays["actions"][2, 4:] = 1 - arrays["actions"][2, 4:]  # of no step
    again = loss(run.params, jax.tree.map(jnp.asarray, arrays))
    assert float(again.loss) == pytest.approx(float(sums.loss), rel=1e-6)


class Balance:
    """A model that plays by the hand-written controller, and notes what it reads."""

    def __init__(self):
        self.read = []

    def apply(self, variables, *arguments, method):
        if method == "start":
            return {}, jnp.zeros(())
        steps, places, _, state = arguments
        jax.debug.callback(lambda *a: self.read.append(a), places, steps, ordered=True)
        states = steps.states * jnp.array(cartpole.SCALES)
        right = (states * jnp.array(cartpole.GAINS)).sum(axis=-1) > 0
        return jnp.stack([~right, right], axis=-1).astype(jnp.float32), state


def play(asked, half=5, world=cartpole, **rules):
    model, rows = Balance(), len(asked)
    states = cartpole.begin(np.random.RandomState(3), rows).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), rows)
    rules = rollouts.Rules(world, half, **{"greedy": True, **rules})
    found = rollouts.play(
        model, rules, {}, jnp.asarray(asked), jnp.asarray(states), keys
    )
    jax.effects_barrier()
    return found, model.read


def shorter(**changes):
    """CartPole with other limits."""
    world = types.ModuleType("shorter")
    vars(world).update({**vars(cartpole), **changes})
    return world


def test_the_controller_in_place_of_a_model_plays_to_the_limit():
    found, _ = play([30.0, 500.0])
    assert found.tolist() == [500.0, 500.0]


def test_a_model_reads_what_was_asked_less_what_was_reached_and_its_last_actions():
    found, read = play([4.0, 12.0], world=shorter(STEPS=12))
    assert found.tolist() == [12.0, 12.0]
    steps = [s for places, s in read if places.shape[-1] == 1]
    goals = np.stack([s.returns[:, 0, 0] for s in steps], axis=1) * 500
    np.testing.assert_allclose(goals[0, :12], [4, 3, 2, *[1] * 9], rtol=1e-5)
    np.testing.assert_allclose(goals[1, :12], np.arange(12, 0, -1), rtol=1e-5)
    before = np.stack([s.before[:, 0, 0] for s in steps], axis=1)
    assert (before[:, 0] == -1).all() and (before[:, 1:] >= 0).all()


def test_a_window_begins_with_the_second_half_of_the_one_before():
    _, read = play([9.0], world=shorter(STEPS=12))
    halves = [(p, s) for p, s in read if p.shape[-1] == 5]
    single = [(int(p[0, 0, 0]), s) for p, s in read if p.shape[-1] == 1]
    assert [p for p, _ in single] == [0, 1, 2, 3, 4, *[5, 6, 7, 8, 9] * 2]
    assert halves[0][0].tolist() == [[[-1] * 5]]  # nothing was before the first
    for number, (places, steps) in enumerate(halves[1:]):
        assert places.tolist() == [[[0, 1, 2, 3, 4]]]
        last = single[5 * number : 5 * number + 5]
        for i, (_, step) in enumerate(last):
            np.testing.assert_array_equal(steps.states[0, 0, i], step.states[0, 0, 0])
            wanted = -1 if i == 0 else step.before[0, 0, 0]
            assert steps.before[0, 0, i] == wanted


def test_an_episode_does_not_depend_on_those_beside_it(run):
    asked = [decisions.Asked(goal) for goal in (20.0, 30.0, 40.0, 50.0)]
    several = run.task.inference.play(run.params, asked, run.mesh)
    assert several.shape == (4, 3) and (several >= 5).all()
    alone = run.task.inference.play(run.params, asked[2:3], run.mesh)
    np.testing.assert_array_equal(alone[0], several[2])


def test_actions_are_drawn_by_their_probability_unless_greedy():
    logits = jnp.log(jnp.tile(jnp.array([0.2, 0.8]), (400, 1)))
    keys = jax.random.split(jax.random.key(0), 400)

    def choose(greedy, number):
        rules = rollouts.Rules(cartpole, 2, greedy)
        return np.asarray(rollouts._choose(rules, logits, keys, number))

    drawn, again, later, best = (
        choose(greedy, i)
        for greedy, i in ((False, 0), (False, 0), (False, 1), (True, 0))
    )
    assert drawn.mean() == pytest.approx(0.8, abs=0.05)
    np.testing.assert_array_equal(drawn, again)
    assert (drawn != later).mean() > 0.2 and (best == 1).all()


def test_a_run_answers_a_return_with_the_mean_of_those_reached(run):
    [reply] = run.replies(["30"])
    details = reply.details
    assert reply.text == f"{np.mean(details['returns']):.1f}"
    assert details["spread"] == pytest.approx(np.std(details["returns"]))
    assert len(details["returns"]) == 3


def test_scores_are_of_the_largest_return_and_each_has_a_line(run, path, run_main):
    scores = run.folder.read("result.json")["scores"]["test"]
    assert set(scores["groups"]) == {"asked for 20", "asked for 30"}
    assert scores["reached"] == scores["groups"]["asked for 30"]["reached"]
    errors = [g["error"] for g in scores["groups"].values()]
    assert scores["error"] == pytest.approx(np.mean(errors))
    assert run.task.scoring.measures(scores) == {"return": scores["reached"]}
    out = run_main(evaluate, f"--workdir={path}", "--split=test", "--episodes=2")
    assert "asked for 20: reached " in out and "by drawn actions, off by" in out
    out = run_main(evaluate, f"--workdir={path}", "--split=test", "--greedy")
    assert "by the likeliest actions, off by" in out


@pytest.mark.parametrize(
    "line", ["", "much", "0", "-3", "501", "nan", "5_0", "٥٠", "True", True, "inf"]
)
def test_what_is_not_a_return_is_refused(run, line):
    with pytest.raises(Refused, match="is not a return: give|is not a return of this"):
        run.task.inference.parse(line)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"data.window": "7"}, "data.window = 7 cannot be halved: use 8"),
        ({"data.asked": "(600.0,)"}, "give returns of cartpole, which are numbers"),
        ({"data.asked": "()"}, "numbers from 1 to 500"),
    ],
)
def test_what_cannot_be_played_is_refused(keys, words):
    with pytest.raises(UserError, match=words):
        config.load("decisions", keys)


def test_a_run_of_a_world_that_has_changed_is_refused(run, monkeypatch):
    monkeypatch.setattr(cartpole, "VERSION", cartpole.VERSION + 1)
    with pytest.raises(UserError, match="learned to play 'cartpole', version"):
        transformer_jax.load(run.folder.path)


def test_other_splits_are_refused():
    source = episodes.EpisodeSource(config.load("decisions").data)
    with pytest.raises(UserError, match="no split 'dev': this run's data has train"):
        source.read("dev")


def test_the_figure_has_the_means_and_the_diagonal(run):
    asked, reached = playing.play([run])
    assert asked == [20.0, 30.0] and len(reached) == 1
    assert list(reached) == ["decision transformer, drawn actions"]
    figure = decisions_figure.returns(asked, reached)
    FigureCanvasAgg(figure).draw()
    diagonal, means = figure.axes[0].lines
    assert [*diagonal.get_xdata()] == [*diagonal.get_ydata()] == [0, 30]
    np.testing.assert_allclose(means.get_ydata(), [*reached.values()][0].mean(axis=1))
    with pytest.raises(UserError, match="name runs of configs/decisions.py"):
        playing.play([types.SimpleNamespace(config=OTHER, folder=run.folder)])
    with pytest.raises(UserError, match="name runs of configs/decisions.py after"):
        decisions_figure.draw_returns(types.SimpleNamespace(run=[]))
