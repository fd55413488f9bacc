"""Functionals L_x of the base process g, their algebra, and the blocks of rows to which they are converted.

A functional turns inputs into a block. Row i of `Atoms` is L_i g = Σ_s w_is D_s g(p_is), with D_s the
identity (order 0) or the derivative along v_is (order 1). A blurred atom is the average of D_s g over a
Gaussian around its point instead of the value there. `Gradients` are blocks of many derivatives at the same
points. Engines depend neither on which of the two they have nor on the functional that it came from.

a + b, a - b, 2 * a     linear combinations, row by row: atoms are concatenated, weights scaled
a @ b                   a of the function x ↦ b_x(g): each atom of a becomes the atoms of b at its point
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from orbitwise.declarations import OMITTED, Stored, require
from orbitwise.orbits.orbit import Group, Symmetry


def _refuse_drawn(rows: Atoms) -> str | None:
    return "rows drawn at random cannot be stored: freeze them." if rows.is_drawn else None


def _check_runs(symmetry: Symmetry | None, num_atoms: int) -> None:
    """Raise a ValueError unless the atoms are complete runs of a symmetry."""
    fits = symmetry is None or (symmetry.size > 0 and num_atoms % symmetry.size == 0)
    require(fits, "a symmetry of other rows")


@final
@dataclass(frozen=True)
class Atoms:
    """n rows of s atoms each. Leading batch dimensions are carried along.

    `draw` is 0 for an exact atom, else the number (from 1) of its entry in `groups`. `blur` is the variance
    of the isotropic Gaussian around the points of an atom, or 0.
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

    def check_parts(self) -> None:
        """Raise a ValueError if points, orders, draws, blur and symmetry are inconsistent."""
        require(self.points.dim() == 3 and min(self.points.shape) > 0, "points that are not [n, s, d]")
        require(bool(((self.order == 0) | (self.order == 1)).all()), "orders other than 0 and 1")
        require(self.tangents is not None or not bool(self.order.any()), "slopes without tangents")
        require(not bool(self.draw.any()), "draws that are not there")
        require(self.blur is None or bool((self.blur >= 0).all()), "a negative blur")
        _check_runs(self.symmetry, self.num_atoms)

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

    @property
    def is_expanded(self) -> bool:
        """Whether every row has its own points."""
        return True

    @property
    def has_values(self) -> bool:
        """Whether some atoms are values."""
        return self.tangents is None or bool((self.order == 0).any())

    @property
    def has_slopes(self) -> bool:
        """Whether some atoms are derivatives."""
        return self.tangents is not None and bool((self.order == 1).any())

    @property
    def filled_tangents(self) -> Float[Tensor, "*batch n s d"]:
        """The tangents, or zeros if there are none."""
        return torch.zeros_like(self.points) if self.tangents is None else self.tangents

    @property
    def filled_blur(self) -> Float[Tensor, " s"]:
        """The blurs, or zeros if there are none."""
        return self.points.new_zeros(self.num_atoms) if self.blur is None else self.blur

    def rows(self, index: slice) -> Atoms:
        """A slice of the rows."""
        tangents = None if self.tangents is None else self.tangents[..., index, :, :]
        return replace(
            self, points=self.points[..., index, :, :], weights=self.weights[..., index, :], tangents=tangents
        )

    def take(self, index: slice | Int[Tensor, " k"], factor: float = 1.0) -> Atoms:
        """Some atoms of every row, their weights multiplied by `factor`; the symmetry is dropped."""
        if isinstance(index, Tensor):
            index = index.to(self.points.device)
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

    def frozen(self) -> Atoms:
        """The same atoms, treated as exact instead of drawn."""
        return replace(self, draw=torch.zeros_like(self.draw), groups=())

    def to(self, dtype: torch.dtype) -> Atoms:
        """The same atoms in a precision."""
        return replace(
            self,
            points=self.points.to(dtype),
            weights=self.weights.to(dtype),
            tangents=None if self.tangents is None else self.tangents.to(dtype),
            blur=None if self.blur is None else self.blur.to(dtype),
        )

    def expand(self) -> Atoms:
        """The same rows as atoms: these."""
        return self

    def slopes(self) -> Gradients | None:
        """The same rows as a block of derivatives along one direction each; None if some atoms are values."""
        if self.has_values:
            return None
        return Gradients(self.points, self.weights, self.filled_tangents[..., None, :])

    def constant_part(self) -> Float[Tensor, "*batch n"]:
        """Every row applied to the constant function 1."""
        return (self.weights * (self.order == 0)).sum(-1)

    def linear_part(self) -> Float[Tensor, "*batch n d"]:
        """What every row makes of the coordinates x_1, …, x_d."""
        moved = torch.where((self.order == 0)[:, None], self.points, self.filled_tangents)
        return (self.weights[..., None] * moved).sum(-2)

    def scale(self, factor: float | Float[Tensor, "*batch n"]) -> Atoms:
        """The rows times a number, or times one number per row."""
        if isinstance(factor, Tensor):
            return replace(self, weights=self.weights * factor[..., None])
        return replace(self, weights=scaled(self.weights, factor))

    def __add__(self, other: Atoms) -> Atoms:
        """The sum of two blocks, row by row; groups of draws of both stay independent."""
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
        """The same functional of f(x) = inner_x(g): every atom is replaced by the atoms of `inner` at it."""
        count, outer, _ = self.points.shape
        if self.blur is not None and not inner.is_identity:
            raise ValueError(
                f"A local average of {type(inner).__name__} is not a finite sum of local averages of g. Put "
                "the local average on the right, or average over a frozen JitterOrbit instead."
            )

        def lower(points: Tensor) -> Atoms:
            lowered = inner.lower(points.reshape(count * outer, -1), generator)
            if isinstance(lowered, Gradients):
                raise ValueError(
                    f"{type(inner).__name__} is a block of many rows, and not a function of one "
                    "input: compose with DirectionalDerivative functionals."
                )
            return lowered

        if self.tangents is None:
            lowered, moved = lower(self.points), None
        else:
            lowered, moved = push(lower, self.points, self.tangents)
            moved = moved.reshape(count, -1, moved.shape[-1])
        width = lowered.num_atoms
        if self.is_drawn and (lowered.is_drawn or width > 1):
            # atoms from one draw are not independent, as unbiased reductions would assume
            raise ValueError(
                "A drawn functional of an average or another sum has no unbiased form here; "
                "freeze the outer orbit."
            )
        order = self.order.repeat_interleave(width) + lowered.order.repeat(outer)
        if bool((order > 1).any()):
            raise ValueError("Derivatives of derivatives are not available: use FiniteDifference.")
        symmetry = lowered.symmetry
        if lowered.tangents is not None:
            # the group moves points and tangents of this functional, but not tangents of `inner`
            moved = lowered.tangents.reshape(count, outer * width, -1)
        else:
            symmetry = _substituted_symmetry(self.symmetry, lowered, inner)
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


