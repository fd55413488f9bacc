"""The words of a spelling of kernels, and the error that shows where a text goes wrong."""

from __future__ import annotations

import re
from typing import NamedTuple, final

TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"|(?P<name>[^\W\d]\w*)|(?P<mark>\*\*|[-+*^(),=\[\]]))"
)
SIGN = re.compile(r"\s*(?P<mark>[-+])")


@final
class SpellingError(ValueError):
    """Text that is no kernel; `position` is where it goes wrong, counted from 0."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        line = re.sub(r"\s", " ", text)
        super().__init__(f"{problem}\n    {line}\n    {' ' * position}^ here, at position {position}")
        self.position = position


class Token(NamedTuple):
    """A number, a name, a mark or the end, with its place in the text."""

    kind: str
    text: str
    position: int


def tokens_of(text: str) -> list[Token]:
    """The words of a text, with an end; a SpellingError at the first character that has no meaning."""
    found: list[Token] = []
    position, length = 0, len(text.rstrip())
    while position < length:
        match = TOKEN.match(text, position)
        if match is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            raise SpellingError(text, start, f"The character {text[start]!r} has no meaning here.")
        kind = match.lastgroup or ""
        # "rbf +2" adds 2: a sign after a factor belongs to no number.
        is_after_factor = bool(found) and (found[-1].kind != "mark" or found[-1].text in ")]")
        if kind == "number" and is_after_factor and (sign := SIGN.match(text, position)) is not None:
            match, kind = sign, "mark"
        found.append(Token(kind, match[kind], match.start(kind)))
        position = match.end()
    return [*found, Token("end", "the end", length)]
