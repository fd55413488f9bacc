"""The example of energies and forces, at a small size: what its model promises, its predictions keep."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from orbitwise.datasets import load

pytestmark = [
    pytest.mark.requires_data("rmd17_ethanol"),
    # Short runs are enough for what is tested here.
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]
FILE = Path(__file__).resolve().parents[2] / "examples" / "molecule_forces.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    specification = importlib.util.spec_from_file_location("example_molecule_forces", FILE)
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def outcomes(example, tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("molecule_forces")
    arguments = ["--num-train", "16", "--num-learn", "8", "--iterations", "4", "--num-test", "40"]
    outcomes = example.main([*arguments, "--out", str(out)])
    assert (out / "parity.png").stat().st_size > 10_000
    return outcomes


def test_group_is_the_turn_of_the_methyl_group_and_the_mirror(example):
    data = load("rmd17_ethanol")
    orbit = example.exchanges(data.z, data.x_train[0])
    moves = {tuple(row) for row in (orbit.transform.index[:, ::3] // 3).tolist()}
    fixed = (0, 1, 2)
    assert moves == {
        (*fixed, *methylene, *methyl, 8)
        for methylene, methyls in (
            ((3, 4), [(5, 6, 7), (6, 7, 5), (7, 5, 6)]),
            ((4, 3), [(5, 7, 6), (7, 6, 5), (6, 5, 7)]),
        )
        for methyl in methyls
    }
    # All exchanged atoms are of one element, and pairs of one kind have like atoms.
    kinds = example.kinds_of_pairs(orbit, len(data.z))
    pairs = np.stack(np.triu_indices(len(data.z), 1))
    elements = np.sort(data.z[pairs], axis=0)
    assert int(kinds.max()) + 1 == 17
    for kind in range(17):
        assert len(np.unique(elements[:, kinds.numpy() == kind], axis=1).T) == 1


def test_forces_teach_and_exchanges_teach_more(outcomes):
    alone, plain, both = outcomes.values()
    assert both.force_error < 0.4 * alone.force_error
    assert both.energy_error < 0.4 * alone.energy_error
    assert both.force_error < 0.8 * plain.force_error


def test_prediction_does_not_care_which_hydrogen_is_which(example, outcomes):
    data = load("rmd17_ethanol")
    model = outcomes["energies and forces"].model
    x = data.x_test[:5]
    moves = (example.exchanges(data.z, data.x_train[0]).transform.index[:, ::3] // 3).numpy()
    energies = np.stack([model.predict(x[:, move].reshape(5, -1)) for move in moves])
    assert np.ptp(energies, axis=0).max() < 1e-6 * np.ptp(data.y_train)


def test_predicted_forces_are_minus_the_slopes_of_predicted_energies(outcomes):
    data = load("rmd17_ethanol")
    outcome = outcomes["energies and forces"]
    x, step = data.x_test[:3].reshape(3, -1), 1e-3
    moves = step * np.eye(x.shape[1])
    up, down = (
        outcome.model.predict((x[:, None] + sign * moves).reshape(-1, x.shape[1])) for sign in (1, -1)
    )
    slopes = (up - down).reshape(3, -1) / (2 * step)
    np.testing.assert_allclose(outcome.forces[:3].reshape(3, -1), -slopes, atol=1e-2)