@final
@dataclass(frozen=True)
class Gradients:
    """A block of n·k exact derivative rows that share points, weights and kernel evaluations.

    Row (i, k), k running fastest, is Σ_s w_is ∂_{v_isk} g(p_is).
    """

    points: Float[Tensor, "n s d"]
    weights: Float[Tensor, "n s"]
    directions: Float[Tensor, "n s k d"]
    symmetry: Symmetry | None = None

    stored = Stored()

    def check_parts(self) -> None:
        """Raise a ValueError if there are no rows, or the symmetry does not match."""
        require(self.num_rows > 0 and self.points.numel() > 0, "no rows")
        _check_runs(self.symmetry, self.num_atoms)

    @property
    def num_rows(self) -> int:
        """n·k."""
        return len(self.points) * self.num_directions

    @property
    def num_directions(self) -> int:
        """k."""
        return self.directions.shape[-2]

    @property
    def num_atoms(self) -> int:
        """s."""
        return self.points.shape[-2]

    @property
    def blur(self) -> None:
        """No atom is blurred."""
        return None

    @property
    def is_drawn(self) -> bool:
        """Derivatives in a block are exact."""
        return False

    @property
    def is_expanded(self) -> bool:
        """The rows share their points."""
        return False

    @property
    def has_values(self) -> bool:
        """All rows are derivatives."""
        return False

    @property
    def has_slopes(self) -> bool:
        """All rows are derivatives."""
        return True

    def rows(self, index: slice) -> Gradients:
        """The rows of a slice of the points."""
        return replace(
            self, points=self.points[index], weights=self.weights[index], directions=self.directions[index]
        )

    def take(self, index: slice | Int[Tensor, " k"], factor: float = 1.0) -> Gradients:
        """Some of each point's atoms, their weights multiplied by `factor`; the symmetry is dropped."""
        return replace(
            self,
            points=self.points[:, index],
            weights=self.weights[:, index] * factor,
            directions=self.directions[:, index],
            symmetry=None,
        )

    def frozen(self) -> Gradients:
        """The same rows: none was drawn."""
        return self

    def to(self, dtype: torch.dtype) -> Gradients:
        """The same rows in a precision."""
        return replace(
            self,
            points=self.points.to(dtype),
            weights=self.weights.to(dtype),
            directions=self.directions.to(dtype),
        )

    def scale(self, factor: float) -> Gradients:
        """The rows times a number."""
        return replace(self, weights=self.weights * factor)

    def combine(self, coefficients: Float[Tensor, "n k"]) -> Atoms:
        """Σ_k c_ik of the rows (i, k): one slope for each point, along Σ_k c_ik v_isk."""
        tangents = torch.einsum("nskd,nk->nsd", self.directions, coefficients)
        return replace(exact_atoms(self.points, self.weights, tangents), symmetry=self.symmetry)

    def expand(self) -> Atoms:
        """The same rows as plain atoms: the slow form with which the fast one is compared in tests."""
        num = self.num_directions
        atoms = exact_atoms(
            self.points.repeat_interleave(num, 0),
            self.weights.repeat_interleave(num, 0),
            self.directions.transpose(1, 2).flatten(0, 1),
        )
        return replace(atoms, symmetry=self.symmetry)

    def slopes(self) -> Gradients:
        """The same rows as a block of derivatives: this one."""
        return self

    def constant_part(self) -> Float[Tensor, " r"]:
        """Every row applied to the constant function 1: zeros."""
        return self.points.new_zeros(self.num_rows)

    def linear_part(self) -> Float[Tensor, "r d"]:
        """What every row makes of the coordinates x_1, …, x_d."""
        return torch.einsum("ns,nskd->nkd", self.weights, self.directions).flatten(0, 1)

    def substitute(self, inner: Functional, generator: torch.Generator | None = None) -> Gradients:
        """The same derivatives, of f(x) = inner_x(g) instead of g."""
        count, outer, _ = self.points.shape

        def lower(points: Tensor) -> Atoms:
            lowered = inner.lower(points.reshape(count * outer, -1), generator)
            if lowered.blur is not None:
                raise ValueError(
                    "A block of gradients takes no local averages: observe their slopes one by one, "
                    "DirectionalDerivative(v) @ LocalAverage(width)."
                )
            if isinstance(lowered, Gradients) or lowered.is_drawn or lowered.tangents is not None:
                raise ValueError(
                    "Gradient takes exact values only: freeze a drawn orbit first, and observe second "
                    "derivatives through FiniteDifference."
                )
            return lowered

        pushed = [push(lower, self.points, direction) for direction in self.directions.unbind(-2)]
        lowered = pushed[0][0]
        width = lowered.num_atoms
        return Gradients(
            lowered.points.reshape(count, outer * width, -1),
            (self.weights[..., None] * lowered.weights.reshape(count, outer, width)).flatten(-2),
            torch.stack([moved.reshape(count, outer * width, -1) for _, moved in pushed], dim=-2),
            _substituted_symmetry(self.symmetry, lowered, inner),
        )


