"""The viewer's page in a headless browser: mouse, keyboard, themes, no errors."""

import numpy as np
import pytest

from transformer_jax.decoding import Options
from transformer_jax.decoding.engine import Hypothesis
from transformer_jax.visualize.viewer import numbers, search
from transformer_jax.visualize.viewer.collect import describe_picture
from transformer_jax.visualize.viewer.trace import Living, Step

pytest.importorskip("selenium", reason="selenium is not installed")
pytestmark = pytest.mark.system

from selenium.webdriver.common.by import By  # noqa: E402  (an optional package)
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

LAYERS, HEADS = 2, 3
ATTACK = "</script><img src=x onerror=alert(1)>"

READ = ["▁O", "▁gato", "▁dorme", "</s>"]
WRITTEN = ["<s>", "▁The", "▁cat", "▁sleeps", "."]
HEBREW = [f"▁{word}" for word in "החתול האדום ישן על הספה".split()]


def draw(queries, keys, causal=False, seed=0):
    scores = np.exp(np.random.default_rng(seed).normal(size=(2, 3, queries, keys)) * 2)
    if causal:
        scores *= np.tril(np.ones((queries, keys)))
    return scores / scores.sum(axis=-1, keepdims=True)


WEIGHTS = {
    "encoder": draw(4, 4),
    "decoder": draw(5, 5, causal=True),
    "cross": draw(5, 4, seed=1),
}


def item(weights=None, tokens=(), **more):
    axes = {"encoder": (0, 0), "decoder": (1, 1), "cross": (1, 0)}
    kinds = [
        {
            "name": name,
            "shape": values.shape,
            "queries": axes[name][0],
            "keys": axes[name][1],
            "weights": numbers.pack(numbers.quantize(values)),
        }
        for name, values in (weights or {}).items()
    ]
    empty = {"input": "x", "output": "y", "score": -1.25, "note": "", "search": None}
    empty |= {"tree": None, "picture": None, "answers": []}
    return empty | {"kinds": kinds, "tokens": list(tokens)} | more


class Pieces:
    """A tokenizer that shows ids as they are listed here."""

    names = ("<pad>", "<unk>", "<s>", "</s>", "▁The", "▁cat", "▁sleeps", ".", "▁sleep")

    def pieces(self, ids):
        return [self.names[i] for i in ids]

    def decode(self, ids):
        return "".join(self.pieces(i for i in ids if i > 3)).replace("▁", " ").strip()


def beam():
    """A search of four tokens, two wide; `sleep` is given up for `.`'s sake."""
    end = Hypothesis((4, 5, 6, 7, 3), -0.9, -0.7)
    steps = [
        Step((Living((), 0.0, ((4, -0.1), (5, -3.0))),), ()),
        Step((Living((4,), -0.1, ((5, -0.2), (8, -4.0))),), ()),
        Step((Living((4, 5), -0.3, ((6, -0.3), (8, -1.5))),), ()),
        Step(
            (
                Living((4, 5, 6), -0.6, ((7, -0.2), (3, -5.0))),
                Living((4, 5, 8), -1.8, ((7, -0.4),)),
            ),
            (),
        ),
        Step((Living((4, 5, 6, 7), -0.8, ((3, -0.1),)),), ()),
        Step((), (end,)),
    ]
    options = Options(beams=2)
    return search.describe(steps, options, Pieces(), (), WRITTEN)


def document(*columns, runs=1):
    about = {"name": "a", "task": "translation", "step": 7, "weights": "last"}
    names = [about | {"name": name} for name in "ab"[:runs]]
    return {"runs": names, "items": [list(column) for column in columns]}


SENTENCE = item(WEIGHTS, [READ, WRITTEN], search=beam())


def close(shades, weights):
    np.testing.assert_allclose(np.square(shades), weights, atol=0.006)


def test_pointing_at_a_word_shows_where_it_looks(view):
    shown = view(document([SENTENCE]))
    assert [c.text for c in shown.chips("keys")] == ["O", "gato", "dorme", "</s>"]
    shown.hover(shown.chips()[2])
    shown.until(lambda: max(shown.shades("keys")) > 0)
    row = WEIGHTS["cross"][0].mean(axis=0)[2]
    close(shown.shades("keys"), row)
    best = READ[int(row.argmax())].strip("▁")
    assert shown.text(".summary").startswith(f"“cat” looks at “{best}” ")
    assert shown.text(".summary").endswith("It writes “sleeps”.")
    assert len(shown.all(".lines path")) == (row >= 0.02).sum()
    shown.hover(shown.chips("keys")[1])
    shown.until(lambda: max(shown.shades("queries")) > 0)
    close(shown.shades("queries"), WEIGHTS["cross"][0].mean(axis=0)[:, 1])


