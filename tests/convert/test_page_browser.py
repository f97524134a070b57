"""A page in a headless browser translates as the run does that it was written from."""

import io
import json
import math
import random

import jax
import numpy as np
import pytest
import sentencepiece
from viewing import browser, untrained  # noqa: F401  (fixtures)

import transformer_jax
from transformer_jax.convert import page
from transformer_jax.data.text import learning
from transformer_jax.data.text.tokenizer import Bytes, Tokenizer, number_words
from transformer_jax.models.layers.rounded import quantize

pytest.importorskip("selenium", reason="selenium is not installed")
pytestmark = pytest.mark.system

from selenium.webdriver.common.keys import Keys  # noqa: E402  (an optional package)
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

ASK = """
const done = arguments[2];
window.translate(arguments[0], arguments[1]).then(done, (e) => done(e.message));
"""
LINES = ["two cats sleep.", "the old dog sees a red house", "", " ▁a▁ ", "é x"]
TEXTS = [
    "", " ", "a", "Der Hund schläft.", "  zwei  Räume  ", "ﬁne Ｆｕｌｌ ① ™",
    "a▁b ▁ c▁", "日本語 и кириллица", "e\u0301 u\u0308ber", "<s> </s> <0x41> <unk>",
    "🙂🙃 x🙂",
    "tab\tund\u00a0hart\u200b", "\ufeffx", "ＡＢＣ\u3000ｄ", "İstanbul ǅ ß",
    "(x) ((y))", "%%% <tag> a<tag>b",
]  # fmt: skip


@pytest.fixture
def opened(browser, tmp_path):  # noqa: F811
    """A function: write a run as a page and open it; it may log or load nothing."""

    def open_page(run, form="float32", fragment=""):
        page.write(run, tmp_path / "page.html", "the run", form)
        browser.get("about:blank")
        browser.get((tmp_path / "page.html").as_uri() + fragment)
        return browser

    yield open_page
    loaded = "return performance.getEntriesByType('resource').map(e => e.name)"
    names = browser.execute_script(loaded)
    assert all(name.startswith("blob:") for name in names)  # its own worker
    assert browser.get_log("browser") == []


def ask(browser, lines, **options):  # noqa: F811
    return browser.execute_async_script(ASK, lines, options)


def same(found, wanted, tolerance=2e-4):
    """Whether the replies of a page are those of a run."""
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine["text"] == theirs.text
        assert mine["score"] == pytest.approx(theirs.score, abs=tolerance)
        others = [(other.text, other.score) for other in theirs.others]
        assert [one["text"] for one in mine["others"]] == [text for text, _ in others]
        for one, (_, score) in zip(mine["others"], others, strict=True):
            assert one["score"] == pytest.approx(score, abs=tolerance)
        assert tuple(mine["unknown"]) == theirs.unknown
    return True


VARIANTS = {
    "the paper's": {},
    "LLaMA's": {
        "model__norm": "pre", "model__norm_kind": "rms", "model__activation": "swiglu",
        "model__bias": "none", "model__positions": "rotary", "model__kv_heads": 1,
        "model__qk_norm": True, "model__tie": "none", "model__rotary_scaling": "linear",
        "model__rotary_factor": 2.0,
    },
    "BART's": {
        "model__positions": "learned", "model__activation": "gelu_erf",
        "model__output_bias": True, "model__embedding_norm": True,
        "model__embedding_scale": False, "model__tie": "decoder",
        "tokenizer__shared": False, "model__max_positions": 90,
    },
    "T5's": {
        "model__positions": "relative", "model__activation": "geglu",
        "model__norm": "sandwich", "model__relative_distance": 9,
        "model__relative_buckets": 8, "model__tie": "inputs",
    },
    "deep": {
        "model__norm": "deepnorm", "model__shared_layers": "all",
        "model__positions": "alibi", "model__activation": "silu",
        "model__attention_window": 3, "tokenizer__kind": "bpe",
    },
    "odd": {
        "model__d_model": 14, "model__d_ff": 11, "model__d_k": 3, "model__d_v": 5,
        "model__positions": "sinusoid_t2t", "model__activation": "relu2",
        "model__bias": "qkv", "tokenizer__kind": "byte",
    },
    "Marian's": {
        "model__positions": "sinusoid_concat", "model__activation": "gelu_tanh",
        "model__output_bias": True, "tokenizer__kind": "word",
    },
    "both positions": {
        "model__positions": "sinusoid+rotary", "model__activation": "reglu",
        "tokenizer__kind": "char", "tokenizer__lowercase": True,
    },
    "no positions": {"model__positions": "none", "model__activation": "glu"},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_page_answers_and_scores_as_its_run_does(untrained, opened, variant):  # noqa: F811
    changes = {"model__encoder_layers": 2, "model__decoder_layers": 2}
    run = untrained("quickstart", **changes | VARIANTS[variant])
    # Untrained norms and biases would not show that they are read.
    keys = iter(jax.random.split(jax.random.key(1), 999))
    run.params = jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(next(keys), x.shape), run.params
    )
    here = opened(run)
    options = {"beams": 3, "n_best": 2, "extra_length": 6}
    assert same(ask(here, LINES, **options), run.replies(LINES, **options))


