"""Atoms: the one form that every linear functional of the base process g is lowered to.

Row i is L_i g = Σ_s w_is D_s g(p_is), with D_s the identity (order 0) or the derivative along v_is (order 1).
A blurred atom takes the average of D_s g over a Gaussian around its point instead of the value there.
Adding functionals concatenates atoms, scaling scales weights, and a function substituted for g replaces every
atom by its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.declarations import OMITTED, Stored
from orbitwise.orbits.orbit import Group, Symmetry

if TYPE_CHECKING:
    from orbitwise.functionals.functional import Functional


def _refuse_drawn(rows: Atoms) -> str | None:
    return "rows drawn at random cannot be stored; freeze them." if rows.is_drawn else None


@final
@dataclass(frozen=True)
class Atoms:
    """n rows of s atoms each. Leading batch dimensions are carried along.

    `draw` is 0 for an exact atom, else the number (from 1) of the entry of `groups` that it was drawn in.
    `blur` is the variance of the isotropic Gaussian around an atom's points, 0 where there is none.
    """

    points: Float[Tensor, "*batch n s d"]
    weights: Float[Tensor, "*batch n s"]
    tangents: Float[Tensor, "*batch n s d"] | None
    order: Int[Tensor, " s"]
    draw: Int[Tensor, " s"]
    groups: tuple[Group, ...] = ()
    symmetry: Symmetry | None = None
    blur: Float[Tensor, " s"] | None = None

    stored = Stored({"groups": OMITTED}, refuse=_refuse_drawn)

    @property
    def num_rows(self) -> int:
        """n."""
        return self.points.shape[-3]

    @property
    def num_atoms(self) -> int:
        """s."""
        return self.points.shape[-2]

    @property
    def is_drawn(self) -> bool:
        """Whether any atom was drawn at random."""
        return bool(self.groups)

    def rows(self, index: slice) -> Atoms:
        """A slice of the rows."""
        tangents = None if self.tangents is None else self.tangents[..., index, :, :]
        return replace(
            self, points=self.points[..., index, :, :], weights=self.weights[..., index, :], tangents=tangents
        )

    def take(self, index: Int[Tensor, " k"]) -> Atoms:
        """The atoms with these numbers, of every row; the symmetry is dropped."""
        index = index.to(self.points.device)
        return replace(
            self,
            points=self.points[..., index, :],
            weights=self.weights[..., index],
            tangents=None if self.tangents is None else self.tangents[..., index, :],
            order=self.order[index],
            draw=self.draw[index],
            symmetry=None,
            blur=None if self.blur is None else self.blur[index],
        )

    def frozen(self) -> Atoms:
        """The same atoms taken as they are, as if they had not been drawn."""
        return replace(self, draw=torch.zeros_like(self.draw), groups=())

    def pick(self, index: slice, factor: float = 1.0) -> Atoms:
        """Some of each row's atoms, their weights multiplied by `factor`; the symmetry is dropped."""
        return replace(
            self,
            points=self.points[..., index, :],
            weights=scaled(self.weights[..., index], factor),
            tangents=None if self.tangents is None else self.tangents[..., index, :],
            order=self.order[index],
            draw=self.draw[index],
            symmetry=None,
            blur=None if self.blur is None else self.blur[index],
        )

    def scale(self, factor: float | Float[Tensor, "*batch n"]) -> Atoms:
        """The functional times a number, or times one number for each row."""
        if isinstance(factor, Tensor):
            return replace(self, weights=self.weights * factor[..., None])
        return replace(self, weights=scaled(self.weights, factor))

    def __add__(self, other: Atoms) -> Atoms:
        """The sum of two functionals, row by row; drawn groups of both stay independent of each other."""
        if self.num_rows != other.num_rows:
            raise ValueError(f"Cannot add functionals of {self.num_rows} and {other.num_rows} rows.")
        if self.points.shape[-1] != other.points.shape[-1]:
            raise ValueError(
                "Cannot add functionals of functions of different inputs: "
                f"points of width {self.points.shape[-1]} and {other.points.shape[-1]}."
            )
        shift = max((group.family for group in self.groups), default=0)
        groups = self.groups + tuple(replace(group, family=group.family + shift) for group in other.groups)
        draw = torch.where(other.draw > 0, other.draw + len(self.groups), 0)
        same = self.symmetry is not None and self.symmetry == other.symmetry
        tangents = None
        if self.tangents is not None or other.tangents is not None:
            tangents = torch.cat([self.filled_tangents, other.filled_tangents], dim=-2)
        blur = None
        if self.blur is not None or other.blur is not None:
            blur = torch.cat([self.filled_blur, other.filled_blur])
        return Atoms(
            torch.cat([self.points, other.points], dim=-2),
            torch.cat([self.weights, other.weights], dim=-1),
            tangents,
            torch.cat([self.order, other.order]),
            torch.cat([self.draw, draw]),
            groups,
            self.symmetry if same else None,
            blur,
        )

    @property
    def filled_tangents(self) -> Float[Tensor, "*batch n s d"]:
        """The tangents, zero where there are none."""
        return torch.zeros_like(self.points) if self.tangents is None else self.tangents

    @property
    def filled_blur(self) -> Float[Tensor, " s"]:
        """The blurs, zero where there are none."""
        return self.points.new_zeros(self.num_atoms) if self.blur is None else self.blur

    def batched(self, batch_shape: torch.Size) -> Atoms:
        """Rows split into leading batch dimensions."""

        def split(tensor: Tensor) -> Tensor:
            return tensor.reshape(*batch_shape, -1, *tensor.shape[1:])

        return replace(
            self,
            points=split(self.points),
            weights=split(self.weights),
            tangents=None if self.tangents is None else split(self.tangents),
        )

    def substitute(self, inner: Functional, generator: torch.Generator | None = None) -> Atoms:
        """The same functional of f(x) = inner_x(g) instead of g: every atom becomes inner's atoms at it."""
        count, outer, _ = self.points.shape
        if self.blur is not None and not inner.is_identity:
            raise ValueError(
                f"A local average of {type(inner).__name__} is no finite sum of local averages of g. Put the "
                "local average on the right, or average over a frozen JitterOrbit instead."
            )

        def lower(points: Tensor) -> Atoms:
            lowered = inner.lower(points.reshape(count * outer, -1), generator)
            if not isinstance(lowered, Atoms):
                raise ValueError(
                    f"{type(inner).__name__} is a block of many rows, and no function of one input: "
                    "compose with DirectionalDerivative functionals."
                )
            return lowered

        if self.tangents is None:
            lowered, moved = lower(self.points), None
        else:
            lowered, moved = push(lower, self.points, self.tangents)
            moved = moved.reshape(count, -1, moved.shape[-1])
        width = lowered.num_atoms
        if self.is_drawn and (lowered.is_drawn or width > 1):
            # Atoms that stem from one draw are not independent; unbiased reductions would take them for it.
            raise ValueError(
                "A drawn functional of an average or another sum has no unbiased form here; "
                "freeze the outer orbit."
            )
        order = self.order.repeat_interleave(width) + lowered.order.repeat(outer)
        if bool((order > 1).any()):
            raise ValueError("A derivative of a derivative has no atom; observe it through FiniteDifference.")
        symmetry = lowered.symmetry
        if lowered.tangents is not None:
            moved = lowered.tangents.reshape(count, outer * width, -1)
        elif symmetry is None and self.symmetry is not None and width == 1:
            # The group moves the points and the tangents of this functional, but not tangents of `inner`.
            symmetry = replace(self.symmetry, isometric=self.symmetry.isometric and inner.is_identity)
        draw, groups = _nested_draws(self, lowered)
        return Atoms(
            lowered.points.reshape(count, outer * width, -1),
            (self.weights[..., None] * lowered.weights.reshape(count, outer, width)).flatten(-2),
            moved,
            order,
            draw,
            groups,
            symmetry,
            None if lowered.blur is None else lowered.blur.repeat(outer),
        )