def test_the_page_opens_with_a_word_chosen_and_its_lines_drawn(view):
    shown = view(document([SENTENCE]))
    shown.until(lambda: shown.all(".lines path"))
    assert [chip.text for chip in shown.all(".chosen")] == ["cat"]
    assert shown.text(".summary").startswith("“cat” looks at ")


SPLIT = [
    "▁The",
    "▁girl",
    "▁is",
    "▁mak",
    "ing",
    "▁it",
    "▁more",
    "▁dif",
    "fic",
    "ult",
    ".",
]


def test_words_of_several_pieces_look_and_are_looked_at_as_one(view):
    encoder, cross = draw(11, 11), draw(5, 11, seed=1)
    weights = {"encoder": encoder, "cross": cross}
    shown = view(document([item(weights, [SPLIT, WRITTEN])]))
    words = ["The", "girl", "is", "making", "it", "more", "difficult", "."]
    shown.all("fieldset label")[0].click()
    chips = shown.until(lambda: (c := shown.chips()) and len(c) == 8 and c)
    assert [chip.text for chip in chips] == words
    chips[3].click()
    row = encoder[0].mean(axis=0)[3:5].mean(axis=0)
    close(shown.shades("queries"), np.add.reduceat(row, [0, 1, 2, 3, 5, 6, 7, 10]))
    [whole] = [box for box in shown.all("input[type=checkbox]") if box.is_displayed()]
    whole.click()
    chips = shown.until(lambda: (c := shown.chips()) and len(c) == 11 and c)
    chips[4].click()
    close(shown.shades("queries"), encoder[0].mean(axis=0)[4])


def test_a_written_word_of_several_pieces_looks_while_it_is_written(view):
    written = ["<s>", "▁Das", "▁Mäd", "chen", "▁liest"]
    weights = draw(5, 4, seed=3)
    shown = view(document([item({"cross": weights}, [READ, written])]))
    chips = shown.until(lambda: (c := shown.chips()) and len(c) == 4 and c)
    assert [chip.text for chip in chips] == ["<s>", "Das", "Mädchen", "liest"]
    chips[1].click()
    # “Mäd” is written at step 1, “chen” at step 2.
    close(shown.shades("keys"), weights[0].mean(axis=0)[1:3].mean(axis=0))
    assert shown.text(".summary").endswith("It writes “Mädchen”.")
    chips[2].click()
    close(shown.shades("keys"), weights[0].mean(axis=0)[3])


def test_the_table_has_the_weights_that_python_wrote(view):
    shown = view(document([SENTENCE]))
    for number, (name, weights) in enumerate(WEIGHTS.items()):
        shown.all("fieldset label")[number].click()
        layer, head = shown.all(".controls select")
        Select(layer).select_by_visible_text("2")
        Select(head).select_by_visible_text("3")
        shown.until(lambda n=name: n == "cross" or not shown.all(".side.keys"))
        shown.chips()[3].click()
        if not shown.all("details.weights[open]"):
            shown.one("details.weights summary").click()
        cells = shown.until(lambda: shown.all("details.weights td:nth-child(3)"))
        restored = numbers.restore(numbers.quantize(weights[1, 2, 3]))
        found = [float(cell.text) for cell in cells]
        np.testing.assert_allclose(found, restored, atol=5.1e-5)


def test_the_keyboard_reaches_words_layers_and_heads(view):
    shown = view(document([SENTENCE]))
    shown.chips()[0].send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert shown.focused().text == "cat"
    said = shown.one("#live")
    shown.until(lambda: "cat" in said.get_attribute("textContent"))
    shown.press(Keys.END)
    assert shown.focused().text == "."
    shown.press(Keys.HOME)
    assert shown.focused().text == "<s>"
    layer, head = shown.all(".controls select")
    shown.press(Keys.ARROW_UP)
    shown.until(lambda: layer.get_attribute("value") == "1")
    shown.press(Keys.PAGE_DOWN)
    shown.until(lambda: head.get_attribute("value") == "0")
    close(shown.shades("keys"), WEIGHTS["cross"][1, 0, 0])
    shown.until(lambda: "Layer 2, head 1." in said.get_attribute("textContent"))


