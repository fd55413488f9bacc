"""Errors in one sentence."""

import pytest

from orbitwise.cli.errors import CommandError, nearest, sentence


def test_near_names_are_suggested_whatever_their_case():
    assert nearest("stregnth", ["Age", "Strength"]) == "did you mean 'Strength'?"
    assert nearest("zzz", ["a", "b"]) == "the names are a, b"
    assert nearest("zzz", []) == "there are none"
    assert nearest("zzz", [f"c{i}" for i in range(20)]).endswith("c11 and 8 more")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CommandError("do\n  this"), "do this"),
        (FileNotFoundError(2, "No such file", "a.csv"), "No such file: a.csv"),
        (ValueError("bad"), "bad"),
        (
            OSError(28, "No space left on device"),
            "No space left on device; the disk is full; free some space, or choose another",
        ),
        (MemoryError(), "out of memory; use fewer rows (--rows) or a smaller --batch-size"),
        (KeyError("odd"), "KeyError: 'odd' (add --debug to see where it comes from)"),
        (ValueError(), "ValueError"),
    ],
)
def test_every_error_is_a_sentence(error, text):
    assert sentence(error) == text
