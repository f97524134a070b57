"""The service's page in a headless browser: keyboard, themes, streams, no errors."""

import numpy as np
import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytestmark = pytest.mark.system

from selenium.webdriver.common.keys import Keys  # noqa: E402  (an optional package)
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

from transformer_jax.serve.models import Model  # noqa: E402


@pytest.fixture
def page(browser, server_of):
    """A function: the page of these runs, in a browser that reports no error."""

    def show(*names, width=1100, **options):
        place, _ = server_of(*names, **options)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get_log("browser")  # what others have left
        browser.get(place)
        return Page(browser)

    return show


class Page:
    """What a test does with the open page."""

    def __init__(self, browser):
        self.browser = browser

    def one(self, name):
        return self.browser.find_element("id", name)

    def children(self, name):
        return self.browser.find_elements("css selector", f"#{name} > *")

    def until(self, condition):
        return WebDriverWait(self.browser, 60, 0.05).until(lambda _: condition())

    def press(self, *keys):
        for key in keys:
            self.browser.switch_to.active_element.send_keys(key)

    def problems(self):
        return self.browser.get_log("browser")


def open_summary(page, name):
    page.until(lambda: page.one(name).is_displayed())
    page.browser.find_element("css selector", f"#{name} summary").click()


def test_a_line_is_answered_while_it_is_typed(page, runs_of):
    shown, run = page("translator"), runs_of("translator")
    shown.until(lambda: shown.one("text").is_displayed())
    shown.one("text").send_keys("O gato dorme.")
    expected = run.predict("O gato dorme.")
    shown.until(lambda: shown.one("answer").text == expected)
    shown.until(lambda: shown.one("note").text.startswith("score "))
    open_summary(shown, "more")
    shown.until(lambda: len(shown.children("others")) > 1)
    replies = run.replies("O gato dorme.", beams=4, n_best=4)
    best = [reply.text for reply in (replies, *replies.others)]
    texts = [row.text.rsplit(" ", 1)[0].strip() for row in shown.children("others")]
    assert texts == [text.strip() for text in best]
    shown.one("prefix").send_keys("The dog")
    shown.until(lambda: shown.one("answer").text.startswith("The dog"))
    assert shown.problems() == []


def test_attention_is_followed_with_the_keyboard(page, runs_of):
    shown, run = page("translator"), runs_of("translator")
    shown.until(lambda: shown.one("text").is_displayed())
    shown.one("text").send_keys("O gato dorme.")
    open_summary(shown, "attending")
    shown.until(lambda: shown.children("read"))
    maps = run.attention("O gato dorme.", shown.one("answer").text)
    weights = maps["cross"].mean(axis=1)[-1]
    shown.one("written").send_keys(Keys.ARROW_RIGHT)
    script = "return [...document.querySelectorAll('#read span')].map(s => +s.style.getPropertyValue('--weight'))"  # noqa: E501
    found = shown.browser.execute_script(script)
    np.testing.assert_allclose(found, weights[1], atol=1e-4)
    assert " looks at " in shown.one("looks").text
    assert shown.problems() == []


def test_several_lines_are_answered_each_for_itself(page, runs_of):
    shown, run = page("translator"), runs_of("translator")
    shown.until(lambda: shown.one("text").is_displayed())
    lines = ["O gato dorme.", "", "A casa é azul."]
    shown.one("text").send_keys("\n".join(lines))
    expected = "\n".join(run.predict(lines))
    shown.until(lambda: shown.one("answer").get_property("textContent") == expected)
    assert shown.problems() == []


def test_texts_are_continued_by_tab_and_arrows(page):
    shown = page("writer")
    shown.until(lambda: shown.one("draft").is_displayed())
    shown.one("length").clear()
    shown.one("length").send_keys("6")
    shown.one("draft").send_keys("The cat")
    shown.press(Keys.TAB)
    shown.until(lambda: len(shown.children("continuations")) == 3)
    shown.press(Keys.ARROW_DOWN)
    offers = shown.children("continuations")
    assert [o.get_attribute("aria-selected") for o in offers] == [
        "false",
        "true",
        "false",
    ]
    text = offers[1].get_property("textContent")
    shown.press(Keys.TAB)
    draft = shown.one("draft").get_property("value")
    assert draft == f"The cat{text}"
    shown.press(Keys.ESCAPE)  # so that Tab does not trap the keyboard
    assert shown.browser.switch_to.active_element.get_attribute("id") == "continue"
    assert shown.problems() == []


def test_a_conversation_shows_which_turns_are_no_longer_read(page):
    shown = page("chatbot")
    shown.until(lambda: shown.one("turn").is_displayed())
    for count in (1, 2, 3):
        shown.one("turn").send_keys("Hello!", Keys.ENTER)
        shown.until(lambda n=count: len(shown.children("turns")) == 2 * n)
        shown.until(shown.one("send").is_enabled)
    shown.until(lambda: "no longer read" in shown.one("forgotten").text)
    assert "forgotten" in shown.children("turns")[0].get_attribute("class")
    shown.one("again").click()
    assert shown.children("turns") == []
    assert shown.problems() == []


def test_pictures_are_dropped_in(page, runs_of, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8), np.uint8)
    image.fromarray(pixels).save(tmp_path / "one.png")
    shown = page("eye")
    shown.until(lambda: shown.one("file").is_displayed())
    shown.one("files").send_keys(str(tmp_path / "one.png"))
    expected = runs_of("eye").predict(str(tmp_path / "one.png"))
    shown.until(lambda: shown.children("found"))
    assert shown.children("found")[0].text.startswith(f"one.png: {expected}")
    assert shown.problems() == []


def test_a_token_is_asked_for_and_models_can_be_changed(page):
    shown = page("translator", "judge", guards={"token": "secret"})
    shown.until(lambda: shown.one("access").is_displayed())
    shown.one("token").send_keys("secret", Keys.ENTER)
    shown.until(lambda: shown.one("text").is_displayed())
    assert not shown.one("access").is_displayed()
    Select(shown.one("model")).select_by_value("judge")
    assert not shown.one("more").is_displayed()
    shown.one("text").send_keys("the soup was cold")
    shown.until(lambda: shown.one("answer").text)
    shown.browser.execute_script("sessionStorage.clear()")


def test_a_stream_that_breaks_off_is_said(page, monkeypatch):
    shown = page("translator")
    shown.until(lambda: shown.one("text").is_displayed())

    def fail(self, show, line, options, prefix=""):
        def answer():
            show("The")
            raise OSError("broken")

        from transformer_jax.decoding.live import Caller

        return Caller(), answer

    monkeypatch.setattr(Model, "stream", fail)
    shown.one("text").send_keys("O gato dorme.")
    shown.until(lambda: shown.one("problem").is_displayed())
    assert shown.one("problem").text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone_and_texts_have_contrast(page, scheme):
    shown = page("translator", width=390)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    shown.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    shown.until(lambda: shown.one("text").is_displayed())
    shown.one("text").send_keys("החתול ישן")  # is read from right to left
    wide = "return document.documentElement.scrollWidth"
    assert shown.browser.execute_script(wide) <= 390
    colours = (
        "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"  # noqa: E501
    )
    ink, paper = shown.browser.execute_script(colours)
    assert abs(brightness(ink) - brightness(paper)) > 150


def brightness(colour):
    """Return the mean of the numbers of rgb(…)."""
    numbers = colour[colour.index("(") + 1 : -1].split(",")[:3]
    return sum(map(float, numbers)) / 3
