"""Runs with random parameters, and a headless browser for the viewer's page."""

import pathlib
import shutil

import jax
import pytest

from transformer_jax import config as configs
from transformer_jax import sharding, tasks
from transformer_jax.runs import run as runs
from transformer_jax.runs.folder import Folder
from transformer_jax.visualize.viewer import page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1280,900",
)  # fmt: skip


@pytest.fixture(scope="session")
def untrained(tiny, tmp_path_factory):
    """A function: a run with random parameters, of a config and what changes."""

    def make(spec, **changes):
        known = dict(configs.items(configs.load(spec)))
        changes = {name.replace("__", "."): str(v) for name, v in changes.items()}
        overrides = {k: v for k, v in tiny().items() if k in known} | changes
        config = configs.load(spec, overrides)
        definition = tasks.find(config.task)
        folder = Folder(tmp_path_factory.mktemp("viewer"))
        source = definition.source(config)
        task = definition.create(config, source, folder.tokenizer, lambda line: None)
        params = jax.jit(task.objective.init)(jax.random.key(0))
        mesh = sharding.local_mesh()
        return runs.Run(folder, config, task, params, 0, "random", mesh)

    return make


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """A function: the address of a document's page."""
    folder = tmp_path_factory.mktemp("pages")

    def write(name, made):
        (folder / f"{name}.html").write_text(page.render(made), encoding="utf-8")
        return (folder / f"{name}.html").as_uri()

    return write


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    pytest.importorskip("selenium", reason="selenium is not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if not found or not driver:
        pytest.skip("there is no Chromium with a chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = found
    folder = tmp_path_factory.mktemp("browser")
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=Service(driver)) as opened:
        yield opened


@pytest.fixture
def view(browser, pages, request):
    """Open a document, or a page that exists; none may log or load anything."""

    def show(made, width=1280):
        emulate = browser.execute_cdp_cmd
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        emulate("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "light"}
        emulate("Emulation.setEmulatedMedia", {"features": [scheme]})
        written = isinstance(made, pathlib.Path)
        browser.get(made.as_uri() if written else pages(request.node.name[:40], made))
        return View(browser)

    yield show
    loaded = "return performance.getEntriesByType('resource').map(e => e.name)"
    assert browser.execute_script(loaded) == []
    assert browser.get_log("browser") == []


class View:
    """What a test looks at in an open page."""

    def __init__(self, browser):
        self.browser = browser

    def all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def one(self, selector):
        return self.until(lambda: next(iter(self.all(selector)), None))

    def until(self, condition):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.browser, 5, 0.02).until(lambda _: condition())

    def hover(self, element):
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.browser).move_to_element(element).perform()

    def chips(self, side="queries"):
        self.one(f".{side} .token")
        return self.all(f".{side} .token")

    def press(self, *keys):
        self.browser.switch_to.active_element.send_keys(*keys)

    def focused(self):
        return self.browser.switch_to.active_element

    def text(self, selector):
        return self.one(selector).text.replace("\u2068", "").replace("\u2069", "")

    def shades(self, side):
        script = "return [...arguments[0]].map(e => +e.style.getPropertyValue('--w'))"
        return self.browser.execute_script(script, self.chips(side))
