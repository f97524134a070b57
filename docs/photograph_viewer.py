"""Photograph the viewer for docs/viewer.md.

    python docs/photograph_viewer.py --workdir runs/quickstart

It needs Chromium with its chromedriver, and `pip install -e '.[browser,images]'`.
"""

import argparse
import io
import pathlib
import shutil
import tempfile

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

import transformer_jax
from transformer_jax.visualize.viewer import page

HERE = pathlib.Path(__file__).parent
SENTENCE = "O gato vermelho dorme no sofá."
SIZE = 1400, 1000
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
)


def main() -> None:
    """Write viewer.png: the fourth step of a beam search."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--workdir", required=True)
    args = parser.parse_args()
    run = transformer_jax.load(args.workdir)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "page.html")
        page.write(path, [("quickstart", run)], [SENTENCE])
        shot = photograph(path, folder)
    picture = Image.open(io.BytesIO(shot)).convert("RGB")
    picture.quantize(256).save(HERE / "viewer.png", optimize=True)


def photograph(path: pathlib.Path, folder: str) -> bytes:
    """Open a page, take four steps of its search, and return a PNG of it."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={folder}/browser"):
        options.add_argument(flag)
    with webdriver.Chrome(options, Service(shutil.which("chromedriver"))) as browser:
        size = {"width": SIZE[0], "height": SIZE[1], "mobile": False}
        size["deviceScaleFactor"] = 1
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(path.as_uri())
        browser.implicitly_wait(5)
        browser.find_element(By.CSS_SELECTOR, ".queries .token")
        browser.find_element(By.CSS_SELECTOR, "[data-view=search]").click()
        for _ in range(4):
            browser.find_element(By.CSS_SELECTOR, "[aria-label='Next step']").click()
        return browser.get_screenshot_as_png()


if __name__ == "__main__":
    main()
