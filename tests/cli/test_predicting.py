"""Predictions as columns, batch after batch."""

import numpy as np
import pytest

from orbitwise import InvariantGPRegressor
from orbitwise.cli.data import Source
from orbitwise.cli.errors import CommandError
from orbitwise.cli.predicting import predict, predictions
from tests.cli.conftest import symmetric


def test_several_outputs_have_columns_of_their_own():
    x, y = symmetric(12)
    model = InvariantGPRegressor(max_iterations=2).fit(x, np.column_stack([y, 2 * y]))
    columns = predictions(model, x)
    assert list(columns) == ["mean_0", "mean_1", "standard_deviation_0", "standard_deviation_1"]
    np.testing.assert_allclose(columns["mean_1"], 2 * np.array(columns["mean_0"]), rtol=1e-6, atol=1e-9)


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