def scaled(weights: Float[Tensor, "*batch n s"], factor: float) -> Float[Tensor, "*batch n s"]:
    """Weights times a number; weights that all rows share in memory stay shared, which covariances use."""
    if weights.stride(-2) == 0:
        return (weights[..., :1, :] * factor).expand_as(weights)
    return weights * factor


def push(
    lower: Callable[[Tensor], Atoms], points: Tensor, tangents: Tensor
) -> tuple[Atoms, Float[Tensor, "n s d"]]:
    """`lower(points)` and how its points move when `points` moves along `tangents`."""
    lowered: list[Atoms] = []

    def moved(x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
        atoms = lower(x)
        lowered.append(atoms)
        return (atoms.points, atoms.weights), (
            atoms.order,
            atoms.draw,
            atoms.filled_tangents,
            atoms.filled_blur,
        )

    # Tensors made inside jvp live there only; those it gives back are ordinary ones.
    derivative = torch.func.jvp(moved, (points,), (tangents,), has_aux=True)
    (primal, weights), (tangent, change), (order, draw, inner, blur) = derivative  # pyright: ignore
    if bool((change != 0).any()):
        raise ValueError(
            "Derivatives of a functional whose weights depend on the input are not known here; "
            "observe them through FiniteDifference."
        )
    inner = None if lowered[0].tangents is None else inner
    blur = None if lowered[0].blur is None else blur
    return Atoms(primal, weights, inner, order, draw, lowered[0].groups, lowered[0].symmetry, blur), tangent


def _nested_draws(outer: Atoms, inner: Atoms) -> tuple[Tensor, tuple[Group, ...]]:
    """Draws of a substituted functional: each outer atom has drawn its inner atoms independently."""
    if not inner.is_drawn:
        return outer.draw.repeat_interleave(inner.num_atoms), outer.groups
    families = max(group.family for group in inner.groups)
    groups = tuple(
        replace(group, family=group.family + families * place)
        for place in range(outer.num_atoms)
        for group in inner.groups
    )
    place = torch.arange(outer.num_atoms, device=inner.draw.device).repeat_interleave(inner.num_atoms)
    draw = inner.draw.repeat(outer.num_atoms)
    return torch.where(draw > 0, draw + place * len(inner.groups), 0), groups


def exact_atoms(
    points: Float[Tensor, "n s d"],
    weights: Float[Tensor, "n s"],
    tangents: Float[Tensor, "n s d"] | None = None,
) -> Atoms:
    """Atoms without randomness: values, or derivatives where `tangents` are given."""
    order = torch.zeros(points.shape[-2], dtype=torch.long, device=points.device)
    return Atoms(points, weights, tangents, order if tangents is None else order + 1, torch.zeros_like(order))
