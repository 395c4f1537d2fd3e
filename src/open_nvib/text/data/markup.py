"""Turn markup into plain text: the articles of a MediaWiki XML dump, and WikiText's tokenised lines.

mwparserfromhell parses MediaWiki, at about 1 MB a second and core; what to keep of the tree is decided here. Headings,
lists, tables, references, templates, images and categories are dropped. Where something is cut out of the middle of a
sentence, such as a formula, a `HOLE` stays behind, so that the sentence can be dropped later.
"""

import html
import re
from collections.abc import Iterable, Iterator
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

import mwparserfromhell
from mwparserfromhell.nodes import Comment, ExternalLink, Heading, HTMLEntity, Tag, Text, Wikilink
from mwparserfromhell.parser import ParserError
from mwparserfromhell.wikicode import Wikicode

from open_nvib.store.files import InputError

HOLE = "\ufffc"  # Unicode's own placeholder for an object that is not text
UNKNOWN = "<unk>"  # WikiText's mark of a rare word; it becomes the tokenizer's own unknown token
_LIST_ITEM = "\ufff9"  # marks a line as part of a list; only within this module
_TEMPLATE = "\ufffa"  # marks a dropped template, which is a footnote or a hole; only within this module

_REDIRECT = re.compile(r"\s*#\s*redirect", re.IGNORECASE)
_OTHER_NAMESPACE = re.compile(
    r"(?:(?:user|wikipedia|file|image|mediawiki|template|help|category|portal|draft|module|media|special|book)"
    r"(?: talk)?|talk):",
    re.IGNORECASE,
)
_NOT_TEXT = re.compile(r"\s*(?:file|image|category|media)\s*:", re.IGNORECASE)
_OTHER_LANGUAGE = re.compile(r"\s*(?:[a-z]{2,3}(?:-[a-z]+)?|simple)\s*:")
_LIST_TAGS = {"li", "dd", "dt"}
_SILENT_TAGS = {"ref", "references", "table", "tr", "td", "th", "gallery", "timeline", "imagemap", "ul", "ol", "dl"}
_SILENT_TAGS |= {"pre", "source", "syntaxhighlight", "noinclude", "includeonly", "script", "style", "hr"}
_HOLE_TAGS = {"math", "code", "tt", "hiero", "chem", "score"}

_STYLE_QUOTES = re.compile(r"'{2,}")
_FOOTNOTES = re.compile(rf"(?<=[^\s({HOLE}{_TEMPLATE}]){_TEMPLATE}+")
_HOLE_IN_BRACKETS = re.compile(rf"\s*\([^()]*{HOLE}[^()]*\)")
_EMPTY_BRACKETS = re.compile(r"\s*(?:\([\s,;:–-]*\)|\[[\s,;:–-]*\])")
_AFTER_BRACKET = re.compile(r"(?<=[(\[])[\s,;:]+")
_SPACE_BEFORE = re.compile(r"[ \t]+(?=[,.;:!?)](?:\s|$))")
_MAGIC_WORD = re.compile(r"__[A-Z]+__")


def articles(chunks: Iterable[bytes], where: str) -> Iterator[str]:
    """Yield the wikitext of every article of a dump, without redirects and pages of other namespaces.

    Of a dump that breaks off in the middle, as enwik8 does, yield the complete pages.
    """
    parser = XMLPullParser(events=("end",))
    page_seen = False
    for chunk in chunks:
        try:
            parser.feed(chunk)
            for event in parser.read_events():
                element = event[-1]
                assert isinstance(element, Element)
                if _local(element) == "page":
                    page_seen = True
                    if (text := _article(element)) is not None:
                        yield text
                    element.clear()
        except ParseError as error:
            raise InputError(f"{where}: not a MediaWiki XML dump ({error}). Give a dump of pages-articles.") from error
    if not page_seen:
        raise InputError(f"{where}: no <page> in this XML, expected a MediaWiki dump. Give a dump of pages-articles.")


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _article(page: Element) -> str | None:
    fields = {_local(element): element.text or "" for element in page.iter()}
    text = fields.get("text", "")
    if fields.get("ns", "0") != "0" or _OTHER_NAMESPACE.match(fields.get("title", "")) or _REDIRECT.match(text):
        return None
    return text


