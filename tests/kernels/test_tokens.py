"""Words of a spelling."""

import pytest

from orbitwise.kernels.spelling import SpellingError, tokens_of


def test_words_have_kinds_and_places():
    found = tokens_of("rbf(a=-1e-3)**2 +2")
    assert [(each.kind, each.text) for each in found] == [
        ("name", "rbf"),
        ("mark", "("),
        ("name", "a"),
        ("mark", "="),
        ("number", "-1e-3"),
        ("mark", ")"),
        ("mark", "**"),
        ("number", "2"),
        ("mark", "+"),
        ("number", "2"),
        ("end", "the end"),
    ]
    assert [each.position for each in found] == [0, 3, 4, 5, 6, 11, 12, 14, 16, 17, 18]


def test_the_caret_stands_under_the_character():
    with pytest.raises(SpellingError) as caught:
        tokens_of("rbf +\n ? rq")
    first, text, caret = str(caught.value).splitlines()
    assert "'?' has no meaning" in first
    assert text[caret.index("^")] == "?"
    assert caught.value.position == 7
