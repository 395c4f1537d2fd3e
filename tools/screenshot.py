"""The picture of the page in the docs: `python -m tools.screenshot RUN docs/figures/app.png`."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from open_nvib.app import make_app, open_runs
from open_nvib.app.page import serving

SENTENCE = "The museum was opened in 1923 and moved to London."
PORT = 7899


def screenshot(run: str, picture: Path) -> None:
    """What Inspect shows of a sentence."""
    blocks = make_app(open_runs([run]))
    with serving(blocks, host="127.0.0.1", port=PORT) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": 900})
        page.goto(address)
        box = page.locator("#inspect-text textarea")
        box.fill(SENTENCE)
        box.press("Enter")
        page.locator("#inspect-reconstruction", has_text=SENTENCE.split()[1]).wait_for()
        page.wait_for_timeout(1000)  # until the signs of waiting have faded
        page.screenshot(path=picture, full_page=True)
        browser.close()


if __name__ == "__main__":
    screenshot(sys.argv[1], Path(sys.argv[2]))