def test_enter_keeps_a_word_until_escape(view):
    shown = view(document([SENTENCE]))
    shown.chips()[1].send_keys(Keys.ENTER)
    shown.hover(shown.chips()[3])
    assert shown.all(".chosen")[0].text == "The"
    shown.press(Keys.ESCAPE)
    shown.hover(shown.chips()[2])
    shown.until(lambda: shown.all(".chosen")[0].text == "cat")


def test_controls_and_words_have_roles_and_names(view):
    shown = view(document([SENTENCE]))
    for chip in shown.chips():
        assert chip.aria_role == "option" and chip.accessible_name
    assert shown.chips()[0].accessible_name == "start"
    controls = shown.all(":is(select, input, button):not([hidden] *)")
    assert all(box.accessible_name for box in controls)
    roles = {e.get_attribute("role") for e in shown.all("[role]")}
    assert {"tablist", "tab", "tabpanel", "listbox", "option", "status"} <= roles
    reached = []
    shown.one("#theme").click()
    for _ in range(6):
        shown.press(Keys.TAB)
        reached.append(shown.focused().accessible_name)
    assert [name.split(" ")[0] for name in reached[:4]] == [
        "Cross", "Layer", "Head", "Words",
    ]  # fmt: skip


def test_the_matrix_is_read_cell_by_cell(view):
    shown = view(document([SENTENCE]))
    shown.one("[data-view=matrix]").click()
    shown.one(".matrix").send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    percent = 100 * WEIGHTS["cross"][0].mean(axis=0)[1, 1]
    words = shown.text(".summary").split()
    assert words[:-2] == ["“The”", "looks", "at", "“gato”", "with"]
    assert abs(float(words[-2]) - percent) < 1
    matrix = shown.one(".matrix .body canvas")
    assert matrix.size["width"] // 4 == matrix.size["height"] // 5 >= 12


def test_all_heads_are_shown_and_one_is_chosen(view):
    shown = view(document([SENTENCE]))
    shown.one("[data-view=words]").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    buttons = shown.until(lambda: shown.all(".heads button"))
    assert len(buttons) == LAYERS * HEADS
    buttons[0].send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert shown.focused().accessible_name.startswith("Layer 2, head 2, entropy ")
    shown.press(Keys.ENTER)
    shown.until(lambda: shown.focused().get_attribute("aria-pressed") == "true")
    values = [box.get_attribute("value") for box in shown.all(".controls select")]
    assert values == ["1", "1"]


def test_decoding_is_followed_token_by_token(view):
    shown = view(document([SENTENCE]))
    shown.one("[data-view=search]").click()
    assert shown.text("output") == "Step 0 of 5"
    for _ in range(3):
        shown.one("[aria-label='Next step']").click()
    texts = [e.text for e in shown.all(".hypotheses .text")]
    assert texts == ["The cat sleeps", "The cat sleep"]
    rows = shown.all(".hypotheses li:first-child tbody tr")
    assert [" ".join(row.text.split()) for row in rows] == [
        ". 82 % −0.80 ✓ kept",
        "</s> 0.7 % −5.60",
    ]
    assert shown.all(".chosen")[0].text == "sleeps"  # the decoder has read it
    assert [e.text for e in shown.all("svg text.alive")] == ["sleep"]
    shown.one("input[type=range]").send_keys(Keys.END)
    assert [e.text for e in shown.all("ol .text")] == ["The cat sleeps."]
    assert [e.text for e in shown.all("svg text.dropped")] == ["sleep"]
    assert "score −0.700" in shown.text("ol .figure")


def test_the_theme_follows_the_system_or_the_button(view):
    shown = view(document([SENTENCE]))

    def brightness():
        script = "return getComputedStyle(document.body).backgroundColor"
        return sum(map(int, shown.browser.execute_script(script)[4:-1].split(",")))

    assert brightness() == 3 * 255
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    emulate = shown.browser.execute_cdp_cmd
    emulate("Emulation.setEmulatedMedia", {"features": [scheme]})
    assert brightness() < 100
    shown.one("#theme").click()
    assert shown.one("#theme").text == "Theme: light" and brightness() == 3 * 255
    shown.one("#theme").click()
    assert shown.one("#theme").text == "Theme: dark" and brightness() < 100


