"""HTML in small pieces. Whatever comes from outside passes through `escape`; pieces are strings of HTML."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

MOST_NARROW = 4
"""Columns of a table that a narrow screen has room for."""


def escape(text: object) -> str:
    """Text as HTML that shows it and does nothing else; characters that cannot be printed are marked."""
    plain = "".join(each if each.isprintable() or each in "\n\t" else "�" for each in str(text))
    return html.escape(plain, quote=True)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int] = ()) -> str:
    """A table of pieces of HTML; each row of a wide one becomes a card on a narrow screen."""
    head = "".join(f'<th scope="col"{_number(i, numeric)}>{name}</th>' for i, name in enumerate(headings))
    body = ""
    for row in rows:
        first, *rest = [unbroken(cell) for cell in row]
        cells = "".join(
            f'<td data-label="{_plain(heading)}"{_number(i, numeric)}><span>{cell}</span></td>'
            for i, (heading, cell) in enumerate(zip(headings[1:], rest, strict=True), start=1)
        )
        body += f'<tr><th scope="row"{_number(0, numeric)}>{first}</th>{cells}</tr>'
    kind = "wide" if len(headings) > MOST_NARROW else "narrow"
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def unbroken(piece: str) -> str:
    """A piece of HTML in which numbers stay on one line with their units and errors."""
    return re.sub(r"(?<=\d) (?=%|±|nats\b|× 10)|(?<=±) (?=\d)", "\u00a0", piece)


def figure(uri: str, title: str, caption: str = "") -> str:
    """A drawing with its title above and its caption below; both are pieces of HTML."""
    below = f"<figcaption>{unbroken(caption)}</figcaption>" if caption else ""
    return f'<figure class="drawing"><h3>{title}</h3><img src="{uri}" alt="{_plain(title)}">{below}</figure>'


def side_by_side(*pieces: str, small: bool = False) -> str:
    """Pieces in as many columns as there is room for: two on a wide screen, three of small pieces."""
    kind = "columns small-columns" if small else "columns"
    return f'<div class="{kind}">{"".join(pieces)}</div>'


def section(identity: str, title: str, *pieces: str) -> str:
    """A part of the page with its heading."""
    return f'<section id="{identity}"><h2>{title}</h2>{"".join(pieces)}</section>'


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph, of a kind that the style sheet knows."""
    text = unbroken(text)
    return f'<p class="{kind}">{text}</p>' if kind else f"<p>{text}</p>"


def json_text(data: Any) -> str:
    """Data as JSON that cannot end the element it stands in."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def resource(name: str) -> str:
    """A text file of this package."""
    return resources.files("orbitwise.report").joinpath(name).read_text(encoding="utf-8")


def fill(template: str, parts: Mapping[str, str]) -> str:
    """The template with `{{name}}` replaced by parts, in one pass: braces within parts stay as they are."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match.group(1)], template)


def _number(place: int, numeric: Sequence[int]) -> str:
    return ' class="number"' if place in numeric else ""


def _plain(piece: str) -> str:
    """A piece of HTML without its tags."""
    return re.sub(r"<[^>]*>", "", piece)
