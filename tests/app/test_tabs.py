"""The page in a real browser, each tab used as a person would."""

import re

import pytest
from playwright.sync_api import expect

from open_nvib.app.tabs import TABS, compare, delta_of, edit, editable, inspect
from open_nvib.store.files import InputError
from open_nvib.text.using.run import Run

SLOW = 30_000
RECORD_TOASTS = """() => {
  window.toasts = [];
  const record = () => {
    for (const toast of document.querySelectorAll('[data-testid="toast-text"]'))
      if (!toast.seen) { toast.seen = true; window.toasts.push(toast.innerText); }
  };
  new MutationObserver(record).observe(document, {childList: true, subtree: true});
  record();
}"""


@pytest.fixture
def page(browser, address):
    """The page as it opens; a message, whatever goes wrong in it, or leaves this machine, fails the test."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.set_default_timeout(SLOW)
    expect.set_options(timeout=SLOW)
    troubles = []
    opened.on("console", lambda line: troubles.append(line.text) if line.type == "error" else None)
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.on(
        "response", lambda answer: troubles.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None
    )

    def local(request) -> None:
        if not request.url.startswith((address, "data:", "blob:", "about:")):
            troubles.append(f"asked elsewhere: {request.url}")

    opened.on("request", local)
    opened.goto(address)
    opened.evaluate(RECORD_TOASTS)
    expect(opened.locator("#inspect-strip")).to_contain_text(re.compile("vectors (for|kept)"))
    yield opened
    troubles += opened.evaluate("window.toasts")
    opened.close()
    assert troubles == []


def settled(page) -> None:
    """Wait until nothing on the page is being computed."""
    page.wait_for_timeout(300)  # until a request is on its way
    page.wait_for_function("() => document.querySelector('[data-testid=\"status-tracker\"]:not(.hide)') === null")


def send(page, name: str, text: str) -> None:
    """Type into a box and press Enter."""
    box = page.locator(f"#{name} textarea, #{name} input").first
    box.fill(text)
    box.press("Enter")


def test_inspect(page, known):
    send(page, "inspect-text", known[0])
    expect(page.locator("#inspect-reconstruction")).to_contain_text("word for word")
    rows = page.locator("#inspect-heat tbody tr")
    expect(rows.last.locator("th")).to_have_text("(end)")
    page.get_by_role("button", name="Token by token").click()
    expect(page.locator("#inspect-table tbody tr").first).to_be_visible()
    cells = page.locator("#inspect-table tbody tr").first.locator("td").all_inner_texts()
    assert [cell != "–" for cell in cells] == [True] * 4


def choose(page, run: str) -> None:
    page.locator("#run input").click()
    page.get_by_role("option", name=run, exact=True).click()


def test_the_number_of_vectors_begins_at_the_trained_share(page, runs, known):
    text = max(known, key=len)
    send(page, "inspect-text", text)
    number, strip = page.locator("#inspect-number input[type=number]"), page.locator("#inspect-strip")
    tokens = len(runs["nvae"].tokenize([text])[0])
    expect(number).to_have_attribute("max", str(tokens))
    expect(number).to_have_value(str(inspect(runs["nvae"], text)[0]))
    expect(page.locator("#inspect-number")).to_contain_text("trained with 0.5")
    page.locator("#inspect-text textarea").fill(known[0])  # not sent: the slider reads what stands there now
    number.fill("1")
    number.press("Enter")
    expect(strip).to_contain_text("1 vector for")
    expect(strip).to_contain_text(known[0].split()[-1].rstrip("."))
    expect(number).to_have_attribute("max", str(len(runs["nvae"].tokenize([known[0]])[0])))


def test_a_run_for_any_number_begins_at_the_fewest(page, runs, known):
    choose(page, "any")
    expect(page.locator("#inspect-number")).to_contain_text("fewest")
    settled(page)
    send(page, "inspect-text", known[0])
    expect(page.locator("#inspect-number input[type=number]")).to_have_value(str(inspect(runs["any"], known[0])[0]))


def test_a_run_with_gates_begins_at_the_number_that_it_decides(page, runs, known):
    choose(page, "gates")
    send(page, "inspect-text", known[0])
    expect(page.locator("#inspect-number")).to_contain_text("decides")
    number, strip = page.locator("#inspect-number input[type=number]"), page.locator("#inspect-strip")
    expect(strip).to_contain_text(known[0].split()[-1].rstrip("."))
    expect(number).to_have_value(str(inspect(runs["gates"], known[0])[0]))
    settled(page)
    number.fill("1")
    number.press("Enter")
    expect(strip).to_contain_text("1 vector for")


def test_the_number_of_vectors_waits_for_the_answer_that_resets_it(page):
    number, requests = page.locator("#inspect-number input[type=number]"), []
    page.route("**/run/predict*", lambda request: requests.append(request))
    choose(page, "gates")
    expect(number).to_be_disabled()
    for request in requests:
        request.continue_()
    page.unroute("**/run/predict*")
    number.fill("1")
    number.press("Enter")
    expect(page.locator("#inspect-strip")).to_contain_text("1 vector for")
    settled(page)
    expect(number).to_have_value("1")


def test_a_run_is_asked_for_once_when_it_is_chosen(page):
    """Each tab but Compare asks once. Deferred events of several handlers would ask again and again."""
    asked = []
    page.on("request", lambda request: asked.append(request.post_data) if request.method == "POST" else None)
    choose(page, "gates")
    for _ in range(SLOW // 100):
        if len(asked) >= len(TABS) - 1:
            break
        page.wait_for_timeout(100)
    page.wait_for_timeout(2000)  # time to ask again
    assert len(asked) == len(TABS) - 1


def test_a_fixed_number_of_vectors_has_no_slider(page):
    expect(page.locator("#inspect-number")).to_be_visible()
    choose(page, "vts")
    expect(page.locator("#inspect-number")).to_be_hidden()


def test_inspect_with_the_keyboard_alone(page, known):
    page.locator("#inspect-text textarea").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type(known[1])
    page.keyboard.press("Enter")
    expect(page.locator("#inspect-reconstruction")).to_contain_text(known[1].split()[-2])
    page.get_by_role("tab", name="Inspect").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Edit")).to_have_attribute("aria-selected", "true")


def test_an_example_is_run_when_it_is_clicked_on(page):
    example = page.get_by_role("tabpanel").first.locator("button.gallery-item, .gallery button").nth(1)
    words = example.inner_text().rstrip(".").lower().split()
    example.click()
    expect(page.locator("#inspect-text textarea")).to_have_value(re.compile(words[0], re.IGNORECASE))
    expect(page.locator("#inspect-strip")).to_contain_text(words[0])
    expect(page.locator("#inspect-strip")).to_contain_text(words[-1])


def test_a_bad_sentence_is_a_message_in_place_of_the_result(page):
    send(page, "inspect-text", "   ")
    expect(page.locator("#inspect-notes")).to_contain_text("Invalid input")
    expect(page.locator("#inspect-strip")).to_be_empty()
    settled(page)
    expect(page.get_by_text("Error", exact=True)).to_have_count(0)


def test_every_tab_opens_filled(page):
    for name, place in (
        ("Edit", "#edit-decoded .nv-text"),
        ("Generate", "#generate-texts li"),
        ("Interpolate", "#interpolate-path td"),
        ("Compare", "#compare-cards section"),
        ("Report", "#report-frame iframe"),
    ):
        page.get_by_role("tab", name=name).click()
        expect(page.locator(place).first).to_be_visible()
    frame = page.locator("#report-frame iframe")
    expect(frame).not_to_have_css("height", "960px")  # as high as the report: nothing scrolls inside
    assert frame.evaluate(
        "frame => frame.contentDocument.documentElement.scrollHeight <= frame.getBoundingClientRect().height"
    )


@pytest.mark.parametrize(
    "run", ["nvae", "paper", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("vts", "vtp"))]
)
def test_every_button_of_every_tab_works(page, run):
    if run != "nvae":
        choose(page, run)
    pressed = {}
    for name in TABS:
        page.get_by_role("tab", name=name).click()
        settled(page)
        panel = page.get_by_role("tabpanel").filter(visible=True)
        buttons = panel.get_by_role("button").filter(visible=True)
        pressed[name] = buttons.count()
        for index in range(pressed[name]):
            buttons.nth(index).click()
            settled(page)
        for number in panel.locator("input[type=number]:visible").all():
            # to switch off the only vector of a pooled latent is a mistake, and the page says so
            for end in ("max",) if name == "Edit" else ("min", "max"):
                if value := number.get_attribute(end):
                    number.fill(value)
                    number.press("Enter")
                    settled(page)
        if name == "Generate":
            panel.get_by_role("checkbox").uncheck()
            page.locator("#generate-go").click()
            settled(page)
            expect(page.locator("#generate-texts li")).to_have_count(20)
    assert all(pressed[name] for name in TABS if name != "Report")
    expect(page.locator("#report-frame iframe")).to_be_visible()


def test_the_slider_of_delta_follows_the_run(page, runs):
    page.get_by_role("tab", name="Generate").click()
    number = page.locator("#generate-delta input[type=number]")
    for name, expected in (("nvae", 10.0), ("paper", 0.3)):
        choose(page, name)
        assert delta_of(runs[name]) == expected
        expect(number).to_have_value(f"{expected:g}")
        assert float(number.get_attribute("max") or 0) >= 2 * expected
        page.locator("#generate-go").click()
        settled(page)
        assert page.locator("#generate-texts li").all_inner_texts() == runs[name].sample(8)


def vector_that_matters(run, texts: list[str]) -> tuple[str, int]:
    """A text, and the place among its vectors of one without which it is decoded otherwise."""
    for text in texts:
        latent, vectors = editable(run, text)
        for place, index in enumerate(vectors.values()):
            if "as without" not in edit(run, latent, {index: 0.0}):
                return text, place
    raise AssertionError("no single vector matters to any of these texts")


def test_edit_takes_a_word_away(page, runs, known):
    text, place = vector_that_matters(runs["nvae"], known)
    page.get_by_role("tab", name="Edit").click()
    send(page, "edit-text", text)
    boxes = page.locator("#edit-vectors input[type=checkbox]")
    expect(boxes).to_have_count(len(editable(runs["nvae"], text)[1]))
    expect(page.locator("#edit-decoded")).to_contain_text("as without")
    boxes.nth(place).uncheck()
    expect(page.locator("#edit-decoded .nv-lost, #edit-decoded .nv-new").first).to_be_visible()
    boxes.nth(place).check()
    expect(page.locator("#edit-decoded")).to_contain_text("as without")
    page.locator("#edit-vector input").click()
    page.get_by_role("option").nth(place).click()
    number = page.locator("#edit-factor input[type=number]")
    number.fill("0")
    number.press("Enter")
    expect(page.locator("#edit-decoded .nv-lost, #edit-decoded .nv-new").first).to_be_visible()


def test_generate_gives_the_same_texts_for_the_same_seed(page):
    page.get_by_role("tab", name="Generate").click()
    texts = page.locator("#generate-texts li")
    page.locator("#generate-go").click()
    expect(texts).to_have_count(8)
    first = texts.all_inner_texts()
    page.locator("#generate-seed input").fill("7")
    page.locator("#generate-go").click()
    expect(texts.first).not_to_have_text(first[0])
    page.locator("#generate-seed input").fill("0")
    page.locator("#generate-go").click()
    expect(texts.first).to_have_text(first[0])
    assert texts.all_inner_texts() == first


def test_interpolate_goes_from_one_to_the_other(page, known):
    page.get_by_role("tab", name="Interpolate").click()
    page.locator("#interpolate-from textarea").fill(known[0])
    page.locator("#interpolate-to textarea").fill(known[1])
    page.locator("#interpolate-go").click()
    rows = page.locator("#interpolate-path tbody td")
    # The tab opens with a path of its own examples: wait for this one.
    expect(rows.first).to_have_text(known[0])
    expect(rows.last).to_have_text(known[1])
    expect(rows).to_have_count(9)
    number = page.locator("#interpolate-at input[type=number]")
    number.fill("0")
    number.press("Enter")
    expect(page.locator("#interpolate-point")).to_contain_text("the first sentence")


def test_compare_shows_the_runs_side_by_side(page, known):
    page.get_by_role("tab", name="Compare").click()
    page.locator("#compare-other textarea").fill(known[1])
    send(page, "compare-text", known[0])
    cards = page.locator("#compare-cards section")
    expect(cards).to_have_count(4)
    expect(cards.nth(0)).to_contain_text("nvae (NVAE)")
    expect(cards.nth(0).get_by_text(re.compile("vectors? for"))).to_have_count(2)
    expect(cards.nth(2).locator("del.nv-dropped").first).to_be_visible()
    expect(cards.nth(3)).to_contain_text("one vector for all")
    page.locator("#compare-runs").get_by_label("vtp").uncheck()
    expect(cards).to_have_count(3)


class Refusing(Run):
    """A run that takes shorter texts than others do."""

    def tokenize(self, texts):
        raise InputError("<b> has 70 tokens, expected at most 63.")


def test_a_run_that_does_not_take_a_text_does_not_hide_the_others(runs, known):
    run = runs["nvae"]
    refusing = Refusing(run.path, run.settings, run.model, run.tokenizer, run.lengths)
    page = compare({"one": run, "other": refusing}, known[:1])
    assert page.count("<section") == 2
    assert "word for word" in page
    assert "&lt;b&gt; has 70 tokens" in page
    with pytest.raises(InputError, match="70 tokens"):
        compare({"other": refusing}, known[:1])


def test_report_shows_the_metrics_of_the_run(page):
    page.get_by_role("tab", name="Report").click()
    frame = page.frame_locator("#report-frame iframe")
    expect(frame.get_by_role("heading", level=1)).to_contain_text("NVAE")
    expect(frame.locator("svg").first).to_be_visible()


def test_another_run_can_be_chosen(page, known):
    send(page, "inspect-text", known[0])
    expect(page.locator("#inspect-reconstruction")).to_contain_text("word for word")
    choose(page, "vts")
    expect(page.locator("#inspect-strip del.nv-dropped").first).to_be_visible()
    page.get_by_role("tab", name="Generate").click()
    expect(page.locator("#generate-delta")).to_be_hidden()


def test_nothing_sticks_out_of_a_narrow_screen(page, known):
    page.set_viewport_size({"width": 375, "height": 700})
    send(page, "inspect-text", known[0])
    expect(page.locator("#inspect-reconstruction")).to_contain_text("word for word")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
