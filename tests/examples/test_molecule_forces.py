"""The example of energies and forces, at a small size."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.requires_data("rmd17_ethanol")
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
    outcomes = example.main(["--num-train", "16", "--iterations", "6", "--num-test", "40", "--out", str(out)])
    assert (out / "parity.png").stat().st_size > 10_000
    return outcomes


def test_group_is_the_turn_of_the_methyl_group_and_the_mirror(outcomes):
    moves = {tuple(row) for row in outcomes["energies and forces"].model.exchanges_.tolist()}
    fixed = (0, 1, 2)
    assert moves == {
        (*fixed, *methylene, *methyl, 8)
        for methylene, methyls in (
            ((3, 4), [(5, 6, 7), (6, 7, 5), (7, 5, 6)]),
            ((4, 3), [(5, 7, 6), (7, 6, 5), (6, 5, 7)]),
        )
        for methyl in methyls
    }
    assert len(outcomes["energies and forces, no exchanges"].model.exchanges_) == 1


def test_forces_teach_and_exchanges_teach_more(outcomes):
    alone, plain, both = outcomes.values()
    assert both.force_error < 0.4 * alone.force_error
    assert both.energy_error < 0.4 * alone.energy_error
    assert both.force_error < 0.8 * plain.force_error