def test_a_right_to_left_text_runs_so_behind_its_start(view):
    weights = {"encoder": draw(5, 5), "decoder": draw(6, 6)}
    shown = view(document([item(weights, [HEBREW, ["<s>", *HEBREW]])]))
    shown.all("fieldset label")[1].click()
    chips = shown.until(lambda: (c := shown.chips()) and len(c) == 6 and c)
    places = [chip.location["x"] for chip in chips]
    assert places == sorted(places, reverse=True)
    chips[1].send_keys(Keys.ARROW_LEFT)
    assert shown.focused().get_attribute("data-index") == "2"
    assert shown.focused().text == HEBREW[1].strip("▁")


def test_200_words_fit_a_telephone(view):
    words = [f"▁word{i}" for i in range(200)]
    weights = {"encoder": draw(200, 200)}
    shown = view(document([item(weights, [words])]), width=390)
    chips = shown.chips()
    assert len(chips) == 200
    chips[150].click()
    close(shown.shades("queries"), weights["encoder"][0].mean(axis=0)[150])
    for name in ("matrix", "heads", "words"):
        shown.one(f"[data-view={name}]").click()
        wide = "return document.documentElement.scrollWidth"
        assert shown.browser.execute_script(wide) <= 390, name


def test_two_runs_stand_side_by_side_and_look_together(view):
    other = item({"cross": draw(5, 4, seed=9)}, [READ, WRITTEN])
    shown = view(document([SENTENCE, other], runs=2))
    first, second = shown.all(".pane")
    assert first.location["y"] == second.location["y"]
    shown.until(lambda: len(shown.all(".queries .token")) == 10)
    first.find_elements(By.CSS_SELECTOR, ".queries .token")[2].click()
    marked = second.find_elements(By.CSS_SELECTOR, ".chosen")
    assert [chip.text for chip in marked] == ["cat"]


def test_pictures_trees_and_answers_are_shown(view):
    tree = ["S", ["NP", ["DT", "the"], ["NN", "cat"]], ["VP", "sleeps"]]
    pixels = np.arange(24.0).reshape(4, 6, 1)
    picture = describe_picture(pixels, 2)
    weights = draw(7, 7)  # a class token and 2 × 3 patches
    names = ["class", *(f"{r},{c}" for r in range(2) for c in range(3))]
    answers = [{"title": "Answer", "choices": [["3", 0.75], ["8", 0.25]]}]
    made = item({"encoder": weights}, [names], picture=picture, answers=answers)
    shown = view(document([made | {"tree": tree}]))
    patches = shown.until(lambda: shown.all(".cells .token"))
    assert len(patches) == 6
    assert patches[3].location["y"] > patches[0].location["y"]
    patches[1].send_keys(Keys.ARROW_DOWN)
    assert shown.focused().accessible_name == "patch 1,1"
    row = weights[0].mean(axis=0)[5]
    close(np.sqrt(row.max()) * np.array(shown.shades("queries")), row)
    assert shown.all(".answers tr")[0].text.split() == ["3", "75", "%"]
    shown.one("[data-view=tree]").click()
    words = [e.text for e in shown.all(".tree text.word")]
    assert words == ["the", "cat", "sleeps"]
    drawn = shown.one(".tree svg").get_attribute("aria-label")
    assert drawn == "Tree: (S (NP (DT the) (NN cat)) (VP sleeps))"


def test_texts_of_all_kinds_stay_texts(view):
    tokens = [[ATTACK, "▁<b>"], ["<s>", ATTACK]]
    weights = {"cross": draw(2, 2)}
    made = item(weights, tokens, input=ATTACK, output=ATTACK, note=ATTACK)
    made |= {"tree": [ATTACK, ATTACK], "answers": [{"title": ATTACK, "choices": []}]}
    shown = view(document([made], [made]))
    shown.chips()[1].click()
    for name in ("matrix", "heads", "tree"):
        shown.one(f"[data-view={name}]").click()
    assert shown.all("img") == [] and shown.all("main b") == []
    assert shown.all(".texts dd")[0].text == ATTACK


def test_another_text_is_chosen(view):
    second = item({"encoder": draw(2, 2)}, [["▁a", "▁b"]], input="a b")
    shown = view(document([SENTENCE], [second]))
    Select(shown.one("#texts select")).select_by_visible_text("a b")
    assert shown.until(lambda: [c.text for c in shown.all(".token")] == ["a", "b"])


def test_a_run_without_attention_says_why(view):
    shown = view(document([item(note="no word attends to another", search=beam())]))
    assert shown.text(".pane > .hint") == "no word attends to another"
    assert [tab.text for tab in shown.all("[role=tab]")] == ["Decoding"]
    shown.one("[aria-label='Last step']").click()
    assert shown.text("output") == "Step 5 of 5"