def clean_mediawiki(wikitext: str) -> str:
    """Turn the wikitext of one article into plain text, one paragraph a line."""
    try:
        rendered = _render(mwparserfromhell.parse(wikitext, skip_style_tags=True))
    except (ParserError, RecursionError):  # nested deeper than the parser allows: a few pages of a million
        return ""
    paragraphs = (_tidy(line) for line in rendered.split("\n") if _is_prose(line))
    return "\n".join(paragraph for paragraph in paragraphs if paragraph)


def _render(code: Wikicode) -> str:
    return "".join(map(_render_node, code.nodes))


def _render_node(node: object) -> str:
    if isinstance(node, Text):
        return node.value
    if isinstance(node, Wikilink):
        return _render_link(node)
    if isinstance(node, Tag):
        return _render_tag(node)
    if isinstance(node, HTMLEntity):
        return html.unescape(str(node))
    if isinstance(node, Heading):
        return "\n"
    if isinstance(node, ExternalLink):
        if node.title is not None:
            return _render(node.title)
        return "" if node.brackets else HOLE
    return "" if isinstance(node, Comment) else _TEMPLATE


def _render_link(link: Wikilink) -> str:
    title = str(link.title)
    if _NOT_TEXT.match(title):
        return ""
    if link.text is not None and str(link.text).strip():
        return _render(link.text)
    return "" if _OTHER_LANGUAGE.match(title) else html.unescape(title.removeprefix(":"))


def _render_tag(tag: Tag) -> str:
    name = str(tag.tag).strip().lower()
    if name in _LIST_TAGS:
        return _LIST_ITEM
    if name in _SILENT_TAGS:
        return ""
    if name in _HOLE_TAGS:
        return HOLE
    if name == "br":
        return " "
    contents = _render(tag.contents) if tag.contents is not None else ""
    if name == "sup" and not contents.isalpha():  # 10⁶ must not become 106
        return HOLE
    return contents


def _is_prose(line: str) -> bool:
    """Tell whether a line is neither a list item nor a row of a table that the parser did not recognise."""
    return _LIST_ITEM not in line and not line.lstrip().startswith(("|", "!", "{|", "*", "#", ":", ";", "="))


def _tidy(line: str) -> str:
    """Remove the traces of dropped parts: empty brackets, spaces before commas."""
    line = html.unescape(_STYLE_QUOTES.sub("", line))
    line = _MAGIC_WORD.sub("", line).strip().lstrip(_TEMPLATE)
    line = _FOOTNOTES.sub("", line).replace(_TEMPLATE, HOLE)
    line = _HOLE_IN_BRACKETS.sub("", line)
    line = _AFTER_BRACKET.sub("", _EMPTY_BRACKETS.sub("", line))
    return _SPACE_BEFORE.sub("", line).strip()


_HEADING = re.compile(r"\s*=.*=\s*")
_INSIDE_WORD = re.compile(r" ?@([-,.])@ ?")
_CLITIC = re.compile(r" ' ?(s|t|m|d|re|ve|ll)\b(?! ')", re.IGNORECASE)
_BEFORE = re.compile(r" (?=[,.;:!?%)\]}°](?:\s|$)|\.\.\.(?:\s|$)|…)")
_AFTER = re.compile(r"(?<=[\s(\[][(\[{$£€₹#]) ")
_DOUBLE_QUOTED = re.compile(r'" ([^"]*?) "')
_SINGLE_QUOTED = re.compile(r"(?<=[\s(\[])' ([^']*?) '(?=[\s,.;:!?)]|$)")
_CURLY_QUOTED = re.compile(r"([“‘]) ([^“”‘’]*?) ([”’])")


def clean_wikitext(lines: str) -> str:
    """Turn lines of WikiText's original format into plain text: drop headings, undo the tokenisation, keep `<unk>`."""
    return "\n".join(untokenise(line) for line in lines.split("\n") if line.strip() and not _HEADING.fullmatch(line))


def untokenise(line: str) -> str:
    """Restore the spacing that WikiText's tokeniser changed, as far as it can be inferred.

    Quotes are paired from the left; a quote without a partner keeps its spaces.
    """
    text = _INSIDE_WORD.sub(r"\1", f" {line.strip()} ")
    text = _CLITIC.sub(r"'\1", text)
    text = _AFTER.sub("", _BEFORE.sub("", text))
    text = _DOUBLE_QUOTED.sub(r'"\1"', text)
    text = _SINGLE_QUOTED.sub(r"'\1'", text)
    return _CURLY_QUOTED.sub(r"\1\2\3", text).strip()