Block = Atoms | Gradients
"""Rows of functionals, in one of the two forms."""


def _substituted_symmetry(outer: Symmetry | None, lowered: Atoms, inner: Functional) -> Symmetry | None:
    """The symmetry of rows after `inner`, lowered to atoms without tangents, was substituted for g."""
    if lowered.symmetry is not None or outer is None or lowered.num_atoms > 1:
        return lowered.symmetry
    return replace(outer, isometric=outer.isometric and inner.is_identity)


def scaled(weights: Float[Tensor, "*batch n s"], factor: float) -> Float[Tensor, "*batch n s"]:
    """Weights times a number; weights that rows share in memory stay shared, which covariances exploit."""
    if factor == 1:
        return weights
    if weights.stride(-2) == 0:
        return (weights[..., :1, :] * factor).expand_as(weights)
    return weights * factor


def push(
    lower: Callable[[Tensor], Atoms], points: Tensor, tangents: Tensor
) -> tuple[Atoms, Float[Tensor, "n s d"]]:
    """`lower(points)`, and the derivative of its points along `tangents`."""
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

    # tensors made inside jvp are valid only there; those that it returns are ordinary ones
    derivative = torch.func.jvp(moved, (points,), (tangents,), has_aux=True)
    (primal, weights), (tangent, change), (order, draw, inner, blur) = derivative  # pyright: ignore[reportAssignmentType]
    if bool((change != 0).any()):
        raise ValueError(
            "Derivatives of a functional whose weights depend on the input are not known here; "
            "observe them through FiniteDifference."
        )
    inner = None if lowered[0].tangents is None else inner
    blur = None if lowered[0].blur is None else blur
    return Atoms(primal, weights, inner, order, draw, lowered[0].groups, lowered[0].symmetry, blur), tangent


