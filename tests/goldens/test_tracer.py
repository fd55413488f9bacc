"""Calls visit no more files than were last recorded; the aim is 65 % of those of the first record."""

import json
from pathlib import Path

import pytest

from orbitwise.losses import loss_of
from tests.goldens.tracer import files_visited, scenarios

RECORD = json.loads((Path(__file__).parent / "files_visited.json").read_text())
BEFORE: dict[str, int] = RECORD["before"]
NOW: dict[str, int] = RECORD["now"]


def test_files_are_those_in_which_functions_run():
    assert files_visited(lambda: loss_of("squared")) == ["losses.py"]
    assert files_visited(lambda: None) == []


def test_calls_visit_no_more_files_than_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    counts = {name: len(files_visited(call)) for name, call in scenarios(tmp_path).items()}
    assert counts.keys() == BEFORE.keys()
    with capsys.disabled():
        for name, count in counts.items():
            print(f"\n{name}: {count} files, {count / BEFORE[name]:.0%} of {BEFORE[name]}", end="")
    above = {name: count for name, count in counts.items() if count > NOW[name]}
    assert not above
