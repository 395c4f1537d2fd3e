"""WikiText in its original format, `.tokens` or `.raw`: headings dropped and the spaces of its tokenisation undone."""

import re

UNKNOWN = "<unk>"  # how WikiText writes a rare word; it becomes the tokenizer's own unknown token

_HEADING = re.compile(r"\s*=.*=\s*")
_INSIDE_WORD = re.compile(r" ?@([-,.])@ ?")
_CLITIC = re.compile(r" ' ?(s|t|m|d|re|ve|ll)\b(?! ')", re.IGNORECASE)
_BEFORE = re.compile(r" (?=[,.;:!?%)\]}°](?:\s|$)|\.\.\.(?:\s|$)|…)")
_AFTER = re.compile(r"(?<=[\s(\[][(\[{$£€₹#]) ")
_DOUBLE_QUOTED = re.compile(r'" ([^"]*?) "')
_SINGLE_QUOTED = re.compile(r"(?<=[\s(\[])' ([^']*?) '(?=[\s,.;:!?)]|$)")
_CURLY_QUOTED = re.compile(r"([“‘]) ([^“”‘’]*?) ([”’])")


def clean(lines: str) -> str:
    """Plain text, one paragraph a line. `<unk>` is left as it is."""
    return "\n".join(untokenise(line) for line in lines.split("\n") if line.strip() and not _HEADING.fullmatch(line))


def untokenise(line: str) -> str:
    """Put back the spacing that WikiText's tokeniser changed, so far as it can be known.

    Quotes are paired from the left; a quote without a partner keeps its spaces.
    """
    text = _INSIDE_WORD.sub(r"\1", f" {line.strip()} ")
    text = _CLITIC.sub(r"'\1", text)
    text = _AFTER.sub("", _BEFORE.sub("", text))
    text = _DOUBLE_QUOTED.sub(r'"\1"', text)
    text = _SINGLE_QUOTED.sub(r"'\1'", text)
    return _CURLY_QUOTED.sub(r"\1\2\3", text).strip()
