"""Tokens and texts as words: how a token is written, and where two texts differ."""

import difflib
from dataclasses import dataclass


def readable(token: str) -> tuple[str, bool]:
    """A token as people write it, and whether it begins a word."""
    if token.startswith("##"):
        return token[2:], False
    for mark in ("Ġ", "▁"):
        if mark in token:
            return token.replace(mark, ""), True
    return token, True


@dataclass(frozen=True)
class Difference:
    """A run of words: what the first text has, what the second has, one of them perhaps nothing."""

    before: str
    after: str

    @property
    def same(self) -> bool:
        return self.before == self.after


def differences(before: str, after: str) -> list[Difference]:
    """The two texts as runs of words that are alike or not, in order."""
    first, second = before.split(), after.split()
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    return [
        Difference(" ".join(first[low:high]), " ".join(second[start:end]))
        for _, low, high, start, end in matcher.get_opcodes()
    ]
