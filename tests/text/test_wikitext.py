import pytest

from open_nvib.text.data.wikitext import clean, untokenise


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


def test_clean_drops_headings_and_blank_lines():
    assert clean(" \n = Title = \n \n = = Part = = \n A line . \n x = y = z holds .\n") == "A line.\nx = y = z holds."


def test_no_tokenisation_is_left_in_wikitext(corpora):
    text = clean((corpora / "wikitext-103-part" / "wiki.valid.tokens").read_text(encoding="utf-8"))
    assert len(text) > 900_000
    assert "@-@" not in text
    assert "@,@" not in text
    spaced = sum(text.count(mark) for mark in (" , ", " . ", " ) ", " ( "))
    assert spaced < 20
