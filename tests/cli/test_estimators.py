"""`orbitwise learn --estimator`: every estimator is learned, shown and predicts, with its own settings."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from rich.console import Console

import orbitwise as library
from orbitwise.cli.data import Data
from orbitwise.cli.errors import CommandError
from orbitwise.cli.estimators import CLASSES, class_of, pairs_of, read_setting, settings_of
from orbitwise.cli.folders import Folder
from orbitwise.cli.learning import Plan
from orbitwise.cli.single import SingleRun
from tests.cli.conftest import Ran, bars, symmetric, write_csv

Command = Callable[..., Ran]


@pytest.fixture
def labels(folder: Path) -> Path:
    x, y = symmetric(30)
    return write_csv(folder / "labels.csv", "a,b,c,kind", np.column_stack([x.round(6), y > 0]).tolist())


@pytest.fixture
def pictures(folder: Path) -> Path:
    x, y = bars(24)
    np.savez(folder / "bars.npz", x=x, y=y)
    return folder / "bars.npz"


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        ("svc", ("--invariance", "permutation", "--setting", "strength=0.1", "--setting", "C=10")),
        (
            "svc",
            (
                "--setting",
                "invariance_loss=absolute",
            ),
        ),
        ("laplacian", ("--setting", "num_neighbours=3")),
        ("virtual", ("--invariance", "sign")),
    ],
)
def test_machines_of_labels(orbitwise: Command, labels: Path, estimator: str, options: tuple[str, ...]):
    made = ("learn", "labels.csv", "--target", "kind", "--test", "labels.csv", "--estimator", estimator)
    ran = orbitwise(*made, "--out", "run", "--task", "classification", *options)
    assert ran.status == 0, ran.error
    name = CLASSES[estimator]["classification"]  # pyright: ignore[reportArgumentType]
    assert f"{name} learned from 30 rows" in ran.out
    assert "test error" in ran.out
    assert "no report" in ran.out
    assert type(library.load("run/model.orbitwise")).__name__ == name
    shown = orbitwise("show", "run")
    assert (shown.status, name in shown.out, "nan" in shown.out) == (0, True, False)
    assert "30 of labels.csv" in shown.out
    assert orbitwise("predict", "run", "labels.csv", "-o", "out.csv").status == 0
    assert len(Path("out.csv").read_text().splitlines()) == 31
    ran = orbitwise("report", "run")
    assert ran.status == 1
    assert f"this model is of class {name}" in ran.error
    ran = orbitwise("export", "run", "--to", "json", "-o", "moves.json")
    assert (ran.status, "does not learn its invariance" in ran.error) == (1, True)


def test_a_single_run_is_the_fit_of_its_estimator(folder: Path):
    x, y = symmetric(30)
    data = Data(x, (y > 0).astype(int), [f"row {i}" for i in range(30)])
    plan = Plan("classification", ["sign"], 3, options={"C": "10"}, choice="svc")
    model = SingleRun(data, None, plan, Folder(folder / "run"), Console(quiet=True), {}).learn()
    expected = library.InvariantSVC(invariance="sign", C=10.0, random_state=3).fit(x, (y > 0).astype(int))
    np.testing.assert_array_equal(model.decision_function(x), expected.decision_function(x))
    with pytest.raises(CommandError, match="takes one --invariance, not sign, none"):
        SingleRun(
            data, None, replace(plan, names=["sign", "none"]), Folder(folder / "b"), Console(quiet=True), {}
        )


def test_regression_by_ridge_and_by_the_search(orbitwise: Command, table: Path):
    made = ("learn", "table.csv", "--target", "strength", "--test", "table.csv")
    ran = orbitwise(*made, "--out", "ridge", "--estimator", "ridge", "--invariance", "gradient")
    assert (ran.status, "test RMSE" in ran.out) == (0, True), ran.error
    options = (
        "--setting",
        "max_depth=0",
        "--setting",
        "base_kernels=linear,rbf",
        "--setting",
        "num_restarts=0",
    )
    ran = orbitwise(*made, "--out", "auto", "--estimator", "auto", "--setting", "invariances=none", *options)
    assert (ran.status, "log density" in ran.out) == (0, True), ran.error
    model = library.load("auto/model.orbitwise")
    assert (model.max_depth, model.invariances, list(model.base_kernels)) == (0, None, ["linear", "rbf"])
    assert orbitwise("predict", "auto", "table.csv", "-o", "rows.csv").status == 0
    assert "standard_deviation" in Path("rows.csv").read_text()
    assert "log evidence" in orbitwise("show", "auto").out


def test_sparse_regression_is_compared_and_reported(orbitwise: Command, table: Path):
    made = ("learn", "table.csv", "--target", "strength", "--out", "run", "--estimator", "sparse")
    options = (
        "--num-inducing",
        "10",
        "--noise",
        "0.01",
        "--setting",
        "selection=random",
        "--max-seconds",
        "60",
    )
    ran = orbitwise(*made, "--invariance", "none", "--invariance", "permutation", *options)
    assert ran.status == 0, ran.error
    assert "permutation" in ran.out
    model = library.load("run/model.orbitwise")
    assert type(model).__name__ == "SparseGPRegressor"
    assert (model.num_inducing, model.noise, model.selection, model.max_seconds) == (10, 0.01, "random", 60)
    assert orbitwise("report", "run", "--force").status == 0
    assert orbitwise("predict", "run", "table.csv", "-o", "rows.csv").status == 0
    assert library.load("run/candidates/0-none.orbitwise").noise_ == pytest.approx(0.01)


def test_settings_of_the_usual_estimator(orbitwise: Command, pictures: Path):
    made = ("learn", "bars.npz", "--target", "y", "--out", "run", "--invariance", "none", "--no-report")
    ran = orbitwise(*made, "--noise", "leave_one_out", "--likelihood", "one_hot", "--max-iterations", "3")
    assert ran.status == 0, ran.error
    model = library.load("run/model.orbitwise")
    assert (model.noise, model.likelihood, model.device, model.device_) == (
        *("leave_one_out", "one_hot", "auto"),
        "cpu",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--estimator", "sparse"),
            "sparse is for regression, but the task is classification: take one of gp, svc",
        ),
        (("--estimator", "svc", "--num-inducing", "5"), "InvariantSVC has no setting 'num_inducing'"),
        (("--estimator", "svc", "--invariance", "sign", "--invariance", "none"), "takes one --invariance"),
        (("--estimator", "laplacian", "--invariance", "sign"), "takes no --invariance"),
        (("--estimator", "svc", "--resume"), "keeps no progress"),
        (("--estimator", "svc", "--time-limit", "3"), "--time-limit is for"),
        (("--estimator", "svc", "--setting", "strength"), "give NAME=VALUE"),
        (("--setting", "nose=1"), "did you mean 'noise'"),
        (("--noise", "0.1"), "noise cannot be '0.1' here; it takes auto, evidence, leave_one_out"),
        (("--num-inducing", "0"), "num_inducing must be"),
    ],
)
def test_what_an_estimator_does_not_take_is_refused(
    orbitwise: Command, labels: Path, options: tuple[str, ...], message: str
):
    made = ("learn", "labels.csv", "--target", "kind", "--out", "run", "--task", "classification")
    ran = orbitwise(*made, *options)
    assert ran.status == 1
    assert message in ran.error
    assert not Path("run/model.orbitwise").exists()


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int | Literal["auto"], "auto", "auto"),
        (int | Literal["auto"], "12", 12),
        (float | None, "none", None),
        (float | None, "1e-3", 1e-3),
        (bool, "True", True),
        (float | str, "0.5", 0.5),
        (float | str, "evidence", "evidence"),
        (Sequence[float] | None, "0.1,1", [0.1, 1]),
        (str | Sequence[str] | None, "mirror,odd", ["mirror", "odd"]),
    ],
)
def test_texts_are_read_by_annotations(hint: Any, text: str, value: object):
    assert read_setting("setting", hint, text) == value


@pytest.mark.parametrize(("hint", "text"), [(int, "1.5"), (bool, "1"), (Literal["a", "b"], "c"), (dict, "x")])
def test_texts_that_are_none_of_it_are_refused(hint: Any, text: str):
    with pytest.raises(CommandError, match=f"setting cannot be {text!r} here; it takes"):
        read_setting("setting", hint, text)


def test_every_setting_of_every_estimator_can_be_named():
    for tasks in CLASSES.values():
        for task, name in tasks.items():
            assert getattr(library, name).__name__ == name
            assert task in ("classification", "regression")
    kind = class_of("gp", "regression")
    assert settings_of(kind, {"num_nodes": 4, "mean": "linear", **pairs_of(["max-nodes = 8"])}) == {
        "num_nodes": 4,
        "mean": "linear",
        "max_nodes": 8,
    }