def test_every_option_of_the_search_means_the_same(untrained, opened):  # noqa: F811
    run = untrained("quickstart")
    here = opened(run)
    for options in (
        {"beams": 1},
        {"beams": 3, "alpha": -0.4, "coverage": 0.7, "min_length": 5, "no_repeat": 2},
        {"beams": 2, "max_length": 4},
    ):
        assert same(ask(here, LINES, **options), run.replies(LINES, **options))


@pytest.fixture(scope="module")
def translator():
    """The translator that comes with the package: its answers are words."""
    return transformer_jax.load("tatoeba:de_en")


def test_each_form_of_the_numbers_translates(translator, opened):
    lines = ["Der Hund schläft.", "Ich habe gestern ein Buch gelesen."]
    wanted = translator.replies(lines)
    assert "dog" in wanted[0].text
    for form, tolerance in (("int8", 1e-4), ("float16", 1e-2)):
        assert same(ask(opened(translator, form), lines), wanted, tolerance)


def test_eight_bits_are_those_of_a_run_rounded_in_the_same_way(untrained, opened):  # noqa: F811
    run = untrained("quickstart", model__d_model=32)
    lines = ask(opened(run, "int8"), LINES)
    kernels = {"kernel": 0, "embedding": 1}

    def round_to_steps(path, leaf):
        axis = kernels.get(path[-1].key)
        if axis is None:
            return leaf
        turned = np.asarray(leaf if axis else leaf.T)
        steps, scale = quantize(turned, 1)
        return jax.numpy.asarray(steps * scale if axis else (steps * scale).T)

    run.params = jax.tree_util.tree_map_with_path(round_to_steps, run.params)
    assert same(lines, run.replies(LINES))


def test_without_fast_instructions_the_answers_are_the_same(translator, opened):
    line = ["Wo ist der Bahnhof?"]
    here = opened(translator, fragment="#plain")
    assert same(ask(here, line, beams=1), translator.replies(line, beams=1))


def test_long_lines_are_split_and_what_is_too_long_is_refused(translator, opened):
    here = opened(translator, "int8")
    line = "Der Hund schläft. " * 20 + "Wo ist „er“? Hier!"
    wanted = translator.replies([line], on_long="split", beams=1)
    assert wanted[0].text.count("sleeping") == 20
    assert same(ask(here, [line], beams=1), wanted, 1e-3)
    sentence = "Der Hund " * 70
    (found,) = ask(here, [sentence])
    assert found["text"] == "" and found["score"] is None
    assert "more than the 64 that can be read at once" in found["error"]
    (refused,) = translator.replies([sentence], on_long="split")
    assert found["error"].split(" ")[0] == refused.error.split(" ")[0]
    assert (
        "is longer than the 3 allowed"
        in ask(here, ["a"], max_length=3, min_length=4)[0]["error"]
    )


@pytest.mark.parametrize("tags", ["<2en>", "<2en>,<2de>", ",<back>"])
def test_a_line_gets_or_needs_the_tags_of_the_training(untrained, opened, tags):  # noqa: F811
    run = untrained("quickstart", data__train_tags=tags)
    lines = ["<2en> a cat. A dog. A red house.", "a cat. A dog. A red house."]
    found = ask(opened(run), lines, max_input=18, beams=1)
    wanted = run.replies(lines, max_input=18, beams=1, on_long="split")
    if tags == "<2en>,<2de>":
        words = "a line without any of the tags <2en>, <2de>"
        assert found.pop()["error"].startswith(words)
        assert wanted.pop().error.startswith(words)
    assert not any(reply.error for reply in wanted)
    assert same(found, wanted)