def _nested_draws(outer: Atoms, inner: Atoms) -> tuple[Tensor, tuple[Group, ...]]:
    """Draws after substitution: the inner atoms of each outer atom are drawn independently."""
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
    """Atoms without randomness: values, or derivatives where `tangents` are given.

    Row i is Σ_s w_is g(p_is), or Σ_s w_is ∂_{v_is} g(p_is) with tangents v.
    """
    order = torch.zeros(points.shape[-2], dtype=torch.long, device=points.device)
    return Atoms(points, weights, tangents, order if tangents is None else order + 1, torch.zeros_like(order))


class Functional(nn.Module, ABC):
    """A family of linear functionals L_x of the base process g, one for every input x."""

    is_identity: bool = False
    """Whether L_x(g) = g(x)."""

    stored = Stored()

    @abstractmethod
    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Block:
        """The atoms of L_x for every row of a checked x."""

    def atoms(self, x: Float[Tensor, "n ..."], generator: torch.Generator | None = None) -> Block:
        """The atoms of L_x for every row of x, after checking x."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"Functionals take a floating-point tensor [n, d], not {kind}: torch.as_tensor(x).double()."
            )
        if x.dim() < 2 or x.numel() == 0:
            raise ValueError(
                f"Functionals take a non-empty tensor of inputs [n, d], not shape {tuple(x.shape)}."
            )
        return self.lower(x, generator)

    def __add__(self, other: Functional) -> Functional:
        return Combination([self, other], [1.0, 1.0]) if isinstance(other, Functional) else NotImplemented

    def __sub__(self, other: Functional) -> Functional:
        return Combination([self, other], [1.0, -1.0]) if isinstance(other, Functional) else NotImplemented

    def __mul__(self, factor: float) -> Functional:
        return NotImplemented if isinstance(factor, Functional) else Combination([self], [float(factor)])

    __rmul__ = __mul__

    def __neg__(self) -> Functional:
        return self * -1.0

    def __matmul__(self, inner: Functional) -> Functional:
        if not isinstance(inner, Functional):
            return NotImplemented
        return inner if self.is_identity else self if inner.is_identity else Composition(self, inner)


@final
class Evaluation(Functional):
    """g(x)."""

    is_identity = True

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        check_matrix(x, self)
        return exact_atoms(x[:, None, :], torch.ones_like(x[:, :1]))


@final
class Combination(Functional):
    """Σ_j factor_j L_j.

    Parameters
    ----------
    parts : list of Functional
        The L_j, each of one row per input.
    factors : list of float
        One factor for each part.
    """

    def __init__(self, parts: list[Functional], factors: list[float]) -> None:
        super().__init__()
        if not parts or len(parts) != len(factors):
            raise ValueError(
                f"A combination has one factor per functional, not {len(factors)} factors for {len(parts)}."
            )
        self.parts = nn.ModuleList(parts)
        self.factors = factors

    @property
    def functionals(self) -> list[Functional]:
        """The L_j."""
        return [part for part in self.parts if isinstance(part, Functional)]

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Block:
        scaled = [
            part.lower(x, generator).scale(factor)
            for part, factor in zip(self.functionals, self.factors, strict=True)
        ]
        if len(scaled) == 1:
            return scaled[0]
        total = _as_atoms(scaled[0])
        for block in scaled[1:]:
            total = total + _as_atoms(block)
        return total


@final
class Composition(Functional):
    """`outer` of the function x ↦ inner_x(g).

    Parameters
    ----------
    outer : Functional
        The functional of inner_x(g) that is observed, such as a slope.
    inner : Functional
        The function of g, such as an orbit average, with one row per input.
    """

    def __init__(self, outer: Functional, inner: Functional) -> None:
        super().__init__()
        self.outer = outer
        self.inner = inner

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Block:
        return self.outer.lower(x, generator).substitute(self.inner, generator)


def _as_atoms(block: Block) -> Atoms:
    if isinstance(block, Gradients):
        raise ValueError(
            "Gradient is a block of many rows and cannot be added; add DirectionalDerivative functionals."
        )
    return block


def check_matrix(x: Tensor, functional: Functional) -> None:
    """Raise a ValueError unless x is a matrix of inputs."""
    if x.dim() != 2:
        raise ValueError(f"{type(functional).__name__} takes inputs [n, d], not shape {tuple(x.shape)}.")
