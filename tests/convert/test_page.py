"""What a page holds, and which runs are not written as one."""

import base64
import copy
import dataclasses
import io
import json
import re

import numpy as np
import pytest
import sentencepiece
from viewing import untrained  # noqa: F401  (a fixture)

import transformer_jax
from transformer_jax.base.errors import UserError
from transformer_jax.convert import page
from transformer_jax.data.text.model_proto import parse_model
from transformer_jax.data.text.tokenizer import Bytes, Tokenizer
from transformer_jax.models.layers.rounded import quantize


@pytest.fixture(scope="module")
def translator():
    """The translator that comes with the package."""
    return transformer_jax.load("tatoeba:de_en")


def part(content, name):
    return re.search(rf'<script [^>]*id="{name}">(.*?)</script>', content, re.S)[1]


def changed(run, **options):
    """A run with other options of its config, written as section__option."""
    other = copy.copy(run)
    other.config = copy.deepcopy(run.config)
    with other.config.unlocked():
        for name, value in options.items():
            section, _, key = name.rpartition("__")
            (other.config[section] if section else other.config)[key] = value
    return other


def with_tokenizer(run, tokenizer):
    data = copy.copy(run.task.data)
    data.source_tokenizer = data.target_tokenizer = tokenizer
    other = copy.copy(run)
    other.task = dataclasses.replace(run.task, data=data)
    return other


@pytest.mark.parametrize("form", page.FORMS)
def test_a_page_holds_all_parameters_in_the_chosen_form(translator, form):
    content = page.render(translator, "a name", form)
    data = json.loads(part(content, "data"))
    numbers = base64.b64decode(part(content, "weights"))
    types = {"int8": np.int8, "float16": np.float16, "float32": np.float32}
    found = {}
    for about in data["tensors"]:
        shape = about["outs"], about["size"]
        kind, count = types[about["form"]], about["outs"] * about["size"]
        array = np.frombuffer(numbers, kind, count, about["at"]).reshape(shape)
        if about["form"] == "int8":
            factors = np.frombuffer(numbers, np.float32, shape[0], about["scale"])
            array = array * factors[:, None]
        found[about["name"]] = array.astype(np.float32)
    assert sum(x.size for x in found.values()) == 7_578_624
    given = translator.params
    table = np.asarray(given["embedding"]["embedding"])
    outer = np.asarray(given["encoder"]["layer_0"]["feed_forward"]["outer"]["kernel"])
    # The shipped parameters are int8 themselves, so that form loses nothing.
    close = {"int8": 1e-6, "float16": 1e-3, "float32": 0}[form]
    read = found["encoder/layer_0/feed_forward/outer/kernel"]
    np.testing.assert_allclose(found["embedding"], table, rtol=close, atol=close / 10)
    np.testing.assert_allclose(read.T, outer, rtol=close, atol=close / 10)
    assert data["same"]["output/kernel"] == "embedding"


def test_rows_are_rounded_to_steps_of_their_own():
    matrix = np.array([[1, -127, 63.4], [0, 0, 0], [0.5, 0.25, -1]], np.float32)
    steps, scale = quantize(matrix, 1)
    assert steps.dtype == np.int8 and scale.dtype == np.float32
    assert steps[0].tolist() == [1, -127, 63] and not steps[1].any()
    np.testing.assert_allclose(steps * scale, matrix, atol=np.abs(matrix).max() / 254)


def test_a_page_needs_nothing_else_and_says_what_it_is(translator):
    content = page.render(translator, "<b>&", "int8")
    assert "<title>Translator: &lt;b&gt;&amp;</title>" in content
    assert "default-src 'none'" in content and "{{" not in content
    assert not re.search(r"https?://|src=|@import|url\(", content.split("<script")[0])
    facts = json.loads(part(content, "data"))["facts"]
    assert facts.startswith("7,578,624 parameters (averaged, step 2,500), matrices as")
    assert "validation: BLEU = 47.99" in facts
    assert len(content) < 12e6


