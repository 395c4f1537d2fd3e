"""The page as a reader opens it, in Chromium: nothing fails, nothing is fetched, everything is seen."""

import re
from pathlib import Path

import pytest

from open_nvib.report import Results, html
from open_nvib.report.html import to_page
from open_nvib.report.pages import Report


@pytest.fixture
def visit(browser):
    """Open a page; whatever the console says, and every request but the page itself, is a failure."""
    opened = []

    def go(path, *, width=1280, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(page)
        troubles: list[str] = []
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("requestfailed", lambda request: troubles.append(f"failed: {request.url}"))
        page.on("request", lambda request: troubles.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        page.wait_for_load_state("networkidle")
        allowed = {"data:,"}  # the icon, which is empty so that none is asked for
        assert [trouble for trouble in troubles if trouble not in allowed] == []
        return page

    yield go
    for page in opened:
        page.close()


def test_the_page_needs_nothing_but_itself(written):
    text = (written / "report.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "<script" not in text
    assert set(re.findall(r'(?:href|src)="([^"#][^"]*)"', text)) == {"data:,"}
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert len(text.encode()) < 2_000_000


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "light"), (820, "dark")])
def test_figures_and_tables_are_seen_and_the_page_does_not_scroll_sideways(visit, written, width, scheme):
    page = visit(written / "report.html", width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    drawings = page.locator("figure svg[role=img]")
    assert drawings.count() == 6
    for index in range(6):
        box = drawings.nth(index).bounding_box()
        assert box["width"] > 200
        assert box["height"] > 100
        assert drawings.nth(index).get_attribute("aria-label")
        assert drawings.nth(index).locator("text").count() > 5
    tables = page.locator("figure.table table")
    assert tables.count() == 4
    for index in range(4):
        assert tables.nth(index).locator("thead th[scope=col]").count() >= 4
        rows = tables.nth(index).locator("tbody tr")
        assert rows.count() == rows.locator("th[scope=row]").count() > 0
        frame = page.locator(".scroll").nth(index).bounding_box()
        assert frame["x"] + frame["width"] <= width


def test_dark_and_light_have_ink_that_differs_from_the_paper(visit, written):
    seen = set()
    for scheme in ("light", "dark"):
        page = visit(written / "report.html", scheme=scheme)
        colours = page.evaluate(
            """() => {
                const label = document.querySelector("#figure-bleu_kept text");
                return [getComputedStyle(document.body).backgroundColor, getComputedStyle(label).fill];
            }"""
        )
        brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours]
        assert abs(brightness[0] - brightness[1]) > 400
        seen.add(brightness[0] > brightness[1])
    assert seen == {True, False}


def test_what_the_page_says(visit, written, results: Results):
    page = visit(written / "report.html")
    assert page.title() == "The table at a small scale"
    assert "6 of 8 cells" in page.inner_text("header")
    table = page.locator("#the-table table")
    marked = table.locator("tbody tr.marked")
    assert marked.count() == 1
    assert "69.00" in marked.inner_text()
    assert "±9.17" in marked.inner_text()
    assert table.locator("td.muted").count() == 5 * 6
    assert table.locator("tbody tr.aside th").inner_text() == "real text held out"
    texts = page.locator("details")
    assert texts.count() == 4 + 2  # four rows with cells, and the paths of two
    assert page.locator("#reconstructions-and-samples-of-every-row details[open]").count() == 1
    closed = page.locator("details", has=page.get_by_text("VT λ′G=0.0001", exact=True))
    closed.locator("summary").click()
    assert closed.locator("ul").first.locator("li").count() == 5
    assert closed.locator("mark").first.inner_text() == "closed"
    assert "<b>bridge</b>" in closed.inner_text()
    page.locator("nav a").last.click()
    assert page.url.endswith("#reconstructions-and-samples-of-every-row")


def test_the_page_forbids_what_it_does_not_need(written, browser):
    """Were a script, a picture or a frame to get into the page, the browser would neither run nor fetch it."""
    evil = '<script>document.title = "run"</script><img src="http://localhost:9/x.png"><a id="end"></a>'
    file = written / "evil.html"
    file.write_text((written / "report.html").read_text().replace("</main>", f"{evil}</main>"))
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(file.as_uri())
    assert page.title() == "The table at a small scale"
    assert len([text for text in said if "Content Security Policy" in text]) == 2
    page.close()
    file.unlink()


def page_of(markdown: str) -> str:
    return to_page(Report(f"# title\n\nlead\n\n## section\n\n{markdown}\n", {}))


@pytest.mark.parametrize(
    "markdown",
    [
        "<script>alert(1)</script>",
        "a <b onclick=alert(1)>b</b> <sub onclick=x>c</sub>",
        "[a](javascript:alert(1)) <https://example.org> ![a](https://example.org/a.png)",
        "- <img src=x onerror=alert(1)>",
        "<!-- --> <style>a</style>",
    ],
)
def test_html_and_links_in_markdown_stay_text(markdown):
    """Though nothing unescaped gets into the Markdown of a report, the page does not count on it."""
    body = page_of(markdown).split("</h2>")[1]
    assert set(re.findall(r"<(\w+)", body)) <= {"p", "ul", "li", "footer"}


def test_what_reports_consist_of_is_rendered():
    body = page_of("λ′<sub>G</sub> is `a<b`, **bold**<br>\\*text\\* &amp;")
    assert "<p>λ′<sub>G</sub> is <code>a&lt;b</code>, <strong>bold</strong><br>*text* &amp;</p>" in body


def test_whatever_scrolls_sideways_shows_that_it_does():
    style = (Path(html.__file__).parent / "templates" / "page.css").read_text()
    groups = re.findall(r"^([^{}@]+)\{([^{}]*)\}", style, re.MULTILINE)
    rules = [(each, rule) for group, rule in groups for each in group.split(",")]
    scrolling = {each.strip() for each, rule in rules if "overflow-x: auto" in rule}
    shadowed = {each.strip() for each, rule in rules if "scrollbar-width" in rule and "linear-gradient" in rule}
    assert scrolling == shadowed == {".drawing", ".scroll"}
