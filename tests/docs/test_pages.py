"""The Python of the pages in docs/ runs without a warning, and prints what the pages show."""

import pytest

from tests.docs import pages
from tests.docs.pages import BLOCK, ROOT, agree, run, shown

SLOW = {"quickstart.md"} | {
    f"tutorials/{name}.md" for name in ("augmentation", "images", "signals", "tables", "time_series")
}
"""Pages that take longer than a few seconds."""
PAGES = sorted(
    page.relative_to(ROOT / "docs").as_posix()
    for page in (ROOT / "docs").rglob("*.md")
    if page.parent.name not in ("made", "gallery", "reference")
    and BLOCK.search(page.read_text(encoding="utf-8"))
)


@pytest.mark.parametrize(
    "page", [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in PAGES]
)
def test_a_page_prints_what_it_shows(page):
    path = ROOT / "docs" / page
    for number, (printed, told) in enumerate(zip(run(path), shown(path), strict=True), start=1):
        assert agree(printed, told), f"block {number} prints\n{printed}\nand not\n{told}"


def test_pages_are_there():
    assert {"index.md", "quickstart.md", "guide/data.md"} < set(PAGES)
    assert set(PAGES) > SLOW


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("angle 0.70 rad", "angle  0.71 rad", True),
        ("angle 0.70 rad", "angle 0.90 rad", False),
        ("angle 0.70 rad", "shift 0.70 rad", False),
        ("1,103 nats", "1,090 nats", True),
        ("1,103 nats", "903 nats", False),
        ("True", "False", False),
        ("[[0. 1.]]", "[[0. 1. 1.]]", False),
    ],
)
def test_outputs_agree_where_words_do_and_numbers_nearly(first, second, same):
    assert agree(first, second) == same


def test_a_page_that_shows_something_else_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(6 * 7)\n```\n\n```output\n54\n```\n", encoding="utf-8")
    assert run(page) == ["42"]
    assert not agree(run(page)[0], shown(page)[0])
    pages.write(page)
    assert shown(page) == ["42"]
