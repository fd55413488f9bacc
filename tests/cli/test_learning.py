"""Candidates are fitted, kept and not fitted again; the best is saved with error bars."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, load
from orbitwise.cli.app import check_device
from orbitwise.cli.data import Data
from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import Folder
from orbitwise.cli.learning import Learner, Plan, Run
from orbitwise.cli.watching import Watch
from tests.cli.conftest import bars, symmetric

OPTIONS = {"max_iterations": 4, "num_nodes": 4}


def images(count: int = 12) -> Data:
    x, y = bars(count)
    return Data(x.reshape(count, -1), y, [str(i) for i in range(count)], None, (6, 6), True)


def learned(folder: Folder, data: Data, names, console=None):
    plan = Plan("classification", names, options=OPTIONS)
    folder.prepare(plan.settings(data), resume=True, force=False)
    return Learner(data, plan, folder, Watch(console or Console(quiet=True))).learn()


def test_candidates_of_a_run_that_was_cut_short_are_not_fitted_again(tmp_path, monkeypatch):
    whole = Folder(tmp_path / "whole")
    outcome = learned(whole, images(), ["none", "rotation"])
    cut = Folder(tmp_path / "cut")
    fits: list[str] = []
    fit = InvariantGPClassifier.fit

    def counted(self, X, y):
        fits.append(str(self.invariance))
        if len(fits) == 2:
            raise RuntimeError("killed")
        return fit(self, X, y)

    monkeypatch.setattr(InvariantGPClassifier, "fit", counted)
    with pytest.raises(RuntimeError):
        learned(cut, images(), ["none", "rotation"])
    again = learned(cut, images(), ["none", "rotation"])
    assert fits == ["None", "rotation", "rotation"]
    assert again.comparison.best.log_evidence == outcome.comparison.best.log_evidence
    assert cut.model.read_bytes() == whole.model.read_bytes()
    assert load(cut.model).orbit_errors_.keys() == {"angle"} or again.comparison.best.name == "none"


def test_the_best_of_an_earlier_run_is_replayed_for_its_error_bars(tmp_path):
    folder = Folder(tmp_path / "a")
    learned(folder, images(), ["rotation"])
    before = folder.model.read_bytes()
    folder.model.unlink()
    learned(folder, images(), ["rotation"])
    assert folder.model.read_bytes() == before
    assert set(load(folder.model).orbit_errors_) == {"angle"}


def test_time_that_is_over_does_not_cut_a_candidate_that_was_finished(tmp_path):
    data, names = images(), ["rotation", "translation"]
    plan, folder = Plan("classification", names, options=OPTIONS), Folder(tmp_path / "a")
    folder.prepare(plan.settings(data), resume=True, force=False)
    one = Plan("classification", ["rotation"], options=OPTIONS)
    first = Learner(data, one, folder, Watch(Console(quiet=True))).learn()
    outcome = Learner(data, plan, folder, Watch(Console(quiet=True), time_limit=0.0)).learn()
    assert dict(outcome.stopped) == {"translation": "not started"}
    assert outcome.comparison.best.log_evidence == first.comparison.best.log_evidence


def test_seconds_add_up_over_the_processes_of_a_candidate(tmp_path):
    data, folder = images(), Folder(tmp_path / "a")
    plan = Plan("classification", ["rotation"], options=OPTIONS)
    folder.prepare(plan.settings(data), resume=True, force=False)
    first = Learner(data, plan, folder, Watch(Console(quiet=True), time_limit=0.0)).learn().comparison.best
    kept = folder.progress(0, "rotation") / "seconds.txt"
    assert sum(map(float, kept.read_text().split())) == pytest.approx(first.seconds, abs=0.1)
    with kept.open("a") as file:
        file.write("1000.0\n")  # of a process that was killed
    second = Learner(data, plan, folder, Watch(Console(quiet=True))).learn().comparison.best
    assert second.seconds > first.seconds + 1000
    about = folder.read(folder.candidate(0, "rotation").with_suffix(".json"))
    assert about is not None
    assert about["seconds"] == second.seconds


def test_names_of_columns_are_kept(tmp_path):
    x, y = symmetric(10)
    data = Data(x, y, ["-"] * 10, ("a", "b", "c"))
    plan, folder = Plan("regression", ["none"], options={"max_iterations": 2}), Folder(tmp_path / "a")
    Run(data, data, plan, folder, Console(quiet=True), {}).learn(with_report=False)
    assert list(load(folder.model).feature_names_in_) == ["a", "b", "c"]
    kept = np.load(folder.examples)
    np.testing.assert_array_equal(kept["x_test"], x)
    np.testing.assert_array_equal(kept["y_train"], y)


def test_the_task_decides_the_estimator_and_other_data_other_settings():
    plan = Plan("regression", ["none"], seed=3)
    estimator = plan.estimator(images(), None)
    assert isinstance(estimator, InvariantGPRegressor)
    assert estimator.random_state == 3
    assert tuple(estimator.image_shape) == (6, 6)
    assert plan.settings(images())["digest"] != plan.settings(images(14))["digest"]


def test_a_device_that_is_not_here_is_named():
    check_device("cpu")
    with pytest.raises(CommandError, match="--device nowhere is not available"):
        check_device("nowhere")


@pytest.mark.parametrize("copied", ["both", "model"])
def test_a_candidate_of_another_run_is_learned_anew_and_not_lost(tmp_path, copied):
    console = Console(file=io.StringIO(), width=400)
    own, foreign = Folder(tmp_path / "own"), Folder(tmp_path / "foreign")
    learned(own, images(), ["none"])
    learned(foreign, images(16), ["none"])
    right, wrong = own.candidate(0, "none"), foreign.candidate(0, "none")
    expected, other = own.model.read_bytes(), wrong.read_bytes()
    own.model.unlink()
    right.write_bytes(other)
    if copied == "both":
        right.with_suffix(".json").write_bytes(wrong.with_suffix(".json").read_bytes())
    learned(own, images(), ["none"], console)
    assert own.model.read_bytes() == expected
    assert right.with_suffix(".foreign").read_bytes() == other
    why = "other data or with other settings" if copied == "both" else "changed after it was learned"
    assert why in console.file.getvalue()  # pyright: ignore
    again = console.file.getvalue()  # pyright: ignore
    learned(own, images(), ["none"], console)
    assert console.file.getvalue() == again  # pyright: ignore


@pytest.mark.parametrize("text", ["{", "[1]", "{}", '{"seconds": "x"}', '{"digest": 1, "seconds": 1e400}'])
def test_a_damaged_note_on_a_candidate_costs_only_a_fit(tmp_path, text):
    folder = Folder(tmp_path / "a")
    learned(folder, images(), ["none"])
    expected = folder.model.read_bytes()
    folder.candidate(0, "none").with_suffix(".json").write_text(text)
    folder.model.unlink()
    learned(folder, images(), ["none"])
    assert folder.model.read_bytes() == expected


def test_data_that_are_read_in_another_way_are_other_data():
    data, plan = images(), Plan("classification", ["none"])
    others = [
        replace(data, shape=(4, 9)),
        replace(data, shape=None, is_image=False),
        replace(data, columns=tuple(f"c{i}" for i in range(36))),
        replace(data, y=data.targets.astype(str)),
        replace(data, X=data.X.reshape(24, 18)),
    ]
    assert len({plan.settings(each)["digest"] for each in (data, *others)}) == 6


def test_limits_of_a_search_reach_the_estimator(orbitwise, pictures):
    limits = ("--max-nodes", 4, "--max-seconds", 60, "--max-iterations", 2)
    ran = orbitwise("learn", pictures, "--invariance", "rotation", "--out", "r", "--no-report", *limits)
    assert ran.status == 0, ran.error
    model = load(pictures.parent / "r" / "model.orbitwise")
    assert (model.max_nodes, model.max_seconds, model.max_iterations) == (4, 60.0, 2)
    assert model.search_[-1]["num_nodes"] <= 4
    assert "learning" not in ran.out
