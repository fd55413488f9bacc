"""Calls visit at most three quarters of the files that they visited before the upper floors were rebuilt.

It was 65 % before data larger than memory and several processes brought files of their own.
"""

from pathlib import Path

import pytest

from orbitwise.losses import loss_of
from tests.goldens.tracer import BEFORE, files_visited, scenarios

SHARE = 0.75


def test_files_are_those_in_which_functions_run():
    assert files_visited(lambda: loss_of("squared")) == ["losses.py"]
    assert files_visited(lambda: None) == []


def test_calls_visit_few_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    visited = {name: files_visited(call) for name, call in scenarios(tmp_path).items()}
    assert visited.keys() == BEFORE.keys()
    with capsys.disabled():
        for name, files in visited.items():
            share = len(files) / BEFORE[name]
            print(f"\n{name}: {len(files)} files, {share:.0%} of {BEFORE[name]}", end="")
    above = {name: files for name, files in visited.items() if len(files) > SHARE * BEFORE[name]}
    assert not above
