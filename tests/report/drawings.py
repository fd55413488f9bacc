"""What a figure says, read from its SVG."""

import base64
import re


def text_of(uri: str) -> str:
    """All words of a figure."""
    head, _, data = uri.partition(",")
    assert head == "data:image/svg+xml;base64"
    svg = base64.b64decode(data).decode()
    return " | ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))


def svg_of(uri: str) -> str:
    """The SVG itself."""
    return base64.b64decode(uri.partition(",")[2]).decode()
