"""Averages of g: over orbits, which make f invariant (LIM eq. 6 to 8), and over Gaussians around inputs.

Freezing replaces the draws of orbits by fixed nodes, for engines that need exact rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from orbitwise.declarations import POSITIVE, Field, Stored
from orbitwise.functionals.features import FixedFeatures
from orbitwise.functionals.functional import (
    Atoms,
    Block,
    Combination,
    Composition,
    Evaluation,
    Functional,
    check_matrix,
    exact_atoms,
)
from orbitwise.functionals.points import FeatureMap
from orbitwise.orbits.composed import ComposedOrbit
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.nodes import MOST_GAUSS_DIMENSIONS, Part, Rule
from orbitwise.orbits.orbit import DrawnOrbit, FrozenOrbit, Orbit, freeze

FIRST_SCRAMBLE = 20_240_607
"""The seed of the nodes; it is arbitrary, but must be the same in every fit."""

OTHER_GAUSS = (0, -1, 1, -2)
"""Changes of the number of nodes per dimension that give other sets of nodes."""


@final
class OrbitAverage(Functional):
    """f(x) = mean of g over the orbit of x (times the elements' weights, if any), or over its density.

    Parameters
    ----------
    orbit : Orbit
        How inputs are moved. Its learned ranges are parameters of the functional.
    """

    def __init__(self, orbit: Orbit) -> None:
        super().__init__()
        self.orbit = orbit

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        drawn = self.orbit.points(x, generator)
        zeros = torch.zeros_like(drawn.draw)
        return Atoms(drawn.points, drawn.weights, None, zeros, drawn.draw, drawn.groups, drawn.symmetry)


@final
class OrbitSum(Functional):
    """f(x) = Σ g over the elements of a finite orbit of x (LIM eq. 6)."""

    stored = Stored({"orbit": Field(read="average.orbit")})

    def __init__(self, orbit: Orbit) -> None:
        super().__init__()
        if orbit.size is None:
            raise ValueError("Only a finite orbit has a sum; use OrbitAverage for a density.")
        self.average = OrbitAverage(orbit)
        self.size = orbit.size

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        return self.average.lower(x, generator).scale(float(self.size))


@final
class LocalAverage(Functional):
    """∫ g(τ) N(τ; x, width² I) dτ - g(x): zero where g is as its surroundings are on average (RKHS eq. 10).

    It is available for RBF, polynomial, linear and constant kernels, their scalings and sums; for others use
    `average_minus_value` of an orbit.

    Parameters
    ----------
    width : float
        Standard deviation of the Gaussian around x, in the units of x.
    """

    stored = Stored({"width": POSITIVE})

    def __init__(self, width: float) -> None:
        super().__init__()
        if not 0 < width < math.inf:
            raise ValueError(f"The width of a local average must be positive and finite, not {width}.")
        self.width = float(width)

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        check_matrix(x, self)
        atoms = exact_atoms(x[:, None, :].expand(-1, 2, -1), x.new_tensor([1.0, -1.0]).expand(len(x), 2))
        return replace(atoms, blur=x.new_tensor([self.width**2, 0.0]))


def average_minus_value(orbit: Orbit) -> Functional:
    """The local average minus the value, ∫ g(τ) p(τ given x) dτ - g(x), for any orbit and any kernel."""
    return OrbitAverage(orbit) - Evaluation()


def freeze_functional(
    functional: Functional, num_nodes: int, generator: torch.Generator | None = None, rule: Rule = "sobol"
) -> Functional:
    """The functional with `num_nodes` fixed nodes for every drawn orbit; learnable bounds stay shared.

    Parameters
    ----------
    functional : Functional
        A combination or composition of functionals; those without drawn orbits stay as they are.
    num_nodes : int
        Nodes per drawn orbit. A subsampled finite orbit takes all its elements instead.
    generator : torch.Generator, default=None
        Where random nodes come from.
    rule : "random", "sobol" or "gauss", default="sobol"
        See `DrawnOrbit.freeze`.
    """
    return _with_orbits(functional, lambda orbit: _freeze_orbit(orbit, num_nodes, generator, rule))


def freeze_at(functional: Functional, num_nodes: int, scramble: int = 0) -> Functional:
    """The functional on the nodes of every fit, or, with a `scramble`, on about as many other nodes.

    In one and two dimensions these are Gauss nodes, and others have slightly more or fewer; else they are
    Sobol sets.
    """
    dimensions = gauss_dimensions(functional)
    if dimensions:
        each = max(1, round(num_nodes ** (1 / dimensions)) + OTHER_GAUSS[scramble])
        return freeze_functional(functional, each**dimensions, rule="gauss")
    return freeze_in_common(functional, num_nodes, scramble)


def gauss_dimensions(functional: Functional) -> int:
    """The dimension if Gauss nodes are used, else 0."""
    dimensions = num_dimensions(functional)
    return 0 if dimensions is None or dimensions > MOST_GAUSS_DIMENSIONS else dimensions


def freeze_in_common(functional: Functional, num_nodes: int, scramble: int) -> Functional:
    """The functional on a Sobol set whose first entries are the same for every orbit.

    So an orbit with ranges of zero has the same nodes as the smaller orbit without them.
    """
    generator = torch.Generator().manual_seed(FIRST_SCRAMBLE + scramble)
    return freeze_functional(functional, num_nodes, generator)


def evenly_drawn(functional: Functional, num_samples: int = 2) -> Functional:
    """The functional with at least `num_samples` draws of every orbit with bounds, from Sobol sets per row.

    Averages over it have the same mean and far less variance; learnable bounds stay shared.
    """
    return _with_orbits(functional, lambda orbit: _even_orbit(orbit, num_samples))


def atoms_of_part(
    functional: Functional,
    inputs: Callable[[slice], Tensor],
    part: Part,
    generator: torch.Generator | None = None,
) -> Block:
    """The rows of a part of a batch, with the draws that they have in the whole batch.

    Only these rows are moved, where all drawn orbits allow it; otherwise all rows are. `inputs` returns the
    inputs of some rows of the batch.
    """
    if part.count == part.total:
        return functional.atoms(inputs(part.rows), generator)
    own = functional if part.count == 0 else _with_orbits(functional, lambda orbit: _part_orbit(orbit, part))
    if part.count == 0 or not _takes_parts(own):
        block = functional.atoms(inputs(slice(None)), generator)
        each = block.points.shape[-3] // part.total
        return block.rows(slice(each * part.rows.start, each * part.rows.stop))
    return own.atoms(inputs(part.rows), generator)


def _part_orbit(orbit: Orbit, part: Part) -> Orbit:
    if not isinstance(orbit, DrawnOrbit) or not orbit.takes_parts:
        return orbit
    own = copy.copy(orbit)  # shares its parameters
    own.part = part
    return own


def _takes_parts(functional: nn.Module) -> bool:
    """Whether all that is drawn belongs to a part of a batch."""
    if isinstance(functional, FrozenOrbit):
        return True
    if isinstance(functional, Orbit) and functional.is_drawn:
        return isinstance(functional, DrawnOrbit) and functional.part is not None
    return all(_takes_parts(each) for each in functional.children())


def num_dimensions(functional: nn.Module) -> int | None:
    """The largest dimension of the noise of a drawn orbit; None if Gauss nodes are not suitable."""
    orbits = [module for module in functional.modules() if isinstance(module, DrawnOrbit)]
    if not all(orbit.is_smooth for orbit in orbits):
        return None
    return max((int(orbit.active.sum()) for orbit in orbits), default=0)


def learnable_orbits(functional: nn.Module) -> list[DrawnOrbit]:
    """The orbits with bounds to learn inside a functional, whether drawn afresh or frozen."""
    return [module for module in functional.modules() if isinstance(module, DrawnOrbit)]


def features_of(functional: nn.Module) -> FixedFeatures | None:
    """The φ through which a functional sees its inputs, None where it sees them as they are."""
    maps = (each.features for each in functional.modules() if isinstance(each, FeatureMap))
    return next((each for each in maps if isinstance(each, FixedFeatures)), None)


def orbit_in(functional: nn.Module, width: int | None = None) -> Orbit | None:
    """The orbit that a functional averages over: a learnable one if there is one, else any.

    With `width`, only orbits that move rows of this width to rows of the same width are considered, so that
    rows and moved rows can be compared; patches, for example, are not images.
    """
    orbits = [module for module in functional.modules() if isinstance(module, Orbit)]
    found = [*learnable_orbits(functional), *orbits]
    return next((orbit for orbit in found if width is None or _keeps_width(orbit, width)), None)


@torch.no_grad()
def _keeps_width(orbit: Orbit, width: int) -> bool:
    """Whether rows of this width are moved to rows of the same width."""
    like = next(iter(orbit.state_dict().values()), torch.zeros(()))
    row = torch.zeros(1, width, dtype=torch.float64, device=like.device)
    generator = torch.Generator(row.device).manual_seed(0)
    try:
        drawn = drawn_form(orbit)
        return drawn.move(row, drawn.noise((1, 1), generator, row)).shape[-1] == width
    except (IndexError, RuntimeError, ValueError):
        return False  # an orbit of other rows, say one that moves the patches of another


def drawn_form(orbit: Orbit) -> DrawnOrbit:
    """The orbit in a form that draws: the source of a frozen orbit, or random elements of a finite one."""
    if isinstance(orbit, FrozenOrbit):
        return orbit.source
    return orbit if isinstance(orbit, DrawnOrbit) else ComposedOrbit(orbit)


def is_drawn(functional: nn.Module) -> bool:
    """Whether the functional draws its rows at random, which frozen orbits do not."""
    if isinstance(functional, FrozenOrbit):
        return False
    if isinstance(functional, Orbit) and functional.is_drawn:
        return True
    return any(is_drawn(part) for part in functional.children())


def _with_orbits(functional: Functional, change: Callable[[Orbit], Orbit]) -> Functional:
    """The functional with `change` applied to every orbit that it averages or sums over."""
    if isinstance(functional, OrbitAverage):
        return OrbitAverage(change(functional.orbit))
    if isinstance(functional, OrbitSum):
        return OrbitSum(change(functional.average.orbit))
    if isinstance(functional, Composition):
        return Composition(*(_with_orbits(part, change) for part in (functional.outer, functional.inner)))
    if isinstance(functional, Combination):
        parts = [_with_orbits(part, change) for part in functional.functionals]
        return Combination(parts, functional.factors)
    return functional


def _freeze_orbit(orbit: Orbit, num_nodes: int, generator: torch.Generator | None, rule: Rule) -> Orbit:
    if isinstance(orbit, DrawnOrbit):
        like = next((p for p in orbit.parameters()), torch.zeros((), dtype=torch.float64))
        return freeze(orbit, num_nodes, generator, like, rule)
    if isinstance(orbit, FiniteOrbit) and orbit.is_drawn:
        return FiniteOrbit(orbit.transform, orbit.elements, orbit.weights)
    return orbit


def _even_orbit(orbit: Orbit, num_samples: int) -> Orbit:
    if not isinstance(orbit, DrawnOrbit):
        return orbit
    even = copy.copy(orbit)  # shares its parameters
    even.num_groups = max(2, orbit.num_groups)
    even.num_samples = even.num_groups * math.ceil(max(num_samples, orbit.num_samples) / even.num_groups)
    even.draws = "sobol"
    return even
