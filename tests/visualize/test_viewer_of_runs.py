"""The page of a run in a browser: its numbers are those of the Python interface."""

import re

import numpy as np
import pytest

from transformer_jax.visualize.viewer import numbers, page

pytest.importorskip("selenium", reason="selenium is not installed")
pytestmark = pytest.mark.system

from selenium.webdriver.support.ui import Select  # noqa: E402  (an optional package)

LINE = "O gato dorme no sofá."
TABLE = "return [...document.querySelectorAll('.weights td:nth-child(3)')]"


@pytest.fixture
def opened(view, tmp_path):
    """A function: the page of runs and a line, open in the browser."""

    def show(runs, line=LINE, **changes):
        path = tmp_path / "page.html"
        page.write(path, runs, [line], **changes)
        return view(path)

    return show


def click(shown, element):
    shown.browser.execute_script("arguments[0].click()", element)


def show_pieces(shown, count):
    """Show the pieces of words, and wait for as many tokens as there are pieces."""
    for box in shown.until(lambda: shown.all(".controls input[type=checkbox]")):
        click(shown, box)
    shown.until(lambda: len(shown.all(".keys .token")) == count)


def rows_of(shown):
    """Return the weights of every word of the kind and head that are shown."""
    chips, rows = shown.chips(), []
    for chip in chips:
        click(shown, chip)
        shown.until(lambda c=chip: "chosen" in c.get_attribute("class"))
        rows.append(shown.browser.execute_script(f"{TABLE}.map(e => +e.textContent)"))
    click(shown, chips[-1])  # kept words are released
    return np.array(rows)


def test_every_weight_on_the_page_is_that_of_the_run(opened, run):
    [reply] = run.replies([LINE])
    expected = run.attention(LINE, reply.text)
    shown = opened([("a", run)])
    show_pieces(shown, expected["cross"].shape[-1])
    for number, (kind, weights) in enumerate(expected.items()):
        click(shown, shown.all("fieldset label")[number])
        shown.until(lambda k=kind: (k == "cross") == bool(shown.all(".side.keys")))
        shown.chips()[0].click()
        if not shown.all("details.weights[open]"):
            shown.one("details.weights summary").click()
        shown.chips()[0].click()
        for head in range(weights.shape[1]):
            box = shown.all(".controls select")[-1]
            Select(box).select_by_visible_text(str(head + 1))
            found, values = rows_of(shown), weights[0, head]
            assert found.shape == values.shape
            errors = np.abs(found - values)
            assert (errors <= numbers.error_bound(values) + 6e-5).all(), (kind, head)


def test_two_runs_have_their_own_weights_side_by_side(opened, run, untrained):
    other = untrained("quickstart", seed=1)
    shown = opened([("a", run), ("b", other)], beams=2)
    panes = shown.until(lambda: (p := shown.all(".pane")) and len(p) == 2 and p)
    maps = [one.attention(LINE, "x")["cross"] for one in (run, other)]
    show_pieces(shown, sum(weights.shape[-1] for weights in maps))
    for one, pane in zip((run, other), panes, strict=True):
        answer = one.replies([LINE], beams=2)[0].text
        row = one.attention(LINE, answer)["cross"][-1].mean(axis=0)[0]
        pane.find_element("css selector", ".queries .token").click()
        script = "return [...arguments[0]].map(e => +e.style.getPropertyValue('--w'))"
        keys = pane.find_elements("css selector", ".keys .token")
        shades = shown.browser.execute_script(script, keys)
        np.testing.assert_allclose(np.square(shades), row, atol=0.006)


def test_the_steps_of_a_run_have_its_candidates_and_end_in_its_answer(opened, run):
    [reply] = run.replies([LINE], beams=3)
    shown = opened([("a", run)], beams=3)
    shown.one("[data-view=search]").click()
    last = int(re.fullmatch(r"Step 0 of (\d+)", shown.text("output"))[1])
    for step in range(1, last + 1):
        chances = [
            [cell.text for cell in rows.find_elements("css selector", "tbody tr")]
            for rows in shown.all(".hypotheses li")
        ]
        forced = step == last  # at the longest length only the end is left
        assert chances and all(len(rows) == (1 if forced else 8) for rows in chances)
        rows = sum(chances, [])
        assert any("✓" in row for row in rows)
        assert sum("kept" in row for row in rows) <= 3
        shown.one("[aria-label='Next step']").click()
        assert shown.text("output") == f"Step {step} of {last}"
    best = shown.all("ol .text")[0].text
    assert best == (" ".join(reply.text.split()) or "(nothing yet)")
    score = f"{reply.score:.3f}".replace("-", "−")
    assert f"score {score}" in shown.all("ol .figure")[0].text


def test_30_words_of_6_layers_and_8_heads_with_their_search_take_less_than_2_mb(
    untrained, opened, tmp_path
):
    model = {"model__encoder_layers": 6, "model__decoder_layers": 6}
    wide = {"model__num_heads": 8, "model__d_model": 64, "data__max_length": 256}
    data = {"data__batch_tokens": 2056, "data__train_size": 2000}
    words_known = {"tokenizer__vocab_size": 1200}
    deep = untrained("quickstart", **model, **wide, **data, **words_known)
    words = ["o", "gato", "vermelho", "dorme", "no", "sofá"] * 5
    shown = opened([("deep", deep)], " ".join(words), beams=4)
    shapes = shown.browser.execute_script(
        "return JSON.parse(document.getElementById('data').textContent)"
        ".items[0][0].kinds.map(k => k.shape)"
    )
    assert [shape[:2] for shape in shapes] == [[6, 8]] * 3
    assert min(shape[2] for shape in shapes) > 30
    size = (tmp_path / "page.html").stat().st_size
    print(f"{size:,} bytes, shapes {shapes}")
    assert 100_000 < size < 2_000_000
    shown.one("[data-view=heads]").click()
    assert len(shown.until(lambda: shown.all(".heads button"))) == 48


def test_a_picture_s_patches_have_the_weights_of_its_run(opened, untrained):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    run = untrained("images")
    question = run.task.inference.question(run.records("test")[0])
    weights = run.attention(question)["encoder"]
    shown = opened([("images", run)], question)
    cells = shown.until(lambda: shown.all(".cells .token"))
    assert len(cells) == weights.shape[-1] - 1
    cells[0].click()
    row = weights[-1].mean(axis=0)[1]
    found = np.sqrt(row.max()) * np.array(shown.shades("queries"))
    np.testing.assert_allclose(np.square(found), row, atol=0.006)
