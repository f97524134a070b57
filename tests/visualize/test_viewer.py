"""The viewer's page: the values in it are the run's, and texts stay texts."""

import functools
import html.parser
import json
import pathlib
import re

import numpy as np
import pytest
from absl import flags

from transformer_jax import sharding
from transformer_jax.base.errors import UserError
from transformer_jax.runs import run as runs
from transformer_jax.visualize import __main__
from transformer_jax.visualize.viewer import command, numbers, page
from transformer_jax.visualize.viewer.collect import collect, describe_picture

ATTACK = '</script><script>alert(1)</script><!-- & "O" gato'


class Reader(html.parser.HTMLParser):
    """The elements of a page and the text of its scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inside = [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if not self.tags:
            return
        tag, attrs = self.tags[-1]
        key = attrs.get("id") or attrs.get("type") or tag
        self.inside[key] = self.inside.get(key, "") + data


@pytest.fixture(scope="module")
def translator(tiny_run):
    return runs.load(tiny_run, mesh=sharding.local_mesh())


LINE, SEARCH = "O gato dorme no sofá.", {"beams": 3, "n_best": 2}


@pytest.fixture(scope="module")
def answered(translator):
    """What is collected of one line, which several tests read."""
    return collect(translator, LINE, **SEARCH)


def values_of(kind):
    return numbers.restore(numbers.unpack(kind["weights"], tuple(kind["shape"])))


def test_weights_are_those_of_the_run_within_the_bound_stated(translator, answered):
    expected = translator.attention(LINE, answered["output"])
    assert [kind["name"] for kind in answered["kinds"]] == list(expected)
    for kind in answered["kinds"]:
        weights = expected[kind["name"]]
        errors = np.abs(values_of(kind) - weights)
        assert (errors <= numbers.error_bound(weights) + 1e-7).all()


def test_an_even_share_of_300_words_is_kept_to_within_a_twentieth():
    weights = np.full((7, 300), 1 / 300)
    restored = numbers.restore(numbers.quantize(weights))
    np.testing.assert_allclose(restored, weights, rtol=0.05)
    every = np.linspace(0, 1, 100_003)
    errors = np.abs(numbers.restore(numbers.quantize(every)) - every)
    assert (errors <= numbers.error_bound(every)).all()


def test_axes_are_named_by_the_pieces(translator, answered):
    read, seen = translator.task.inspector.pieces(LINE, answered["output"])
    sides = {
        kind["name"]: [answered["tokens"][kind[axis]] for axis in ("queries", "keys")]
        for kind in answered["kinds"]
    }
    assert sides == {
        "encoder": [read, read],
        "decoder": [seen, seen],
        "cross": [seen, read],
    }


def test_the_search_ends_with_the_replies_of_the_run(translator, answered):
    [reply] = translator.replies([LINE], **SEARCH)
    expected = [(r.text, r.score) for r in (reply, *reply.others)]
    search = answered["search"]
    scores = [score for _, score in search["steps"][-1]["finished"]]
    found = list(zip(search["texts"], scores, strict=True))[:2]
    assert [text for text, _ in found] == [text for text, _ in expected]
    np.testing.assert_allclose(
        [score for _, score in found], [score for _, score in expected], atol=1e-4
    )


def test_the_nodes_of_a_search_spell_its_texts_and_count_its_steps(
    translator, answered
):
    search, tokenizer = answered["search"], translator.task.inference.writer.tokenizer
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))

    def spell(node):
        ids = []
        while node:
            node, piece, _ = search["nodes"][node]
            ids.insert(0, pieces.index(search["pieces"][piece]))
        return ids

    for step, found in enumerate(search["steps"]):
        for node, candidates in found["living"]:
            assert len(spell(node)) == step and len(candidates) in (1, 8)
    best = spell(search["steps"][-1]["finished"][0][0])
    assert tokenizer.decode(best) == answered["output"] == search["texts"][0]


def test_a_language_model_is_read_behind_its_prompt(untrained):
    run = untrained("language", data__batch_tokens=2048, decode__max_length=5)
    item = collect(run, "the red")
    given = len(run.task.inference.parse("the red").prefix)
    assert item["search"]["sample"] and len(item["search"]["prefix"]) == given
    [kind] = item["kinds"]
    assert kind["name"] == "decoder" and kind["shape"][2] > given
    # Every text continues what is given, and steps have the probabilities of a model.
    assert item["search"]["texts"][0] == item["output"]
    assert np.exp([p for _, p in item["search"]["steps"][0]["living"][0][1]]).sum() <= 1


@pytest.mark.slow
def test_a_classifier_has_chances_and_no_search(untrained):
    item = collect(untrained("opinions"), "the soup was cold")
    assert item["search"] is None
    [answers] = item["answers"]
    chances = [chance for _, chance in answers["choices"]]
    assert chances == sorted(chances, reverse=True)
    assert answers["choices"][0][0] == item["output"]
    np.testing.assert_allclose(sum(chances), 1, atol=1e-4)


def test_a_masked_model_has_the_guesses_of_each_mask(untrained):
    item = collect(
        untrained("masked", data__batch_tokens=2048), "the <mask> cat <mask>"
    )
    assert [a["title"] for a in item["answers"]] == ["Mask 1", "Mask 2"]
    assert [kind["name"] for kind in item["kinds"]] == ["encoder"]


def test_a_picture_has_its_pixels_and_patches():
    pixels = np.random.default_rng(3).normal(size=(6, 4, 3))
    picture = describe_picture(pixels, 2)
    levels = numbers.unpack(picture["pixels"], pixels.shape)
    scaled = (pixels - pixels.min()) / (pixels.max() - pixels.min())
    np.testing.assert_allclose(levels / 255, scaled, atol=0.5 / 255 + 1e-9)
    sizes = [picture[name] for name in ("height", "width", "channels", "patch")]
    assert sizes == [6, 4, 3, 2]


@pytest.mark.slow
def test_an_image_classifier_has_a_picture(untrained):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    run = untrained("images")
    item = collect(run, run.task.inference.question(run.records("test")[0]))
    assert item["picture"]["patch"] == run.config.model.patch
    assert item["answers"][0]["title"] == "Answer"


def test_a_line_that_cannot_be_answered_is_refused(untrained):
    with pytest.raises(UserError, match="nothing: there is no <mask> in the line"):
        collect(untrained("masked", data__batch_tokens=2048), "nothing")


def test_30_words_of_6_layers_and_8_heads_take_less_than_2_mb(answered):
    draw, size = np.random.default_rng(7), 50  # pieces of 30 words
    item = answered | {"kinds": [dict(kind) for kind in answered["kinds"]]}
    for kind in item["kinds"]:
        scores = np.exp(2 * draw.normal(size=(6, 8, size, size)))
        weights = scores / scores.sum(axis=-1, keepdims=True)
        kind |= {"shape": weights.shape}
        kind["weights"] = numbers.pack(numbers.quantize(weights))
    run = {"name": "a", "task": "translation", "step": 0, "weights": "random"}
    text = page.render({"runs": [run], "items": [[item]]})
    assert 400_000 < len(text) < 2e6


def test_two_runs_stand_side_by_side(translator, tmp_path):
    path = tmp_path / "page.html"
    page.write(path, [("a", translator), ("b", translator)], [LINE], **SEARCH)
    data = json.loads(Reader(path.read_text("utf-8")).inside["data"])
    assert [run["name"] for run in data["runs"]] == ["a", "b"]
    [[one, other]] = data["items"]
    assert one == other and one["search"]["beams"] == 3


def document(text):
    item = {"input": text, "output": text, "score": None, "kinds": [], "tokens": []}
    item |= {"note": text, "search": None, "tree": None, "picture": None, "answers": []}
    run = {"name": text, "task": text, "step": 0, "weights": text}
    return {"runs": [run], "items": [[item]]}


def test_a_text_cannot_become_markup():
    text = page.render(document(ATTACK + "{{script}}\u2028\ud800"))
    found = Reader(text)
    plain = Reader(page.render(document("x")))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    data = json.loads(found.inside["data"])
    assert data["items"][0][0]["input"] == ATTACK + "{{script}}\u2028\ud800"
    text.encode("utf-8")  # the title, too


def test_the_page_needs_no_network_and_forbids_it():
    text = page.render(document("x"))
    found = Reader(text)
    [policy] = [a["content"] for tag, a in found.tags if "http-equiv" in a]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy and "http" not in policy
    for tag, attrs in found.tags:
        assert "src" not in attrs, tag
        assert attrs.get("href", "data:,") == "data:,"
    addresses = set(re.findall(r"https?://[^\s\"']+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}


def test_the_scripts_make_no_markup_of_text():
    for path in pathlib.Path(page.__file__).parent.glob("*.js"):
        banned = (
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\("
        )
        assert not re.search(banned, path.read_text()), path
        assert "</script" not in path.read_text()


@pytest.mark.system
def test_the_command_writes_the_page(translator, tmp_path, monkeypatch):
    path, values = tmp_path / "page.html", flags.FlagValues()
    monkeypatch.setattr(flags, "FLAGS", values)
    monkeypatch.setattr(command.runs, "load", lambda folder, weights: translator)
    for kind in ("string", "integer", "float", "bool", "multi_string"):
        define = functools.partial(getattr(flags, f"DEFINE_{kind}"), flag_values=values)
        monkeypatch.setattr(flags, f"DEFINE_{kind}", define)
    command.define_flags()
    words = ["--workdir=runs/one", "--beside=runs/two", f"--text={LINE}"]
    search = [f"--{name}={value}" for name, value in SEARCH.items()]
    values(["view", *words, *search, "--example=test:0", f"--output={path}"])
    assert command.main({}) == 0
    data = json.loads(Reader(path.read_text("utf-8")).inside["data"])
    assert [run["name"] for run in data["runs"]] == ["one", "two"]
    first, second = data["items"]
    assert first[0]["input"] == LINE and first[0]["search"]["beams"] == 3
    assert second[0]["input"] == translator.records("test")[0]["source"]


@pytest.mark.parametrize("text", ["test:11", "test", "test:x"])
def test_an_example_that_there_is_not_is_refused(translator, text):
    with pytest.raises(
        UserError,
        match=f"--example={text}: name a split and a number below 11, such as ",
    ):
        command.find_example(translator, text)


def test_the_command_line_begins_with_what_to_do(capsys):
    with pytest.raises(SystemExit, match="2"):
        __main__.main(["visualize", "--text", "x"])
    assert "view" in capsys.readouterr().err