def test_positions_beyond_a_table_are_refused(untrained, opened):  # noqa: F811
    run = untrained("quickstart", model__positions="learned", model__max_positions=70)
    (found,) = ask(opened(run), ["a"], max_length=71)
    assert "needs 71 positions, but the model has 70" in found["error"]
    assert run.replies(["a"], max_length=71)[0].error.startswith("a line of")


def test_options_are_checked_in_words(translator, opened):
    here = opened(translator)
    for options, words in (
        ({"beam": 2}, "there is no option beam: choose beams | extra_length"),
        ({"beams": 0}, "beams = 0: must be a whole number from 1 on"),
        ({"alpha": "x"}, "alpha = x: must be a number"),
        ({"on_long": "cut"}, "on_long = cut: choose split | refuse"),
        ({"beams": 2, "n_best": 3}, "n_best 3 is more than beams 2"),
    ):
        assert words in ask(here, ["a"], **options)


def run_script(browser, names, code, *values):  # noqa: F811
    browser.get("about:blank")
    return browser.execute_script(f"{page._join(names)}\n{code}", *values)


TRIED = """
const [about, texts, written] = arguments;
const one = about.kind === "byte" ? new Bytes() : new SentencePieces(about);
return {
  ids: texts.map((text) => one.encode(one.compose(text))),
  unknown: texts.map((text) => one.findUnknown(text)),
  decoded: written.map((ids) => one.decode(ids)),
  words: written.map((ids) => numberWords(one, ids)),
};
"""


def make_tokenizer(kind, **options):
    lines = ["der Hund schläft", "zwei Räume, ein <tag> Haus", "x (y) z über", "ABC ab"]
    if not options:
        return learning.train(lines * 9, kind, 340, kind != "word", ["<tag>", "%%"])
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 9), model_writer=model, model_type=kind,
        minloglevel=2, hard_vocab_limit=False, **options,
    )  # fmt: skip
    return Tokenizer(model.getvalue())


