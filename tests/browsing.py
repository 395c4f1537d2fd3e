"""A real browser, for every test that looks at a page."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
QUIET += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    from playwright.sync_api import sync_playwright  # here, so that tests without a browser need no Playwright

    with sync_playwright() as playwright:
        found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
        if found is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip(
                f"no Chromium: none of {', '.join(BROWSERS)} on the PATH, nor one of playwright: run make browser"
            )
        opened = playwright.chromium.launch(executable_path=found, args=QUIET)
        yield opened
        opened.close()
