"""Predictions as columns, batch after batch."""

from pathlib import Path

import numpy as np
import pytest

from orbitwise import (
    InvariantGPRegressor,
    InvariantKernelRidge,
    InvariantSVC,
    LaplacianSVC,
    VirtualSVC,
    save,
)
from orbitwise.cli.data import Source
from orbitwise.cli.errors import CommandError
from orbitwise.cli.models import predict, predictions
from tests.cli.conftest import symmetric

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_several_outputs_have_columns_of_their_own():
    x, y = symmetric(12)
    model = InvariantGPRegressor(max_iterations=2).fit(x, np.column_stack([y, 2 * y]))
    columns = predictions(model, x)
    assert list(columns) == ["mean_0", "mean_1", "standard_deviation_0", "standard_deviation_1"]
    np.testing.assert_allclose(columns["mean_1"], 2 * np.array(columns["mean_0"]), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", [VirtualSVC, InvariantSVC, LaplacianSVC])
def test_kernel_machines_predict_classes(orbitwise, folder, kind):
    x, y = symmetric(12)
    labels = np.where(y > np.median(y), "high", "low")
    model = kind().fit(x, labels)
    save(model, "model.orbitwise")
    np.savez("new.npz", x=x)
    ran = orbitwise("predict", "model.orbitwise", "new.npz", "-o", "p.csv")
    assert ran.status == 0, ran.error
    head, *rows = (row.split(",") for row in Path("p.csv").read_text().splitlines())
    known = [] if kind is VirtualSVC else ["probability_high", "probability_low"]
    assert head == ["row", "prediction", *known]
    assert [row[1] for row in rows] == model.predict(x).tolist()


def test_kernel_ridge_predicts_without_deviations():
    x, y = symmetric(12)
    columns = predictions(InvariantKernelRidge().fit(x, y), x)
    assert list(columns) == ["prediction"]
    columns = predictions(InvariantKernelRidge().fit(x, np.column_stack([y, 2 * y])), x)
    assert list(columns) == ["prediction_0", "prediction_1"]


def test_inputs_of_another_width_and_no_rows_are_errors(folder):
    x, y = symmetric(12)
    model = InvariantGPRegressor(max_iterations=2).fit(x, y)
    np.savez(folder / "wide.npz", x=np.zeros((3, 5)))
    with pytest.raises(CommandError, match="5 numbers, but the model takes 3"):
        predict(model, Source("wide.npz"), folder / "p.csv", 10)
    np.savez(folder / "none.npz", x=np.zeros((0, 3)))
    with pytest.raises(CommandError, match="no rows"):
        predict(model, Source("none.npz"), folder / "p.csv", 10)
    assert not (folder / "p.csv").exists()


def test_batches_do_not_change_predictions(folder):
    x, y = symmetric(12)
    model = InvariantGPRegressor(max_iterations=2).fit(x, y)
    np.savez(folder / "new.npz", x=x)
    for size in (1, 5, 100):
        assert predict(model, Source("new.npz"), folder / f"{size}.csv", size) == (12, [])
    tables = [np.loadtxt(folder / f"{size}.csv", delimiter=",", skiprows=1) for size in (1, 5, 100)]
    np.testing.assert_allclose(tables[0], tables[2], rtol=1e-9)
    np.testing.assert_allclose(tables[1], tables[2], rtol=1e-9)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_more_rows_are_held_than_a_batch_has(folder, monkeypatch, save):
    x, y = symmetric(60)
    model = InvariantGPRegressor(max_iterations=2).fit(x[:12], y[:12])
    save(folder / "new.npz", x=x, y=y)
    whole, deviation = model.predict(x, return_std=True, include_noise=True)
    seen: list[int] = []
    columns = predictions

    def counted(given, rows):
        # rows that are a view keep alive what they are a view of
        held = rows if rows.base is None else rows.base
        seen.append(max(len(rows), held.size // 3))
        return columns(given, rows)

    def all_of_it(*_: object) -> None:
        raise AssertionError("the arrays were read whole")

    monkeypatch.setattr("orbitwise.cli.models.predictions", counted)
    monkeypatch.setattr("orbitwise.cli.data.npz_arrays", all_of_it)
    assert predict(model, Source("new.npz"), folder / "p.csv", 7) == (60, [])
    assert max(seen) == 7
    table = np.loadtxt(folder / "p.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(table[:, 1:], np.column_stack([whole, deviation]), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(table[:, 0], np.arange(60) + 1)


def test_few_notes_are_kept_of_many_batches(folder):
    x, y = symmetric(24)
    model = InvariantGPRegressor(max_iterations=2).fit(x, y)
    x[::2, 1] = np.nan
    np.savez(folder / "holes.npz", x=x)
    count, notes = predict(model, Source("holes.npz", skips=True), folder / "p.csv", 2)
    assert count == 12
    assert len(notes) == 6
    assert "column '1' of row 1" in notes[0]
    assert notes[-1] == "rows were left out of 7 more batches"
    with pytest.raises(CommandError, match="--bad-rows skip"):
        predict(model, Source("holes.npz"), folder / "q.csv", 2)
    assert not (folder / "q.csv").exists()
