"""A run computes what is missing, keeps what is there, and judges and draws when all is there."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from orbitwise import datasets
from orbitwise.inference.disk import Lock
from orbitwise.reproduce.result import Cell, Claim, Result, Setting
from orbitwise.reproduce.runner import Run, checksums
from orbitwise.reproduce.tables import error_of, mean_of, over_seeds


class Made:
    """A result of two models whose cells are counted; the cells of some names fail."""

    def __init__(self, size: int = 3):
        self.calls, self.fails, self.size = [], set(), size
        self.result = Result("lim-made", "Made", "LIM", "1 and 2", self.cells, self.claims, self.draw)

    def run(self, model: str, seed: int, size: int, device: str):
        self.calls.append((model, seed, device))
        if (model, seed) in self.fails:
            raise RuntimeError("the cell failed")
        warnings.warn("not converged", UserWarning, stacklevel=1)
        return {"error": len(model) + seed * size}

    def cells(self, setting: Setting):
        return {
            f"{model}, seed {seed}": Cell(
                self.run, {"model": model, "seed": seed, "size": self.size}, 2.0, ("iris",)
            )
            for seed in setting.seeds
            for model in ("a", "bb")
        }

    def claims(self, cells):
        a, b = (mean_of(cells, model, "error") for model in ("a", "bb"))
        return [Claim.of("a is below bb", "1 and 2", f"{a:.1f} and {b:.1f}", a < b, "it is not")]

    def draw(self, cells, figure):
        figure.subplots().plot([cells["a, seed 0"]["error"], 2])


@pytest.fixture
def made() -> Made:
    return Made()


def compute(made: Made, folder, seeds: int = 1, **more) -> Run:
    run = Run(made.result, Setting("cpu", seeds), folder, "cpu")
    run.compute("the command", Console(quiet=True), **more)
    return run


def test_a_record_says_what_was_computed_and_how(made, tmp_path):
    run = compute(made, tmp_path / "new")
    record = json.loads((tmp_path / "new" / "lim-made.json").read_text())
    assert record["seeds"] == 1
    assert record["command"] == "the command"
    assert record["runs"][0]["versions"]["orbitwise"]
    assert record["data"] == checksums([Cell(made.run, {}, 1.0, ("iris",))])
    cell = record["cells"]["bb, seed 0"]
    assert cell["numbers"] == {"error": 2}
    assert cell["options"] == {"model": "bb", "seed": 0, "size": 3}
    assert cell["warnings"] == ["not converged"]
    assert record["seconds"] == sum(each["seconds"] for each in record["cells"].values())
    assert record["claims"] == [
        {
            "says": "a is below bb",
            "printed": "1 and 2",
            "measured": "1.0 and 2.0",
            "verdict": "holds",
            "because": "",
        }
    ]
    assert run.figure.read_bytes().startswith(b"\x89PNG")
    assert sorted(each.name for each in (tmp_path / "new").iterdir()) == ["lim-made.json", "lim-made.png"]


def test_only_missing_cells_are_computed_and_seeds_are_added(made, tmp_path):
    compute(made, tmp_path)
    compute(made, tmp_path)
    assert made.calls == [("a", 0, "cpu"), ("bb", 0, "cpu")]
    run = compute(made, tmp_path, seeds=2)
    assert made.calls[2:] == [("a", 1, "cpu"), ("bb", 1, "cpu")]
    assert run.claims[0].measured == "2.5 and 3.5"
    assert run.record.values["seeds"] == 2


def test_cells_with_other_options_are_computed_again(made, tmp_path):
    compute(made, tmp_path)
    made.size = 5
    assert list(Run(made.result, Setting("cpu", 1), tmp_path).missing) == ["a, seed 0", "bb, seed 0"]
    compute(made, tmp_path)
    assert len(made.calls) == 4


def test_cells_that_are_the_same_computation_are_computed_once(made, tmp_path):
    one = {"model": "a", "seed": 0, "size": 3}
    found = {"first": Cell(made.run, one, 1.0), "last": Cell(made.run, dict(one), 2.0)}
    result = replace(made.result, cells=lambda setting: found, claims=lambda cells: [])
    run = Run(result, Setting("cpu", 1), tmp_path, "cpu")
    with pytest.raises(KeyError):  # the drawing asks for another cell
        run.compute("", Console(quiet=True))
    assert made.calls == [("a", 0, "cpu")]
    assert run.record.values["cells"]["first"] == run.record.values["cells"]["last"]


def test_a_failed_cell_leaves_those_before_it(made, tmp_path):
    made.fails.add(("bb", 0))
    with pytest.raises(RuntimeError, match="the cell failed"):
        compute(made, tmp_path)
    record = json.loads((tmp_path / "lim-made.json").read_text())
    assert list(record["cells"]) == ["a, seed 0"]
    assert not (tmp_path / "lim-made.png").exists()
    made.fails.clear()
    run = compute(made, tmp_path)
    assert made.calls == [("a", 0, "cpu"), ("bb", 0, "cpu"), ("bb", 0, "cpu")]
    assert run.claims[0].verdict == "holds"


def test_no_cell_begins_after_the_deadline(made, tmp_path):
    ticks = iter([0.0, 2.0])
    run = compute(made, tmp_path, deadline=1.0, clock=lambda: next(ticks))
    assert list(run.missing) == ["bb, seed 0"]
    assert run.claims == []
    assert not run.figure.exists()


def test_a_record_of_another_scale_or_of_no_result_is_refused(made, tmp_path):
    compute(made, tmp_path)
    with pytest.raises(ValueError, match="at scale cpu, not lim-made at scale full; choose another --out"):
        Run(made.result, Setting("full", 1), tmp_path)
    (tmp_path / "lim-made.json").write_text("{")
    with pytest.raises(ValueError, match="is not a record"):
        Run(made.result, Setting("cpu", 1), tmp_path)


def test_one_process_at_a_time_writes_a_record(made, tmp_path):
    lock = Lock(tmp_path / ".lim-made.lock")
    assert lock.acquire()
    with pytest.raises(ValueError, match="is writing"):
        compute(made, tmp_path)
    lock.release()
    compute(made, tmp_path)


def test_a_bar_is_drawn_on_a_terminal_alone(made, tmp_path, capsys):
    for number, is_terminal in enumerate((False, True)):
        console = Console(force_terminal=is_terminal, width=100)
        Run(made.result, Setting("cpu", 1), tmp_path / str(number), "cpu").compute("", console)
        assert ("lim-made" in capsys.readouterr().out) == is_terminal


def test_the_checksum_changes_with_the_data(monkeypatch):
    cell = Cell(dict, {}, 1.0, ("iris", "digits"))
    before = checksums([cell, cell])
    assert list(before) == ["digits", "iris"]
    iris = datasets.load("iris")
    other = datasets.Dataset("iris", {**iris.arrays, "y": np.roll(iris.y, 1)}, "", "", "")
    load = datasets.load
    monkeypatch.setattr(datasets, "load", lambda name: other if name == "iris" else load(name))
    after = checksums([cell])
    assert after["iris"]["sha256"] != before["iris"]["sha256"]
    assert after["digits"] == before["digits"]


def test_means_and_errors_are_those_over_seeds():
    cells = {f"rotation, 300, seed {seed}": {"error": value} for seed, value in enumerate((1.0, 3.0))}
    cells["rotation, seed 0"] = {"error": 7.0}
    assert [each["error"] for each in over_seeds(cells, "rotation, 300")] == [1.0, 3.0]
    assert mean_of(cells, "rotation, 300", "error") == 2.0
    assert error_of(cells, "rotation, 300", "error") == pytest.approx(1.0)
    assert error_of(cells, "rotation", "error") == np.inf
    with pytest.raises(KeyError, match="no cell 'affine'"):
        mean_of(cells, "affine", "error")
