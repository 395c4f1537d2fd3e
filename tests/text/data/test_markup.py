import pytest

from open_nvib.store.files import InputError
from open_nvib.text.data.markup import HOLE, articles, clean_mediawiki, clean_wikitext, untokenise


@pytest.mark.parametrize(
    ("wikitext", "plain"),
    [
        ("'''Bold''' and ''italic'' text.", "Bold and italic text."),
        ("A [[river]] and a [[river bank|bank]].", "A river and a bank."),
        ("See [[Image:a.jpg|thumb|A [[nested]] caption.]] here.", "See  here."),
        ("Text.\n[[Category:Rivers]]\n[[de:Fluss]]", "Text."),
        ("== Heading ==\nText.", "Text."),
        ("Text.<ref name=a>Not this.</ref> More.<!-- nor this -->", "Text. More."),
        ("* an item\n# another\n: indented\n; term\nProse.", "Prose."),
        ("{| class=x\n! head\n|-\n| cell || cell\n|}\nProse.", "Prose."),
        ("{{Infobox\n| name = [[X]]\n| other = {{y|z}}\n}}\nProse.", "Prose."),
        ("Prose.{{fact}} More.", "Prose. More."),
        ("Athens ({{IPA|x}}; founded 1) is old.", "Athens is old."),
        ("Fish &amp; chips &mdash; 5&nbsp;kg.", "Fish & chips — 5\u00a0kg."),
        ("A [http://x.org good site] and [http://y.org].", "A good site and."),
        ("The 19<sup>th</sup> century, H<sub>2</sub>O.", "The 19th century, H2O."),
    ],
)
def test_clean_leaves_what_a_reader_sees(wikitext, plain):
    assert clean_mediawiki(wikitext) == plain


@pytest.mark.parametrize(
    "wikitext", ["Let <math>x</math> be real.", "About 10<sup>6</sup> years.", "It is {{x}} long."]
)
def test_clean_marks_what_is_cut_out_of_a_sentence(wikitext):
    assert HOLE in clean_mediawiki(wikitext)


def test_clean_survives_what_is_never_closed():
    for broken in ("{{" * 500 + "x", "[[" * 500, "{|\n|a", "<ref>x", "'''''x", "<table><tr>"):
        assert isinstance(clean_mediawiki(broken), str)


def page(title, text, ns=""):
    return f"<page><title>{title}</title>{ns}<revision><text>{text}</text></revision></page>"


def test_articles_are_neither_redirects_nor_of_other_namespaces_and_the_dump_may_break_off():
    dump = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.3/">'
    dump += page("A", "one &amp;amp; only") + page("B", "#REDIRECT [[A]]") + page("Wikipedia:C", "no")
    dump += page("D", "no", "<ns>10</ns>") + page("Batman: E", "two", "<ns>0</ns>") + "<page><title>F</title><text>ha"
    data = dump.encode()
    chunks = [data[start : start + 7] for start in range(0, len(data), 7)]
    assert list(articles(chunks, "dump.xml")) == ["one &amp; only", "two"]


@pytest.mark.parametrize("data", [b"plain text", b"<html><body>page</body></html>", b"<a><b></a>"])
def test_articles_of_something_else_is_an_input_error(data):
    with pytest.raises(InputError, match=r"dump\.xml"):
        list(articles([data], "dump.xml"))


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("The well @-@ known 1 @,@ 250 @.@ 5 m hall .", "The well-known 1,250.5 m hall."),
        ('Only " lobster red " on cooking , it said : " No ! "', 'Only "lobster red" on cooking, it said: "No!"'),
        ("It is 60 cm ( 24 in ) long ; 5 % of them .", "It is 60 cm (24 in) long; 5% of them."),
        ("The city 's mayor didn 't pay $ 5 ( £ 3 ) .", "The city's mayor didn't pay $5 (£3)."),
        ("He wrote [ sic ] and left ...", "He wrote [sic] and left..."),
        ("The <unk> of <unk> , a town .", "The <unk> of <unk>, a town."),
        ('An odd " quote stays .', 'An odd " quote stays.'),
    ],
)
def test_untokenise_puts_the_spacing_back(tokens, text):
    assert untokenise(tokens) == text


def test_clean_wikitext_drops_headings_and_blank_lines():
    assert (
        clean_wikitext(" \n = Title = \n \n = = Part = = \n A line . \n x = y = z holds .\n")
        == "A line.\nx = y = z holds."
    )


def test_no_tokenisation_is_left_in_wikitext(corpora):
    text = clean_wikitext((corpora / "wikitext-103-part" / "wiki.valid.tokens").read_text(encoding="utf-8"))
    assert len(text) > 900_000
    assert "@-@" not in text
    assert "@,@" not in text
    spaced = sum(text.count(mark) for mark in (" , ", " . ", " ) ", " ( "))
    assert spaced < 20
