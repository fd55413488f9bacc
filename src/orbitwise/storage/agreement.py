"""Whether the parts of an estimator belong together: each is right alone, and two rows can be predicted.

Types, shapes and bounds of the arguments of each object were checked before, and what a class can say of its
own parts by its method `check_parts`. Here is what only the whole can say: that points of new rows are few
enough to be compared with those of the posterior, and that predictions have their shape and are finite.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch

from orbitwise.declarations import is_plain_numbers, require
from orbitwise.functionals.averages import OrbitAverage, OrbitSum
from orbitwise.functionals.functional import Combination, Composition, Functional
from orbitwise.inference.exact import ExactPosterior
from orbitwise.inference.model import Posterior
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import DrawnOrbit, Orbit
from orbitwise.process.process import as_blocks
from orbitwise.storage.recipes import Checked

MOST_POINTS = 2**20
MOST_PAIRS = 2**26
"""Pairs of points of two rows, which are held at once: half a gigabyte of numbers."""
PAIRS_PER_NUMBER = 2**12
"""Pairs that one prediction compares, tile by tile, for each number of the file: more rows take longer."""


@runtime_checkable
class ProcessModel(Protocol):
    """A fitted estimator whose functions have a Gaussian process for a prior."""

    n_features_in_: int
    posterior_: Posterior
    functional_: Functional
    orbit_: Orbit | None

    @property
    def latent_functional(self) -> Functional:
        """The functional that a later fit lowers inputs by."""
        ...


def check_agreement(model: object, num_numbers: int = 0) -> None:
    """Raise a ValueError where an estimator's parts are those of different models.

    A prediction may take work in proportion to `num_numbers`, those that its file holds.
    """
    assert isinstance(model, Checked)
    model.check_parts()
    if isinstance(model, ProcessModel):
        _check_predictions(model, num_numbers)
        _check_orbit(model)


def _check_predictions(model: ProcessModel, num_numbers: int) -> None:
    """Predict two rows, where that is no more work than the file allows."""
    posterior = model.posterior_
    tensors = [
        each
        for module in (model.functional_, posterior.process)
        for each in (*module.parameters(), *module.buffers())
    ]
    require(all(each.dtype != torch.float32 for each in tensors), "parts of different precision")
    probes, lowered = _probes(model), []
    for functional in (model.latent_functional, model.functional_):
        check_points(functional, posterior, num_numbers)
        rows = functional.atoms(probes, torch.Generator(probes.device).manual_seed(0))
        lowered.append(rows)
        require(rows.num_rows == 2 and rows.points.shape[-1] == posterior.width, "rows of another width")
        require(is_plain_numbers(rows.points) and is_plain_numbers(rows.weights), "rows that are not finite")
    with torch.no_grad():
        moments, mean = posterior.row_moments(lowered[-1]), posterior.row_mean(lowered[-1])
    shape = (2, posterior.num_outputs)
    require(moments.mean.shape == mean.shape == shape, "predictions of another shape")
    whole = (mean, moments.mean, moments.variance)
    require(all(is_plain_numbers(each) for each in whole), "predictions that are not finite")


def _probes(model: ProcessModel) -> torch.Tensor:
    """Two rows to try a model on, on its device."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, model.n_features_in_, generator=generator, dtype=torch.float64)
    parameter = next(model.posterior_.process.parameters(), rows)
    return rows.to(parameter.device)


def _check_orbit(model: ProcessModel) -> None:
    """Move a row along the orbit that is shown to users."""
    probes, width, orbit = _probes(model), model.n_features_in_, model.orbit_
    if isinstance(orbit, DrawnOrbit):
        with torch.no_grad():
            noise = orbit.noise((2, 1), torch.Generator(probes.device).manual_seed(0), probes)
            require(orbit.move(probes, noise).shape == (2, 1, width), "an orbit of other inputs")
    elif orbit is not None:
        require(orbit.size is None or orbit.size <= MOST_POINTS, "an orbit of far too many points")
        require(orbit.points(probes[:1]).points.shape[-1] == width, "an orbit of other inputs")


def check_points(functional: Functional, posterior: Posterior, num_numbers: int) -> None:
    """Refuse a few elements composed with a few more, again and again, before they are all made.

    A prediction compares each point that a row is moved to with the others, and with those of the posterior,
    unless a group of moves leaves the kernel as it is. Two rows are compared at once, so that their pairs
    take memory; those with all rows of the posterior take time alone, and more in a file that holds more.
    """
    orbit = getattr(getattr(functional, "average", functional), "orbit", None)
    is_one_sided = isinstance(orbit, FiniteOrbit) and orbit.symmetry is not None
    rows = as_blocks(posterior.rows) if isinstance(posterior, ExactPosterior) else []
    held = sum(math.prod(each.points.shape[:2]) for each in rows)
    moved = most_atoms(functional)
    most = MOST_POINTS if is_one_sided else math.isqrt(MOST_PAIRS)
    require(
        moved <= most,
        f"a functional of far too many points: it moves a row to {moved:,}, and {most:,} are allowed",
    )
    widest = max((each.points.shape[1] for each in rows), default=0)
    fits = moved * widest <= MOST_PAIRS and moved * held <= MOST_PAIRS + PAIRS_PER_NUMBER * num_numbers
    require(
        is_one_sided or fits,
        f"far too many pairs of points: {moved:,} of every new row with {held:,} of the posterior",
    )


def most_atoms(functional: Functional) -> int:
    """A number of points that a functional moves a row to at most."""
    if isinstance(functional, Composition):
        return most_atoms(functional.outer) * most_atoms(functional.inner)
    if isinstance(functional, Combination):
        return sum(most_atoms(part) for part in functional.parts if isinstance(part, Functional))
    if isinstance(functional, OrbitAverage | OrbitSum):
        orbit = functional.orbit if isinstance(functional, OrbitAverage) else functional.average.orbit
        count = getattr(orbit, "num_samples", None) if orbit.is_drawn else orbit.size
        return max(1, count or 1)
    return 3
