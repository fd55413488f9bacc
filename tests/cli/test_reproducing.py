"""`orbitwise reproduce`: what it lists, computes, tells and refuses."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from orbitwise.cli import reproducing
from orbitwise.reproduce.result import Cell, Claim, Result, Setting


def made(name: str, fails: bool = False) -> Result:
    def run(seed: int, device: str):
        if fails:
            raise ValueError("the data are not there")
        return {"value": seed, "device": device}

    def cells(setting: Setting):
        return {f"seed {seed}": Cell(run, {"seed": seed}, 1.0) for seed in setting.seeds}

    def draw(numbers, figure: Figure):
        figure.subplots()

    def claims(numbers):
        return [Claim("it is so", "2", str(len(numbers)), "differs", "there are more seeds")]

    return Result(name, f"What {name} shows", "LIM, figure 9", "2", cells, claims, draw)


@pytest.fixture
def results(monkeypatch):
    known = {name: made(name, name == "lim-bad") for name in ("lim-bad", "lim-good")}
    monkeypatch.setattr(reproducing, "all_results", lambda: known)


def test_the_true_results_are_listed(orbitwise, folder):
    ran = orbitwise("reproduce", "--list")
    assert ran.status == 0, ran.error
    assert "lim-fig2" in ran.out
    assert orbitwise("reproduce").out == ran.out


def test_one_result_is_computed_told_and_kept(orbitwise, folder, results):
    ran = orbitwise("reproduce", "lim-good", "--seeds", 2, "--device", "cpu")
    assert ran.status == 0, ran.error
    assert "differs: there are more seeds" in " ".join(ran.out.replace("│", " ").split())
    out = Path("orbitwise-reproduction/cpu")
    record = json.loads((out / "lim-good.json").read_text())
    assert record["command"] == "orbitwise reproduce lim-good --seeds 2 --device cpu"
    assert record["cells"]["seed 1"]["numbers"] == {"value": 1, "device": "cpu"}
    assert (out / "lim-good.png").is_file()
    assert "2 of" not in ran.out
    listed = orbitwise("reproduce", "lim-good", "--list", "--seeds", 3).out
    assert listed.count("computed") == 2
    assert listed.count("missing") == 1


def test_what_is_there_is_computed_again_by_force_alone(orbitwise, folder, results):
    orbitwise("reproduce", "lim-good", "--out", "o")
    file = Path("o/lim-good.json")
    record = json.loads(file.read_text())
    record["cells"]["seed 0"]["numbers"]["value"] = 7
    file.write_text(json.dumps(record))
    for options, value in ((), 7), (("--force",), 0):
        assert orbitwise("reproduce", "lim-good", "--out", "o", *options).status == 0
        assert json.loads(file.read_text())["cells"]["seed 0"]["numbers"]["value"] == value


def test_without_time_nothing_begins_and_the_rest_is_told(orbitwise, folder, results):
    ran = orbitwise("reproduce", "lim-good", "--time-limit", 0, "--seeds", 2)
    assert ran.status == 0
    assert "2 of 2 cells are missing; the same command resumes with them" in ran.out


def test_of_all_results_one_that_fails_does_not_stop_the_others(orbitwise, folder, results):
    ran = orbitwise("reproduce", "all", "--out", "o")
    assert ran.status == 1
    assert "lim-bad: the data are not there" in ran.out
    assert ran.error == "error: 1 of 2 results failed: lim-bad\n"
    assert Path("o/lim-good.png").is_file()
    alone = orbitwise("reproduce", "lim-bad", "--out", "o")
    assert (alone.status, alone.error) == (1, "error: the data are not there\n")


def test_a_wrong_name_is_told_what_there_is(orbitwise, folder, results):
    ran = orbitwise("reproduce", "lim-god")
    assert ran.status == 1
    assert ran.error.startswith("error: there is no result 'lim-god'; did you mean 'lim-good' or")
