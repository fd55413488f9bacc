"""One run from data to report: what is said, and what a report that fails costs."""

import io
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from orbitwise.cli.data import Data
from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import Folder
from orbitwise.cli.learning import Plan, Run
from tests.cli.conftest import QUICK, symmetric


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
    Run(table(notes=("left out one",)), table(), PLAN, folder, console, {"command": "x"}).learn()
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
    Run(data, table(words), plan, Folder(tmp_path / "a"), console, {}).learn(with_report=False)
    with pytest.raises(CommandError, match="the class '3'"):
        Run(data, table([1, 3] * 6), plan, Folder(tmp_path / "b"), console, {})
    assert not (tmp_path / "b").exists()
    with pytest.raises(CommandError, match="not all numbers"):
        Run(table(), table(["x"] * 12), PLAN, Folder(tmp_path / "c"), console, {})


def test_a_fit_that_converged_gets_no_note(tmp_path):
    text = io.StringIO()
    plan = Plan("regression", ["none"], options={"max_iterations": 200})
    run = Run(table(), None, plan, Folder(tmp_path), Console(file=text), {})
    run.learn(force=True, with_report=False)
    assert "did not converge" not in text.getvalue()


LEARN = ("--target", "strength", "--invariance", "none", "--invariance", "permutation", "--no-report", *QUICK)


@pytest.mark.parametrize("leads_to_a_file", [True, False])
def test_resuming_writes_through_no_link(orbitwise, table, leads_to_a_file):
    learn, path, victim = ("learn", table, *LEARN, "--out"), table.parent / "cut", table.parent / "victim"
    assert orbitwise(*learn, "whole").status == 0
    assert orbitwise(*learn, "cut", "--time-limit", 0).status == 0
    if leads_to_a_file:
        victim.write_text("of somebody else")
    names = ["model.orbitwise", "comparison.json", "examples.npz", "progress/0-none/seconds.txt"]
    for name in [*names, "candidates/0-none.orbitwise", "candidates/0-none.json"]:
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(victim)
    ran = orbitwise(*learn, "cut", "--resume")
    assert ran.status == 0, ran.error
    assert victim.exists() == leads_to_a_file
    assert not leads_to_a_file or victim.read_text() == "of somebody else"
    assert (path / "model.orbitwise").read_bytes() == Path("whole/model.orbitwise").read_bytes()


def test_a_journal_that_is_a_link_is_said_in_one_line_and_left_alone(orbitwise, table):
    learn, path, victim = ("learn", table, *LEARN, "--out", "r"), table.parent / "r", table.parent / "victim"
    assert orbitwise(*learn, "--time-limit", 0).status == 0
    journal = next((path / "progress" / "0-none").glob("*.journal"))
    journal.rename(victim)
    journal.symlink_to(victim)
    content = victim.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        ran = orbitwise(*learn, "--resume")
    assert ran.status == 0
    assert victim.read_bytes() == content
    lines = ran.error.splitlines()
    assert len(lines) == 2, "as long as they are, each is one line"
    assert lines[0].startswith(f"warning: {journal.relative_to(table.parent)} is ignored, and the fit starts")
    assert "keeps no more checkpoints" in lines[1]
    assert ".py" not in ran.error


def test_a_folder_of_an_earlier_version_is_shown_and_not_resumed(orbitwise, table):
    learn = ("learn", table, *LEARN, "--out", "r")
    assert orbitwise(*learn).status == 0
    settings, comparison = (Path("r") / f"{name}.json" for name in ("settings", "comparison"))
    about = json.loads(settings.read_text())
    del about["format"]
    settings.write_text(json.dumps({**about, "digest": "made in another way"}))
    about = json.loads(comparison.read_text())
    for name in ("format", "digest", "model", "examples"):
        del about[name]
    for each in about["candidates"]:
        del each["sha256"]
    comparison.write_text(json.dumps(about))
    for arguments in (("show", "r"), ("report", "r")):
        ran = orbitwise(*arguments)
        assert ran.status == 0, ran.error
        assert "r was written by an earlier version of Orbitwise" in " ".join(ran.out.split())
        assert "different runs" not in ran.out
    assert "24 of" in orbitwise("show", "r").out
    assert Path("r/report.html").read_text().count("permutation") > 1
    assert orbitwise("predict", "r", table, "--target", "strength", "-o", "a.csv").status == 0
    assert orbitwise("export", "r", "--to", "json", "-o", "a.json").status == 0
    ran = orbitwise(*learn, "--resume")
    assert ran.status == 1
    assert "r was written by an earlier version of Orbitwise, and this version cannot resume it" in ran.error
    assert "--force, or choose another --out" in ran.error
    assert orbitwise(*learn, "--force").status == 0
    assert "earlier version" not in orbitwise("show", "r").out


def test_data_that_no_fit_takes_do_not_cost_what_force_replaces(orbitwise, table):
    learn = ("learn", table, "--target", "strength", "--out", "run", "--max-iterations", 1, "--no-report")
    assert orbitwise(*learn, "--invariance", "none").status == 0
    before = Path("run/model.orbitwise").read_bytes()
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, "1e200,1,1,1"]) + "\n")
    ran = orbitwise(*learn, "--invariance", "none", "--force")
    assert ran.status == 1
    assert "The largest entry of X" in ran.error
    assert Path("run/model.orbitwise").read_bytes() == before


def test_another_spelling_of_the_same_path_resumes(orbitwise, table):
    options = ("--target", "strength", "--out", "run", "--invariance", "none", "--max-iterations", 1)
    assert orbitwise("learn", table.name, *options).status == 0
    assert orbitwise("learn", f"./{table.name}", *options, "--resume").status == 0
