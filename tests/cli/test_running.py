"""One run from data to report: what is said, and what a report that fails costs."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from orbitwise.cli.data import Data
from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import Folder
from orbitwise.cli.learning import Plan
from orbitwise.cli.running import run
from tests.cli.conftest import symmetric


def table(labels=None, notes=()) -> Data:
    x, y = symmetric(12)
    return Data(x, y if labels is None else np.array(labels), ["-"] * 12, notes=notes)


PLAN = Plan("regression", ["none"], options={"max_iterations": 2})


def test_a_report_that_fails_does_not_cost_the_model(tmp_path, monkeypatch):
    def failing(*_: object, **__: object) -> None:
        raise ValueError("no picture")

    monkeypatch.setattr("orbitwise.report.write_report", failing)
    text = io.StringIO()
    folder = Folder(tmp_path / "r")
    console = Console(file=text, width=200)
    run(table(notes=("left out one",)), table(), PLAN, folder, console, {"command": "x"})
    assert folder.model.is_file()
    assert "could not be written (no picture)" in text.getvalue()
    assert "note: left out one" in text.getvalue()
    assert "note: none did not converge within --max-iterations 2; a larger" in text.getvalue()
    assert "Warning" not in text.getvalue()
    about = json.loads(folder.comparison.read_text())
    assert about["finished"]
    assert set(about["candidates"][0]["test"]) == {"rmse", "log_density"}


def test_test_labels_are_of_the_same_kind_and_known(tmp_path):
    plan = Plan("classification", ["none"], options={"max_iterations": 2})
    console = Console(quiet=True)
    words = ["1", "2"] * 6
    data = table([1, 2] * 6)
    run(data, table(words), plan, Folder(tmp_path / "a"), console, {}, with_report=False)
    with pytest.raises(CommandError, match="the class '3'"):
        run(data, table([1, 3] * 6), plan, Folder(tmp_path / "b"), console, {})
    assert not (tmp_path / "b").exists()
    with pytest.raises(CommandError, match="not all numbers"):
        run(table(), table(["x"] * 12), PLAN, Folder(tmp_path / "c"), console, {})


def test_a_fit_that_converged_gets_no_note(tmp_path):
    text = io.StringIO()
    plan = Plan("regression", ["none"], options={"max_iterations": 200})
    run(table(), None, plan, Folder(tmp_path), Console(file=text), {}, force=True, with_report=False)
    assert "did not converge" not in text.getvalue()
