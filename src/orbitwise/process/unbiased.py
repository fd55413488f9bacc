"""Quadratic forms of rows with drawn atoms, without bias (METHOD 4; LIM eq. 21; LIM-A eq. 8, 12, 15).

A draw must never be paired with itself. For a row Σ_s w_s a_s the estimate of its quadratic form is Σ_st c_st
w_s w_t r(a_s, a_t) with c_st = between[group(s), group(t)] + [s = t]·diagonal[group(s)], group 0 being the
exact atoms. With nothing drawn c is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.functionals.functional import Atoms
from orbitwise.process.process import pair_covariance

Method = Literal["halves", "all_pairs"]


@dataclass(frozen=True)
class PairFactors:
    """The factors c of pairs of atoms, by the groups they were drawn in."""

    draw: Int[Tensor, " s"]
    between: Float[Tensor, "g g"]
    diagonal: Float[Tensor, " g"]

    @property
    def has_diagonal(self) -> bool:
        """Whether pairs of a draw with itself have a separate factor."""
        return bool((self.diagonal != 0).any())

    def matrix(self) -> Float[Tensor, "s s"]:
        """c for every pair of atoms."""
        return self.between[self.draw][:, self.draw] + torch.diag(self.diagonal[self.draw])


def pair_factors(atoms: Atoms, method: Method = "halves") -> PairFactors:
    """The factors that make quadratic forms of these rows unbiased.

    "halves" uses only pairs of different groups of a family; "all_pairs" uses every pair of different draws.
    A family of one group always uses all pairs, with the weights of a finite population where the group was
    drawn without replacement.

    Parameters
    ----------
    atoms : Atoms
        Rows with the record of how their atoms were drawn.
    method : "halves" or "all_pairs", default="halves"
        Which pairs are used.
    """
    if method not in ("halves", "all_pairs"):
        raise ValueError(f"method must be 'halves' or 'all_pairs', not {method!r}.")
    between = torch.ones(len(atoms.groups) + 1, len(atoms.groups) + 1, dtype=atoms.points.dtype)
    diagonal = torch.zeros(len(atoms.groups) + 1, dtype=atoms.points.dtype)
    counts = torch.bincount(atoms.draw.cpu(), minlength=len(atoms.groups) + 1).tolist()
    for family in {group.family for group in atoms.groups}:
        members = [i + 1 for i, group in enumerate(atoms.groups) if group.family == family]
        if len(members) > 1 and method == "halves":
            for i in members:
                between[i, members] = len(members) / (len(members) - 1)
                between[i, i] = 0
            continue
        populations = {atoms.groups[i - 1].population for i in members}
        if populations == {None}:
            # independent draws: all pairs s ≠ t of the family, Î = S/(S-1) Σ_{s≠t} w_s w_t r_st
            total = sum(counts[i] for i in members)
            _check_pairs(total)
            for i in members:
                between[i, members] = total / (total - 1)
                diagonal[i] = -total / (total - 1)
        else:
            for i in members:
                population = atoms.groups[i - 1].population
                if population is None:
                    raise ValueError("Groups of one family must all be drawn in the same way.")
                off, on = _finite_population(counts[i], population)
                between[i, i] = off
                diagonal[i] = on - off
    device = atoms.points.device
    return PairFactors(atoms.draw, between.to(device), diagonal.to(device))


def group_sums(atoms: Atoms, values: Float[Tensor, "*batch n s c"]) -> Float[Tensor, "*batch n g c"]:
    """Σ_{s in group} w_s a_s for every group; entry 0 holds the exact atoms."""
    member = torch.nn.functional.one_hot(atoms.draw, len(atoms.groups) + 1).to(values.dtype)
    return torch.einsum("...nsc,...ns,sg->...ngc", values, atoms.weights, member)


def reduce_quadratic(
    atoms: Atoms, unreduced: Float[Tensor, "*batch n s s"], method: Method = "halves"
) -> Tensor:
    """Σ_st c_st w_s w_t r_st for every row.

    Parameters
    ----------
    atoms : Atoms
        The rows.
    unreduced : Tensor of shape (*batch, n, s, s)
        r(a_s, a_t) for all pairs of atoms of a row, such as their covariance.
    method : "halves" or "all_pairs", default="halves"
        Which pairs are used; see `pair_factors`.
    """
    factors = pair_factors(atoms, method).matrix()
    return torch.einsum("...ns,...nst,st,...nt->...n", atoms.weights, unreduced, factors, atoms.weights)


def unbiased_variance(kernel: Kernel, atoms: Atoms, method: Method = "halves") -> Float[Tensor, "*batch n"]:
    """An unbiased estimate of the prior variance of each row; pairs with factor zero are not evaluated."""
    factors = pair_factors(atoms, method)
    places = [torch.nonzero(atoms.draw == g).flatten() for g in range(len(atoms.groups) + 1)]
    total = torch.zeros_like(atoms.weights[..., 0])
    for g, first in enumerate(places):
        for h in range(g, len(places)):
            second = places[h]
            if (
                not len(first)
                or not len(second)
                or (factors.between[g, h] == 0 and (g != h or factors.diagonal[g] == 0))
            ):
                continue
            left, right = atoms.take(first), atoms.take(second)
            unreduced = pair_covariance(kernel, left, right)
            factor = factors.between[g, h].expand(len(first), len(second))
            if g == h:
                factor = factor + torch.diag(factors.diagonal[g].expand(len(first)))
            form = torch.einsum("...ns,...nst,st,...nt->...n", left.weights, unreduced, factor, right.weights)
            total = total + (form if g == h else 2 * form)
    return total


def _finite_population(count: int, population: int) -> tuple[float, float]:
    """Factors off and on the diagonal, for `count` of `population` elements of weight 1/count."""
    if count == population:
        return 1.0, 1.0
    _check_pairs(count)
    return count * (population - 1) / (population * (count - 1)), count / population


def _check_pairs(count: int) -> None:
    if count < 2:
        raise ValueError(
            "An unbiased quadratic estimate needs at least two draws in all; raise num_samples to 2 or more."
        )
