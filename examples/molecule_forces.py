"""
Energies and forces of ethanol
==============================

Energies and forces of a molecule: slopes as observations, and no care which hydrogen is which.

Exchanging like atoms leaves a molecule's energy as it is, and its forces are minus the slopes of that energy.
Both facts go into the prior: f(x) is the average over exchanges of g(φ(x)), with φ the inverse distances of
atoms and g a Gaussian process; observed forces are rows of -Gradient() of the same f. Ethanol, revised MD17.

One geometry comes with one energy and 27 forces. An ordinary Gaussian process learns from the energy
alone. Here the forces are observations of another functional of the same function, so 200 geometries are
5,600 observations.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from orbitwise import InvariantGPRegressor
from orbitwise.datasets import Dataset, load
from orbitwise.functionals import FeatureMap, Gradient, OrbitAverage
from orbitwise.kernels.bases import log_positive
from orbitwise.orbits import FiniteOrbit, closure
from orbitwise.transforms import SignedPermutations

CARBON, HYDROGEN = 6, 1
LONGEST_BOND = 1.3  # Å, between carbon and hydrogen
# Computed data have no noise; these variances only keep matrices well conditioned.
NOISE = {"energy": 1e-4, "force": 1e-6}
Array = NDArray[np.float64]

# %%
# Which atoms change places
# -------------------------
#
# Six hydrogens and two carbons could be exchanged in 1,440 ways, but most of them break bonds: no
# trajectory gets there, and averaging over them teaches nothing. Two moves do happen. The methyl group
# turns, which sends its three hydrogens around; and since distances cannot tell a molecule from its mirror
# image, a reflection exchanges two hydrogens of the methyl group together with the two of the methylene
# group. They generate a group of six elements.


def exchanges(z: NDArray[np.uint8], x: Array) -> FiniteOrbit:
    """The group that the turn of the methyl group and the mirror generate, read off a geometry's bonds."""
    distance = np.linalg.norm(x[:, None] - x[None, :], axis=-1)
    hydrogens = [
        np.flatnonzero((z == HYDROGEN) & (distance[c] < LONGEST_BOND)) for c in np.flatnonzero(z == CARBON)
    ]
    methylene, methyl = sorted(hydrogens, key=len)
    turn, mirror = np.arange(len(z)), np.arange(len(z))
    turn[methyl] = np.roll(methyl, 1)
    mirror[methyl[:2]], mirror[methylene] = methyl[1::-1], methylene[::-1]
    return closure(
        *(SignedPermutations(of_coordinates([np.arange(len(z)), move])) for move in (turn, mirror))
    )


def of_coordinates(order_of_atoms: list[NDArray[np.int64]]) -> Tensor:
    """Permutations of atoms as permutations of their coordinates x₁ y₁ z₁ x₂ …"""
    return (torch.from_numpy(np.stack(order_of_atoms))[..., None] * 3 + torch.arange(3)).flatten(1)


# %%
# Features
# --------
#
# Inverse distances are the same for a molecule that is moved or turned. Each kind of pair (all pairs that
# exchanges map on each other) has a lengthscale of its own, so exchanging atoms still preserves the
# distance between features: the kernel is invariant to the group, and averaging one side of the covariance
# suffices (`one_sided=True`; the library cannot prove it for a feature map, so it checks it once). The
# evidence learns the lengthscales.


class InverseDistances(nn.Module):
    """φ(x): 1/|x_a - x_b| over the lengthscale of its kind, for all pairs of atoms a < b."""

    def __init__(self, kinds: Tensor, start: float = 3.0) -> None:
        super().__init__()
        self.register_buffer("kinds", kinds)
        num_atoms = round((2 * len(kinds)) ** 0.5 + 0.5)
        self.register_buffer("pairs", torch.triu_indices(num_atoms, num_atoms, 1))
        self.log_lengthscale = nn.Parameter(torch.full((int(kinds.max()) + 1,), float(np.log(start))))

    def forward(self, x: Tensor) -> Tensor:
        atoms = x.reshape(len(x), -1, 3)
        first, second = (atoms.index_select(1, place) for place in self.pairs)
        return (first - second).square().sum(-1).rsqrt() / self.log_lengthscale.exp()[self.kinds]


def kinds_of_pairs(orbit: FiniteOrbit, num_atoms: int) -> Tensor:
    """A number for every pair of atoms, the same for pairs that exchanges map on each other."""
    moves = orbit.transform.index[:, ::3] // 3
    first, second = torch.triu_indices(num_atoms, num_atoms, 1)
    images = torch.stack([moves[:, first], moves[:, second]])
    keys = images.amin(0) * num_atoms + images.amax(0)
    return keys.amin(0).unique(return_inverse=True)[1]


