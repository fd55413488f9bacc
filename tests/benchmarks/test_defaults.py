"""The benchmark of defaults: sets are split without overlap, and the summary names every loss."""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from benchmarks import defaults, defaults_summary
from orbitwise.experiments.records import Record


def row(method: str, split: int, **measures: float) -> dict[str, object]:
    about = {"set": "some", "most_rows": 100, "method": method, "split": split, "rows": 100, "seconds": 1.0}
    return about | measures


def told(ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> tuple[str, str]:
    methods = {"InvariantGPClassifier": ours, "SVC": theirs, "boosting": [(0.5, 1.0)] * len(ours)}
    rows = [
        row(method, split, error=error, log_loss=loss)
        for method, values in methods.items()
        for split, (error, loss) in enumerate(values)
    ]
    return defaults_summary.defaults({"records": rows}, lambda headings, cells: "")


def test_training_rows_are_not_tested():
    x, y, x_test, y_test = defaults.load("iris", 1, 60)
    assert len(x) == len(y) == 60
    assert len(x_test) == len(y_test) == 90
    both = np.concatenate([x, x_test])
    again = defaults.datasets.load("iris").arrays["x"]
    assert np.array_equal(both[np.lexsort(both.T)], again[np.lexsort(again.T)].astype(float))


def test_an_error_within_one_standard_error_is_no_loss_but_a_log_loss_is():
    headline, text = told([(0.10, 0.30), (0.16, 0.30)], [(0.12, 0.29), (0.13, 0.30)])
    assert "loses nowhere to SVC on 0 of 1 sets" in headline
    assert "some (log loss by 0.005 ± 0.005)" in text
    assert "test error % by" not in text
    headline, text = told([(0.10, 0.30), (0.16, 0.30)], [(0.07, 0.31), (0.14, 0.31)])
    assert "some (test error % by 2.5 ± 0.5)" in text
    headline, text = told([(0.10, 0.30), (0.16, 0.30)], [(0.12, 0.31), (0.13, 0.31)])
    assert "loses nowhere to SVC on 1 of 1 sets" in headline


@pytest.mark.parametrize("method", defaults.CLASSIFIERS)
def test_a_set_is_measured(method: str):
    found = defaults.measure("iris", 0, method, 45)
    assert found["rows"] == 45
    assert found["tested"] == 105
    assert 0 <= found["error"] < 0.3
    assert found["log_loss"] > 0


def test_regression_within_one_standard_error_is_no_loss():
    def of(gaps: list[float]) -> str:
        methods = {"InvariantGPRegressor": gaps, "scikit-learn GP": [0.0, 0.0], "boosting": [1.0, 1.0]}
        rows = [
            row(method, split, rmse=1 + gap, log_density=0.5 - gap)
            for method, values in methods.items()
            for split, gap in enumerate(values)
        ]
        return defaults_summary.defaults({"records": rows}, lambda headings, cells: "")[0]

    assert "loses nowhere to scikit-learn GP on 1 of 1 sets" in of([0.01, 0.0])
    assert "loses nowhere to scikit-learn GP on 0 of 1 sets" in of([0.02, 0.01])


def test_given_rows_are_the_first_ones_and_all_others_are_tested(monkeypatch: pytest.MonkeyPatch):
    rows = np.arange(50.0).reshape(10, 5)
    arrays = {"x_train": rows[:6], "y_train": np.arange(6), "x_test": rows[6:], "y_test": np.arange(6, 10)}
    found = defaults.datasets.Dataset("some", arrays, "", "", "")
    monkeypatch.setattr(defaults.datasets, "load", lambda name: found)
    monkeypatch.setattr(defaults, "MOST_TESTED", 2)
    x, y, x_test, y_test = defaults.load("some", defaults.GIVEN, 4)
    assert np.array_equal(x, rows[:4])
    assert y.tolist() == [0, 1, 2, 3]
    assert np.array_equal(x_test, rows[6:])
    assert y_test.tolist() == [6, 7, 8, 9]


def test_commands_name_what_was_run():
    rows = [row("SVC", split) | {"set": "iris"} for split in (0, 1)]
    rows.append(
        row("InvariantGPClassifier(affine)", 0) | {"set": "usps", "split": "given", "most_rows": 7291}
    )
    assert defaults.commands(rows).split("\n    ") == [
        "python benchmarks/defaults.py --rows 100 --splits 2 --sets iris",
        "python benchmarks/defaults.py --rows 7291 --as-given --sets usps --methods "
        "'InvariantGPClassifier(affine)'",
    ]


def asked(*sets: str, **options: object) -> argparse.Namespace:
    given = {"sets": sets, "methods": None, "rows": 60, "splits": 2, "as_given": False}
    return argparse.Namespace(**(given | options))


def test_what_is_known_is_not_fitted_again_and_what_takes_longest_comes_first():
    found = defaults.cells(asked("iris", "digits", rows=1000), {("iris", 1000, 1, "SVC")})
    assert ("iris", 1, "SVC") not in found
    assert len(found) == 2 * 2 * 3 - 1
    seconds = [defaults.expected_seconds(name, method, 1000) for name, _, method in found]
    assert seconds == sorted(seconds, reverse=True)
    assert found[0][0] == "digits"
    assert found[-1][0] == "iris"


def test_a_run_writes_every_fit_and_resumes_until_its_time_is_over(tmp_path: Path):
    missing = [("iris", 0, "boosting"), ("absent", 0, "boosting"), ("iris", 1, "boosting")]
    record = Record(tmp_path / "record.json", {"records": []})
    with ThreadPoolExecutor(1) as pool:
        assert defaults.fill(record, pool, missing, 60, 1, 0.0) == (0, 3)
        assert not (tmp_path / "record.json").exists()
        assert defaults.fill(record, pool, missing[:2], 60, 1, None) == (1, 0)
        again = Record(tmp_path / "record.json", {})
        known = {defaults.key_of(row) for row in again.values["records"]}
        assert known == {("iris", 60, 0, "boosting")}
        rest = defaults.cells(asked("iris", methods=["boosting"]), known)
        assert defaults.fill(again, pool, rest, 60, 1, None) == (0, 0)
    written = json.loads((tmp_path / "record.json").read_text())
    assert [row["split"] for row in written["records"]] == [0, 1]
    assert written["command"] == "python benchmarks/defaults.py --rows 60 --splits 2 --sets iris"


def test_merged_records_replace_what_was_measured_before(tmp_path: Path):
    def part(name: str, *rows: dict[str, object]) -> Path:
        (tmp_path / name).write_text(json.dumps({"versions": name, "records": rows}))
        return tmp_path / name

    old = [row(method, 0, error=0.5) | {"set": "iris"} for method in ("boosting", "SVC")]
    first = part("first", row("SVC", 0, error=0.1) | {"set": "iris"})
    second = part("second", row("SVC", 1, error=0.2) | {"set": "iris"})
    record = Record(tmp_path / "all.json", {"records": old})
    defaults.merge(record, [first, second])
    written = json.loads((tmp_path / "all.json").read_text())
    found = [(each["split"], each["method"], each["error"]) for each in written["records"]]
    assert found == [(0, "SVC", 0.1), (0, "boosting", 0.5), (1, "SVC", 0.2)]
    assert written["versions"] == "second"


@pytest.mark.requires_data("uci_reg_wine_red")
def test_equal_rows_with_equal_targets_do_not_rule_out_noise():
    """A maximum of the evidence without noise predicts these rows with an error of 1.11 deviations."""
    assert defaults.measure("uci_reg_wine_red", 2, "InvariantGPRegressor", 1000)["rmse"] < 0.95


@pytest.mark.requires_data("uci_reg_boston")
def test_lengthscales_do_not_fit_chance():
    """The maximum of the evidence alone predicts these rows with an error of 0.30 deviations."""
    assert defaults.measure("uci_reg_boston", 6, "InvariantGPRegressor", 400)["rmse"] < 0.25
