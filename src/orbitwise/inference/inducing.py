"""Where inducing points go: points of the orbits of training inputs, since Z lives where g does.

At random, or greedily: the next point is where the prior variance of g is least explained by the points so
far, a pivoted Cholesky factorisation of the candidates' covariance (METHOD 3; Burt et al. 2020) that is never
formed.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.functionals.functional import Functional
from orbitwise.functionals.points import Evaluation
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
    """Inputs in random order, each moved to a random point of its orbit; repeated, moved anew, if needed.

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
    return candidates[greedy_choice(process, candidates, num_inducing)]


def greedy_choice(process: Process, candidates: Float[Tensor, "m d"], num_inducing: int) -> Int[Tensor, " u"]:
    """The numbers of up to `num_inducing` candidates, each with the largest variance given those before it.

    O(C·M²) time and O(C·M) memory for C candidates. It stops early where nothing is left to explain, so
    duplicates are never taken; of equals it takes the first.
    """
    _check_count(num_inducing)
    with torch.no_grad():
        rows = Evaluation().lower(candidates)
        left = process.variance(rows).double()
        # What rounding of kernel values leaves behind is not variance.
        rounding = 8 * torch.finfo(candidates.dtype).eps
        floor = max(EXPLAINED, rounding) * left.clamp_min(0)
        factor = left.new_zeros(min(num_inducing, len(candidates)), len(candidates))
        chosen: list[int] = []
        for place in range(len(factor)):
            open_places = left > floor
            open_places[chosen] = False
            if not bool(open_places.any()):
                break
            pivot = int(torch.where(open_places, left, -torch.inf).argmax())
            column = process.covariance(rows.rows(slice(pivot, pivot + 1)), rows)[0].double()
            # l = (k_p - Σ_j l_jp l_j)/√v_p,  v ← v - l²
            column = (column - factor[:place, pivot] @ factor[:place]) / left[pivot].sqrt()
            factor[place] = column
            left = left - column.square()
            chosen.append(pivot)
    return torch.tensor(chosen, dtype=torch.long, device=candidates.device)


def _distinct(points: Float[Tensor, "n d"]) -> Float[Tensor, "m d"]:
    """The points without repetitions, in the order in which they first came."""
    _, group = torch.unique(points, dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(points), device=points.device)
    place = torch.arange(len(points), device=points.device)
    first = first.scatter_reduce(0, group, place, "amin")
    return points[first.sort().values]


def _check_count(num_inducing: int) -> None:
    if num_inducing < 1:
        raise ValueError(f"There must be at least one inducing point, not {num_inducing}.")