TOKENIZERS = {
    **{kind: (kind, {}) for kind in ("unigram", "bpe", "word", "char")},
    "NFKC": ("unigram", {"vocab_size": 60, "user_defined_symbols": ["<tag>", "ﬁ"]}),
    "NFKC, lower case": ("bpe", {
        "vocab_size": 60, "normalization_rule_name": "nmt_nfkc_cf",
    }),
    "no first space": ("unigram", {"vocab_size": 50, "add_dummy_prefix": False}),
    "spaces kept": ("bpe", {
        "vocab_size": 320, "remove_extra_whitespaces": False, "byte_fallback": True,
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", [*TOKENIZERS, "byte"])
def test_texts_are_cut_and_joined_as_by_the_tokenizer(browser, name):  # noqa: F811
    if name == "byte":
        tokenizer = Bytes()
    else:
        tokenizer = make_tokenizer(TOKENIZERS[name][0], **TOKENIZERS[name][1])
    draw = random.Random(0)
    letters = "".join(TEXTS) + "derHunschläft zweiRäum,  <tag>  "
    texts = TEXTS + ["".join(draw.choices(letters, k=12)) for _ in range(150)]
    ids = [[draw.randrange(tokenizer.vocab_size) for _ in range(9)] for _ in range(150)]
    ids += [tokenizer.encode(text) for text in texts]
    about = page._describe_tokenizer(tokenizer)
    found = run_script(browser, ("tokenizer",), TRIED, about, texts, ids)
    for i, text in enumerate(texts):
        composed = tokenizer.compose(text)
        assert found["ids"][i] == tokenizer.encode(composed), json.dumps(text)
        assert tuple(found["unknown"][i]) == tokenizer.find_unknown(text), text
    assert found["decoded"] == [tokenizer.decode(one) for one in ids]
    words = [number_words(tokenizer, one).tolist() for one in ids]
    assert found["words"] == words


def test_the_fast_product_is_the_plain_one(browser):  # noqa: F811
    code = """
    const results = [];
    for (const [rows, outs, size] of arguments[0]) {
      const made = [false, true].map((plain) => {
        const kernel = new Kernel(plain);
        kernel.reserve((rows + outs) * size + rows * outs + 32);
        const sizes = [rows * size, outs * size, rows * outs];
        const [x, w, y] = sizes.map((n) => kernel.take(n));
        x.forEach((_, i) => (x[i] = Math.sin(i)));
        w.forEach((_, i) => (w[i] = Math.cos(3 * i)));
        kernel.product(x, rows, { at: w.byteOffset / 4, outs, size }, y);
        return [Boolean(kernel.fast), Array.from(y)];
      });
      results.push([rows, outs, size, made]);
    }
    return results;
    """
    sizes = [[1, 4, 8], [3, 7, 16], [2, 37, 40], [5, 3, 8], [2, 5, 7]]
    found = run_script(browser, ("kernel",), code, sizes)
    for rows, outs, size, ((fast, mine), (slow, plain)) in found:
        assert fast and not slow
        x = np.sin(np.arange(rows * size)).reshape(rows, size)
        w = np.cos(3 * np.arange(outs * size)).reshape(outs, size)
        np.testing.assert_allclose(mine, (x @ w.T).ravel(), atol=1e-5)
        np.testing.assert_allclose(plain, mine, atol=1e-5)


def test_the_error_function_is_exact(browser):  # noqa: F811
    places = np.linspace(-7, 7, 281).tolist()
    code = "return arguments[0].map(erf);"
    found = run_script(browser, ("model",), code, places)
    wanted = [math.erf(x) for x in places]
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def wait(browser, condition):  # noqa: F811
    return WebDriverWait(browser, 20, 0.05).until(lambda _: condition())


def all_of(browser, selector):  # noqa: F811
    return browser.find_elements("css selector", selector)


def test_typed_text_is_translated_shown_and_looked_into(translator, opened):
    here = opened(translator, "int8")
    area = here.find_element("id", "source")
    wait(here, area.is_enabled)
    area.send_keys("Der Hund schläft.\n\nWo ist der Bahnhof? 日本\n" + "Hund " * 70)
    wait(here, lambda: len(all_of(here, "#lines .target")) == 2)
    wait(here, lambda: all_of(here, ".error"))
    first, second = all_of(here, "#lines .target")
    assert first.text.split() == translator.predict("Der Hund schläft.").split()
    assert "does not know 日 本" in all_of(here, ".warning")[0].text
    assert "Not translated" in all_of(here, ".error")[0].text
    words = all_of(here, "#lines li:first-child .target .word")
    focusable = [word for word in words if word.get_attribute("tabindex") == "0"]
    assert len(focusable) == 1
    here.execute_script("arguments[0].focus()", focusable[0])
    here.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert here.switch_to.active_element.text == "dog"
    look = all_of(here, "#lines li:first-child .looks")[0].text
    assert look.startswith("dog ← Hund")
    live = here.find_element("id", "live").get_attribute("textContent")
    assert live.startswith("dog: Hund")
    shades = here.execute_script(
        "return [...document.querySelectorAll('#lines li:first-child .source .word')]"
        ".map((e) => +e.style.getPropertyValue('--w'))"
    )
    assert int(np.argmax(shades)) == 1 and sum(x**2 for x in shades) < 1.01
    here.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert here.switch_to.active_element.text in second.text
    Select(here.find_element("id", "beams")).select_by_value("1")
    wait(here, lambda: len(all_of(here, ".error")) == 1)


def test_the_page_fits_a_phone_and_is_named_for_readers(translator, opened):
    here = opened(translator, "int8")
    size = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    here.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    area = here.find_element("id", "source")
    wait(here, area.is_enabled)
    area.send_keys("Der Hund schläft und die Katze sitzt auf dem alten roten Sofa.")
    wait(here, lambda: all_of(here, "#lines .target .word"))
    width = "return document.documentElement.scrollWidth"
    assert here.execute_script(width) <= 390
    here.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert area.accessible_name == "Text"
    assert here.find_element("id", "beams").accessible_name.strip() == "Beams"
    live = here.find_element("id", "live")
    assert live.get_attribute("aria-live") == "polite"
    assert "dog" in live.get_attribute("textContent")
    theme = here.find_element("id", "theme")
    theme.click()
    theme.click()
    root = here.find_element("css selector", "html")
    assert root.get_attribute("data-theme") == "dark"
