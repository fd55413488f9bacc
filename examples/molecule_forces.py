"""
Energies and forces of ethanol
==============================

Energies and forces of a molecule: slopes as observations, and no care which hydrogen is which.

Exchanging like atoms leaves a molecule's energy as it is, and its forces are minus the slopes of that energy.
`MoleculeGP` has both facts in its prior: the energy is the average over exchanges of g(φ(x)), with φ the
inverse distances of atoms and g a Gaussian process, and forces are observed slopes of the same function.
Ethanol, revised MD17.

One geometry comes with one energy and 27 forces. An ordinary Gaussian process learns from the energy
alone; with forces, 200 geometries are 5,600 observations.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning

from orbitwise import MoleculeGP
from orbitwise.datasets import Dataset, load

Array = NDArray[np.float64]

# %%
# Which atoms change places
# -------------------------
#
# Six hydrogens and two carbons could be exchanged in 1,440 ways, but most of them break bonds: no
# trajectory gets there. Two moves do happen. The methyl group turns, which sends its three hydrogens around;
# and since distances cannot tell a molecule from its mirror image, a reflection exchanges two hydrogens of
# the methyl group together with the two of the methylene group. They generate a group of six exchanges,
# which the model finds by itself.
#
# Fitting
# -------
#
# There is nothing to set. The evidence of some geometries says how much the energy depends on the distances
# of each kind of pair, how smooth it is and how noisy; then all geometries enter. What the three settings
# leave out shows what forces and exchanges are worth.


@dataclass
class Setting:
    """What a model is given."""

    name: str
    forces: bool = True
    symmetric: bool = True


@dataclass
class Outcome:
    """Mean absolute errors in kcal/mol and kcal/mol/Å, seconds, and what was predicted."""

    energy_error: float
    force_error: float
    fit_seconds: float
    energies: Array
    forces: Array
    model: MoleculeGP


SETTINGS = [
    Setting("energies alone", forces=False),
    Setting("energies and forces, no exchanges", symmetric=False),
    Setting("energies and forces"),
]


def run(
    data: Dataset, setting: Setting, num_train: int, iterations: int | None, tests: slice = slice(None)
) -> Outcome:
    """Learn from the first geometries, and predict the test geometries."""
    train = slice(num_train)
    model = MoleculeGP(data.z, "auto" if setting.symmetric else None, max_iterations=iterations)
    start = time.perf_counter()
    with warnings.catch_warnings():
        # few iterations are enough for a look
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(data.x_train[train], data.y_train[train], data.f_train[train] if setting.forces else None)
    seconds = time.perf_counter() - start
    energies, forces = model.predict(data.x_test[tests]), model.predict_forces(data.x_test[tests])
    return Outcome(
        float(np.abs(energies - data.y_test[tests]).mean()),
        float(np.abs(forces - data.f_test[tests]).mean()),
        seconds,
        energies,
        forces,
        model,
    )


# %%
# What it gives
# -------------
#
# Forces divide both errors by about ten; without exchanges both are about three times as large.


def draw(data: Dataset, outcomes: dict[str, Outcome], file: Path, tests: slice) -> None:
    """Predicted against computed, of energies and of forces."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
    middle = data.y_train.mean()
    shown = [outcomes["energies alone"], outcomes["energies and forces"]]
    truths = [data.y_test[tests] - middle, data.f_test[tests].ravel()]
    titles = ["energy (kcal/mol)", "force (kcal/mol/Å)"]
    for panel, truth, title in zip(panels, truths, titles, strict=True):
        for outcome, colour, label in zip(
            shown, ("C1", "C0"), ("energies alone", "energies and forces"), strict=True
        ):
            of_energy = title.startswith("energy")
            predicted = outcome.energies - middle if of_energy else outcome.forces.ravel()
            error = outcome.energy_error if of_energy else outcome.force_error
            panel.plot(truth, predicted, ".", color=colour, markersize=2, label=f"{label}: error {error:.2f}")
        panel.axline((0, 0), slope=1, color="0.5", linewidth=0.8, zorder=0)
        panel.set(xlabel=f"computed {title}", ylabel=f"predicted {title}")
        panel.legend(markerscale=5, frameon=False)
    figure.savefig(file, dpi=120)


def main(arguments: list[str] | None = None) -> dict[str, Outcome]:
    """Print the table and write the picture."""
    parser = argparse.ArgumentParser(
        description="Energies and forces of a molecule, with like atoms exchanged."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/molecule_forces"), help="folder for the picture"
    )
    parser.add_argument("--num-train", type=int, default=200, help="geometries to train on")
    parser.add_argument("--iterations", type=int, help="steps of learning at most")
    parser.add_argument("--num-test", type=int, default=1000, help="geometries to predict")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)

    data = load("rmd17_ethanol")
    tests = slice(options.num_test)
    count = len(data.y_test[tests])
    table = Table(title=f"Ethanol, {options.num_train} geometries: mean absolute errors of {count} others")
    table.caption = "energies in kcal/mol, forces in kcal/mol/Å, times in seconds"
    for column in ("trained on", "energy", "force", "exchanges", "training"):
        table.add_column(column, justify="left" if column == "trained on" else "right")
    outcomes = {}
    for setting in SETTINGS:
        outcomes[setting.name] = outcome = run(data, setting, options.num_train, options.iterations, tests)
        errors = (f"{outcome.energy_error:.3f}", f"{outcome.force_error:.3f}")
        found = str(len(outcome.model.exchanges_))
        table.add_row(setting.name, *errors, found, f"{outcome.fit_seconds:.1f}")
    Console().print(table)
    draw(data, outcomes, options.out / "parity.png", tests)
    print(f"wrote {options.out / 'parity.png'}")
    alone, without_exchanges, both = outcomes.values()
    assert both.force_error < 0.8 * without_exchanges.force_error < 0.8 * alone.force_error
    return outcomes


if __name__ == "__main__":
    main()
