"""Where inducing points go: points of the orbits of training inputs, since Z lives where g does.

At random, at the centres of clusters, or greedily: the next point is where the prior variance of g is least
explained by the points so far, a pivoted Cholesky factorisation of the candidates' covariance (METHOD 3; Burt
et al. 2020) that is never formed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.cluster import KMeans
from torch import Tensor

from orbitwise.functionals.functional import Atoms, Evaluation, Functional
from orbitwise.process.process import Process

EXPLAINED = 1e-10
"""A candidate whose variance is explained but for this share, or for rounding, is not taken."""


def random_orbit_points(
    functional: Functional,
    x: Float[Tensor, "n d"],
    num_inducing: int,
    generator: torch.Generator,
    rows_at_once: int = 256,
) -> Float[Tensor, "u e"]:
    """Inputs in random order, each moved to a random point of its orbit; repeated with new moves if needed.

    Points that were there before are left out, so there may be fewer than asked for.
    """
    _check_count(num_inducing)
    place = generator.device
    rounds = range(-(-num_inducing // len(x)))
    orders = [torch.randperm(len(x), generator=generator, device=place).to(x.device) for _ in rounds]
    chosen = torch.cat(orders)[:num_inducing]
    parts = []
    with torch.no_grad():
        for index in chosen.split(rows_at_once):
            atoms = functional.atoms(x[index], generator)
            weights = atoms.weights.abs()
            # A row without weight has no preferred point.
            weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, torch.ones_like(weights))
            pick = torch.multinomial(weights.to(place), 1, generator=generator).to(x.device)
            parts.append(atoms.points[torch.arange(len(index), device=x.device), pick[:, 0]])
    return _distinct(torch.cat(parts))


def greedy_orbit_points(
    process: Process,
    functional: Functional,
    x: Float[Tensor, "n d"],
    num_inducing: int,
    generator: torch.Generator,
    num_candidates: int | None = None,
) -> Float[Tensor, "u e"]:
    """The best-spread of random points of the orbits, 8 times as many as asked for unless told otherwise."""
    _check_count(num_inducing)
    wanted = 8 * num_inducing if num_candidates is None else max(num_candidates, num_inducing)
    candidates = random_orbit_points(functional, x, wanted, generator)
    return candidates[greedy_choice(process, candidates, num_inducing).index]


@dataclass(frozen=True)
class Choice:
    """Numbers of the candidates chosen, and Σ variance left unexplained before each choice and in the end."""

    index: Int[Tensor, " u"]
    trace: Float[Tensor, " v"]


def greedy_choice(
    process: Process,
    candidates: Float[Tensor, "m d"] | Atoms,
    num_inducing: int,
    separation: float = EXPLAINED,
    enough: float = 0.0,
) -> Choice:
    """Up to `num_inducing` candidates, each with the largest variance given those before it.

    Candidates are points of g or any exact rows. O(C·M²) time and O(C·M) memory for C candidates. A candidate
    is not taken when less than the share `separation` of its variance is left, or no more than rounding, so
    that K_uu stays well conditioned and duplicates are never taken; of equals it takes the first. It stops
    early where nothing is left to take, or Σ variance left over candidates is at most `enough`.
    """
    _check_count(num_inducing)
    with torch.no_grad():
        rows = Evaluation().lower(candidates) if isinstance(candidates, Tensor) else candidates
        left = process.variance(rows).double()
        # what rounding of kernel values leaves behind is not variance
        rounding = 8 * torch.finfo(rows.points.dtype).eps
        floor = max(separation, rounding) * left.clamp_min(0)
        factor = left.new_zeros(min(num_inducing, len(left)), len(left))
        taken = torch.zeros_like(left, dtype=torch.bool)
        chosen: list[int] = []
        trace = [float(left.sum())]
        for place in range(len(factor)):
            eligible = torch.where((left > floor) & ~taken, left, -torch.inf)
            pivot = int(eligible.argmax())
            if trace[-1] <= enough or not math.isfinite(float(eligible[pivot])):
                break
            column = process.covariance(rows.rows(slice(pivot, pivot + 1)), rows)[0].double()
            # l = (k_p - Σ_j l_jp l_j)/√v_p,  v ← v - l²
            column = (column - factor[:place, pivot] @ factor[:place]) / left[pivot].sqrt()
            factor[place] = column
            left = left - column.square()
            taken[pivot] = True
            chosen.append(pivot)
            trace.append(float(left.clamp_min(0).sum()))
    index = torch.tensor(chosen, dtype=torch.long, device=left.device)
    return Choice(index, left.new_tensor(trace))


def cluster_centres(
    points: Float[Tensor, "n d"], num_inducing: int, generator: torch.Generator, most: int = 20_000
) -> Float[Tensor, "u d"]:
    """The centres of k-means on at most `most` random points, distinct.

    Coordinates count to seven digits of their range, so that other rounding on another CPU does not lead
    k-means elsewhere.
    """
    _check_count(num_inducing)
    order = torch.randperm(len(points), generator=generator, device=generator.device)[:most]
    sample = _distinct(points[order.to(points.device)])
    if len(sample) <= num_inducing:
        return sample
    seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
    means = KMeans(num_inducing, n_init=1, max_iter=20, random_state=seed)  # pyright: ignore[reportArgumentType]
    rows = sample.double().cpu().numpy()
    # each column by its own range, because columns may differ in scale; constant ones stay as they are
    unit = 1e-7 * np.ptp(rows, axis=0)
    rounded = np.where(unit > 0, np.round(rows / np.where(unit > 0, unit, 1.0)) * unit, rows)
    centres = means.fit(rounded).cluster_centers_
    return _distinct(torch.from_numpy(np.asarray(centres)).to(points))


def first_of_equals(points: Float[Tensor, "n d"]) -> Int[Tensor, " m"]:
    """The numbers of the distinct points, each the first of its equals."""
    _, group = torch.unique(points, dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(points), device=points.device)
    place = torch.arange(len(points), device=points.device)
    return first.scatter_reduce(0, group, place, "amin").sort().values


def _distinct(points: Float[Tensor, "n d"]) -> Float[Tensor, "m d"]:
    """The points without repetitions, in the order in which they first came."""
    return points[first_of_equals(points)]


def _check_count(num_inducing: int) -> None:
    if num_inducing < 1:
        raise ValueError(f"There must be at least one inducing point, not {num_inducing}.")