def test_text_of_a_run_cannot_leave_its_place(translator, tmp_path):
    other = copy.copy(translator)
    other.folder = copy.copy(translator.folder)
    other.folder.path = tmp_path
    (tmp_path / "card.md").write_text("</script><script>alert(1)</script>")
    content = page.render(other, "x")
    assert content.count("alert(1)") == 1 and "</script><script>alert" not in content
    assert json.loads(part(content, "data"))["card"].startswith("</script>")


def test_separate_tables_and_tokenizers_are_both_written(untrained):  # noqa: F811
    run = untrained("quickstart", tokenizer__shared=False, model__tie="none")
    data = json.loads(part(page.render(run, "x", "float32"), "data"))
    assert len(data["tokenizers"]) == 2 and not data["same"]
    names = {about["name"] for about in data["tensors"]}
    assert {"source_embedding", "target_embedding", "output/kernel"} <= names


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "language"}, "Transformer translators are written as a page, not a"),
        ({"model__norm": "other"}, "model.norm = 'other' is not written to a page"),
        ({"model__shared_layers": "universal"}, "model.shared_layers = 'universal'"),
        ({"model__rotary_scaling": "yarn"}, "page, only 'none' or 'linear'"),
        ({"decode__sample": True}, "decode.sample = True: a page searches"),
        ({"decode__groups": 2}, "decode.groups = 2: a page has a beam without it"),
        ({"decode__contrast": 0.5}, "decode.contrast = 0.5: a page has a beam without"),
        ({"decode__mbr": 3}, "decode.mbr = 3: a page answers by the likeliest"),
    ],
)
def test_what_a_page_cannot_do_is_refused_by_name(translator, options, words):
    with pytest.raises(UserError, match=re.escape(words)):
        page.render(changed(translator, **options), "x")


def test_tokenizers_that_the_script_does_not_imitate_are_refused(translator):
    class Other(Tokenizer):
        pass

    own = translator.task.data.source_tokenizer
    with pytest.raises(UserError, match="own or bytes are written as a page, not"):
        page.render(with_tokenizer(translator, Other(own.model)), "x")
    for change, words in (
        (lambda p: p.trainer_spec, "writes spaces after words"),
        (lambda p: p.normalizer_spec, "keeps spaces as they are"),
        (lambda p: p.denormalizer_spec, "changes decoded text, which a page cannot do"),
        (lambda p: p.pieces[400], "has unused pieces"),
    ):
        proto = parse_model(own.model)
        spec = change(proto)
        if words.startswith("writes"):
            spec.treat_whitespace_as_suffix = True
        elif words.startswith("keeps"):
            spec.escape_whitespaces = False
        elif words.startswith("changes"):
            spec.precompiled_charsmap = b"\1"
        else:
            spec.type = 5
        tokenizer = copy.copy(own)
        tokenizer.model = proto.SerializeToString()
        with pytest.raises(UserError, match=words):
            page.render(with_tokenizer(translator, tokenizer), "x")


def test_a_tokenizer_is_described_in_the_order_of_its_ids():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["eins zwei drei", "vier fünf sechs"] * 9),
        model_writer=model, vocab_size=30, model_type="bpe", minloglevel=2,
    )  # fmt: skip
    tokenizer = Tokenizer(model.getvalue())  # its ids are not those of this package
    found = page._describe_tokenizer(tokenizer)
    assert found["pieces"][:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert len(found["pieces"]) == len(found["scores"]) == tokenizer.vocab_size
    assert found["kind"] == "bpe" and found["squeeze"] and found["charsmap"]
    assert page._describe_tokenizer(Bytes()) == {"kind": "byte"}


@pytest.mark.system
def test_the_command_writes_a_page_and_refuses_mistakes(run_main, tmp_path):
    path = tmp_path / "t.html"
    given = "--workdir", "tatoeba:de_en", "--output", path
    said = run_main(page, *given, "--quantization", "float16")
    assert said.startswith("written    averaged parameters of step 2500 as float16 to")
    assert f"({path.stat().st_size / 1e6:.1f} MB)" in said
    with pytest.raises(UserError, match="--quantization=int4: choose int8 | float16"):
        run_main(page, *given, "--quantization", "int4")
