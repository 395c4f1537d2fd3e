"""Where two texts differ, word by word."""

import difflib
from dataclasses import dataclass


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