# %%
# Fitting
# -------
#
# Hyperparameters are learned by the evidence of a few geometries, without a validation set; then all
# geometries are conditioned on with those held fixed.


@dataclass
class Setting:
    """What a model is given: forces, exchanges, and one lengthscale or one for each kind of pair."""

    name: str
    forces: bool = True
    symmetric: bool = True
    separate: bool = True


@dataclass
class Outcome:
    """Mean absolute errors in kcal/mol and kcal/mol/Å, seconds, and what was predicted."""

    energy_error: float
    force_error: float
    learn_seconds: float
    fit_seconds: float
    predict_seconds: float
    energies: Array
    forces: Array
    model: InvariantGPRegressor


SETTINGS = [
    Setting("energies alone", forces=False),
    Setting("energies and forces, no exchanges", symmetric=False),
    Setting("energies and forces"),
]


def run(
    data: Dataset,
    setting: Setting,
    num_train: int,
    num_learn: int,
    iterations: int,
    tests: slice = slice(None),
) -> Outcome:
    """Learn hyperparameters on the first geometries, condition on all, and predict the test geometries."""
    orbit = exchanges(data.z, data.x_train[0])
    kinds = kinds_of_pairs(orbit, len(data.z))
    features = FeatureMap(InverseDistances(kinds if setting.separate else torch.zeros_like(kinds)))
    function = OrbitAverage(orbit) @ features if setting.symmetric else features
    kernel = ScaleKernel(MaternKernel(nu=2.5), outputscale_constraint=log_positive())
    kernel.outputscale = 1e5  # at these lengthscales the data see a small, smooth part of a large function
    kernel.base_kernel.lengthscale = 1.0
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)  # the features have lengthscales

    x, y, slopes = data.x_train.reshape(len(data.x_train), -1), data.y_train, -data.f_train
    one_sided = True if setting.symmetric else "auto"

    def fit(model: InvariantGPRegressor, count: int) -> InvariantGPRegressor:
        observations = [(Gradient(), x[:count], slopes[:count].reshape(count, -1), NOISE["force"])]
        return model.fit(x[:count], y[:count], observations=observations if setting.forces else ())

    start = time.perf_counter()
    learned = InvariantGPRegressor(
        kernel, function, noise=NOISE["energy"], one_sided=one_sided, max_iterations=iterations
    )
    # Energies alone are few, so all of them teach the lengthscales.
    fit(learned, num_learn if setting.forces else num_train)
    learnt = time.perf_counter()
    model = InvariantGPRegressor(
        learned.kernel_, learned.functional_, noise=NOISE["energy"], one_sided=one_sided, max_iterations=0
    )
    fit(model, num_train)
    fitted = time.perf_counter()
    true_energies, true_forces = data.y_test[tests], data.f_test[tests]
    new = data.x_test[tests].reshape(len(true_energies), -1)
    energies = model.predict(new)
    forces = -model.predict_functional(Gradient(), new).reshape(true_forces.shape)
    done = time.perf_counter()
    return Outcome(
        float(np.abs(energies - true_energies).mean()),
        float(np.abs(forces - true_forces).mean()),
        learnt - start,
        fitted - learnt,
        done - fitted,
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
    parser.add_argument("--num-learn", type=int, default=50, help="geometries that teach the hyperparameters")
    parser.add_argument("--iterations", type=int, default=25, help="steps of learning at most")
    parser.add_argument("--num-test", type=int, default=1000, help="geometries to predict")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)

    data = load("rmd17_ethanol")
    tests = slice(options.num_test)
    count = len(data.y_test[tests])
    table = Table(title=f"Ethanol, {options.num_train} geometries: mean absolute errors of {count} others")
    table.caption = "energies in kcal/mol, forces in kcal/mol/Å, times in seconds"
    for column in ("trained on", "energy", "force", "learning", "training"):
        table.add_column(column, justify="left" if column == "trained on" else "right")
    outcomes = {}
    for setting in SETTINGS:
        num_learn = min(options.num_learn, options.num_train)
        outcome = run(data, setting, options.num_train, num_learn, options.iterations, tests)
        outcomes[setting.name] = outcome
        errors = (f"{outcome.energy_error:.3f}", f"{outcome.force_error:.3f}")
        table.add_row(setting.name, *errors, f"{outcome.learn_seconds:.1f}", f"{outcome.fit_seconds:.1f}")
    Console().print(table)
    draw(data, outcomes, options.out / "parity.png", tests)
    print(f"wrote {options.out / 'parity.png'}")
    alone, without_exchanges, both = outcomes.values()
    assert both.force_error < 0.8 * without_exchanges.force_error < 0.8 * alone.force_error
    return outcomes


if __name__ == "__main__":
    main()
