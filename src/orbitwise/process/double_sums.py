"""Covariances of rows of values, fast: double sums over orbits with their own gradient, and single values.

G_ij = Σ_s Σ_t w_is w'_jt κ(|p_is - p'_jt|²), by tiles that stay in cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, final

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    Kernel,
    PeriodicKernel,
    ProductKernel,
    ScaleKernel,
)
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.functional import Atoms, Block
from orbitwise.kernels.bases import CentredLinearKernel, children_of
from orbitwise.process.closed_forms import (
    Profile,
    active_dims,
    is_far,
    parts_of_sum,
    radial_profile,
    rbf,
    select,
    squared_distance,
)

PAIRS_AT_ONCE = {"cpu": 2**18, "cuda": 2**27}
"""Kernel evaluations per tile: on a CPU they fit in the cache of a core, on a GPU they keep it busy."""


def takes_double_sums(kernel: Kernel, left: Block, right: Block) -> bool:
    """Whether `double_sum` applies: values of one scaled radial kernel, several atoms per row, no batches."""
    if left.points.dim() != 3 or right.points.dim() != 3 or left.num_atoms * right.num_atoms == 1:
        return False
    if any(block.blur is not None or block.has_slopes for block in (left, right)) or len(kernel.batch_shape):
        return False
    part, *others = parts_of_sum(kernel)
    # the hand-written gradient covers no parameter but the lengthscale
    learned = {name for name, _ in part.kernel.named_parameters()}
    return not others and part.is_radial and learned <= {"raw_lengthscale"}


def double_sum(kernel: Kernel, left: Atoms, right: Atoms | None = None) -> Float[Tensor, "n m"] | None:
    """cov(L g, L' g) of rows of values; without `right`, of `left` with itself, one half computed.

    None if points are so far from each other that products would cancel.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        A scaled radial kernel, as `takes_double_sums` checks.
    left, right : Atoms
        Rows of values, without batch dimensions; `right` is `left` where None.
    """
    (part,) = parts_of_sum(kernel)
    profile = radial_profile(part.kernel)
    assert profile is not None
    points, right_points = part.select(left.points), None if right is None else part.select(right.points)
    # Products cancel badly far from the origin.
    centre, lengthscale = points.detach().mean(dim=(0, 1)), part.kernel.lengthscale.to(points)
    points = (points - centre) / lengthscale
    right_points = None if right_points is None else (right_points - centre) / lengthscale
    sides = [each for each in (points, right_points) if each is not None]
    if is_far(*(each.detach().square().sum(-1) for each in sides)):
        return None
    right_weights = None if right is None else right.weights
    whole: Tensor = _DoubleSum.apply(profile, points, left.weights, right_points, right_weights)
    return part.scale * whole


@final
class _DoubleSum(torch.autograd.Function):
    """The double sum and its gradient; points and weights of the right are None if both sides are equal."""

    @staticmethod
    def forward(
        ctx: Any,
        profile: Profile,
        points: Tensor,
        weights: Tensor,
        right_points: Tensor | None,
        right_weights: Tensor | None,
    ) -> Tensor:
        ctx.profile = profile
        ctx.save_for_backward(points, weights, right_points, right_weights)
        left, right = _sides(profile, points, weights, right_points, right_weights)
        result = torch.zeros(left.num_rows, right.num_rows, dtype=torch.float64, device=points.device)
        for rows, columns in _tiles(left, right):
            values = left.kernel(rows, right, columns)
            # Σ_t κ w'_t, then Σ_s w_s κ, in double precision from here on
            half = right.weighted_sum(values, columns).unflatten(0, (-1, left.num_atoms))
            tile = (half * left.weights[rows, :, None]).sum(1, dtype=torch.float64)
            result[rows, columns] = tile
            if left is right and rows != columns:
                result[columns, rows] = tile.T
        # a tile on the diagonal is symmetric up to rounding
        return ((result + result.T) / 2 if left is right else result).to(points)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return _differentiable_gradients(ctx, gradients[0])
        left, right = _sides(ctx.profile, *ctx.saved_tensors)
        # a pair of rows of a symmetric matrix is visited once but contributes to two entries
        upstream = gradients[0] + gradients[0].T if left is right else gradients[0]
        weigh = ctx.needs_input_grad[2] or ctx.needs_input_grad[4]
        for rows, columns in _tiles(left, right):
            is_diagonal = left is right and rows == columns
            left.differentiate(rows, right, columns, upstream[rows, columns], is_diagonal, weigh)
        results: list[Tensor | None] = [None, left.point_gradient(), left.weight_gradient if weigh else None]
        if left is right:
            return (*results, None, None)
        return (*results, right.point_gradient(), right.weight_gradient if weigh else None)


@final
class _Side:
    """One side of a double sum: its points and weights, and their accumulated gradients."""

    def __init__(self, points: Tensor, weights: Tensor, profile: Profile) -> None:
        self.num_rows, self.num_atoms, width = points.shape
        self.points, self.weights, self.profile = points, weights, profile
        self.shares_weights = weights.stride(0) == 0
        flat = points.reshape(-1, width)
        square = flat.square().sum(-1, keepdim=True)
        one = torch.ones_like(square)
        # |p - q|² = [-2p, |p|², 1]·[q, 1, |q|²]; for e^{-|p-q|²/2}, what stands in the exponent
        factor, half = (1.0, -0.5) if profile is rbf else (-2.0, 1.0)
        self.as_left = torch.cat([factor * flat, half * square, one], dim=-1)
        self.as_right = torch.cat([flat, one, half * square], dim=-1)
        # w_jt [p_jt, 1], and sums of it over the other side
        self.weighted = weights.reshape(-1, 1) * self.as_right[:, :-1]
        self.moment = torch.zeros_like(self.weighted)
        self.weight_gradient = torch.zeros_like(points[..., 0])

    def kernel(self, rows: slice, other: _Side, columns: slice) -> Tensor:
        """κ of all pairs of points of these rows: [rows·s, columns·t]."""
        inner = self._inner(rows, other, columns)
        # rounding may make the distance of equal points negative
        return inner.clamp_max_(0).exp_() if self.profile is rbf else self.profile(inner.relu_(), 0)

    def weighted_sum(self, values: Tensor, rows: slice) -> Tensor:
        """Σ_t values w_t: [a, rows]."""
        values = values.unflatten(-1, (-1, self.num_atoms))
        return values @ self.weights[0] if self.shares_weights else (values * self.weights[rows]).sum(-1)

    def differentiate(
        self, rows: slice, other: _Side, columns: slice, upstream: Tensor, is_diagonal: bool, weigh: bool
    ) -> None:
        """Add the contribution of a tile to the gradients of both sides."""
        inner = self._inner(rows, other, columns)
        mine, theirs = self._flat(rows), other._flat(columns)
        # A tile on the diagonal holds both orders of each pair; elsewhere the other side gets its own share.
        factor = (0.5 * upstream if is_diagonal else upstream)[:, None, :, None]
        shape = (-1, self.num_atoms, upstream.shape[1], other.num_atoms)
        slope = inner.clamp_max_(0).exp_() if self.profile is rbf else self.profile(inner.relu_(), 1)
        if weigh:
            value = slope if self.profile is rbf else self.profile(inner, 0)
            seen = (value.view(shape) * factor).view_as(inner)
            self.weight_gradient[rows] += (seen @ other.weights.reshape(-1)[theirs]).view(-1, self.num_atoms)
            gained = seen.T @ self.weights.reshape(-1)[mine]
            other.weight_gradient[columns] += gained.view(-1, other.num_atoms)
        coefficients = slope.view(shape).mul_(factor).view_as(inner)
        self.moment[mine].addmm_(coefficients, other.weighted[theirs])
        other.moment[theirs].addmm_(coefficients.T, self.weighted[mine])

    def point_gradient(self) -> Tensor:
        """The gradient 2 w_is Σ_jt C w'_jt (p_is - p'_jt), from Σ_jt C w'_jt [p'_jt, 1]."""
        moment = self.moment.view(*self.points.shape[:2], -1)
        factor = -1.0 if self.profile is rbf else 2.0  # κ′ = -½κ there, and κ is what was summed
        return factor * self.weights[..., None] * (moment[..., -1:] * self.points - moment[..., :-1])

    def _inner(self, rows: slice, other: _Side, columns: slice) -> Tensor:
        return self.as_left[self._flat(rows)] @ other.as_right[other._flat(columns)].T

    def _flat(self, rows: slice) -> slice:
        return slice(rows.start * self.num_atoms, rows.stop * self.num_atoms)


def _differentiable_gradients(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients by plain operations on all pairs, which can be differentiated again."""
    points, weights, right_points, right_weights = ctx.saved_tensors
    others = (points, weights) if right_points is None else (right_points, right_weights)
    (p, w), (q, v) = ((each[0].flatten(0, 1), each[1]) for each in ((points, weights), others))
    values = ctx.profile(squared_distance(p, q), 0).view(*w.shape, *v.shape)
    whole = torch.einsum("ns,nsmt,mt->nm", w, values, v)
    inputs = [each for each in ctx.saved_tensors if each is not None and each.requires_grad]
    found = iter(torch.autograd.grad(whole, inputs, upstream, create_graph=True))
    known = [None if each is None or not each.requires_grad else next(found) for each in ctx.saved_tensors]
    return (None, *known)


def _sides(
    profile: Profile,
    points: Tensor,
    weights: Tensor,
    right_points: Tensor | None,
    right_weights: Tensor | None,
) -> tuple[_Side, _Side]:
    left = _Side(points, weights, profile)
    if right_points is None or right_weights is None:
        return left, left
    return left, _Side(right_points, right_weights, profile)


def _tiles(left: _Side, right: _Side) -> Iterator[tuple[slice, slice]]:
    """Tiles of rows and columns; of a symmetric matrix, those on and below the diagonal."""
    side = math.isqrt(PAIRS_AT_ONCE["cpu" if left.points.device.type == "cpu" else "cuda"])
    height, width = (max(1, side // each.num_atoms) for each in (left, right))
    for i in range(0, left.num_rows, height):
        for j in range(0, i + 1 if left is right else right.num_rows, width):
            yield slice(i, min(i + height, left.num_rows)), slice(j, min(j + width, right.num_rows))


def value_covariance(kernel: Kernel, atoms: Atoms, one_sided: bool = False) -> Float[Tensor, "n n"]:
    """cov(L_i g, L_j g) = Σ_s Σ_t w_is w_jt k(p_is, p_jt), for rows of values without batches.

    `one_sided` means that the atoms are the orbit of a group to which the kernel is invariant, the identity
    first, with weights that are a character of the group. One side of the double sum is then enough: |G| Σ_t
    w_i1 w_jt k(p_i1, p_jt).
    """
    if atoms.tangents is not None or atoms.blur is not None or atoms.points.dim() != 3:
        raise ValueError("value_covariance takes rows of values only; use Process.covariance.")
    count, points, weights = atoms.num_atoms, atoms.points, atoms.weights
    total: Tensor | None = None
    for s in range(1 if one_sided else count):
        left = weights[:, s] * (count if one_sided else 1)
        for t in range(s, count):
            block = gram(kernel, PointPairs(points[:, s], points[:, t]))
            factor = left[:, None] * weights[:, t]
            if not bool((factor == 1).all()):
                block = block * factor
            if not one_sided and s != t:
                block = block + block.mT
            total = block if total is None else total + block
    assert total is not None, "rows have at least one atom"
    return total


@final
class PointPairs:
    """All pairs (p, q) of two lists of points; squared distances are computed once and kept."""

    def __init__(self, left: Float[Tensor, "n d"], right: Float[Tensor, "m d"]) -> None:
        self.left, self.right = left, right
        self._squares: dict[tuple[int, ...] | None, Tensor] = {}

    def selected(self, kernel: Kernel) -> tuple[Tensor, Tensor]:
        """The columns that a kernel sees, of both lists."""
        return select(kernel, self.left), select(kernel, self.right)

    def squared_distance(self, kernel: Kernel) -> Float[Tensor, "n m"]:
        """|p - q|² in the columns that a kernel sees."""
        active = active_dims(kernel)
        key = None if active is None else tuple(active.tolist())
        if key not in self._squares:
            left, right = self.selected(kernel)
            self._squares[key] = (left[:, None, :] - right[None, :, :]).square().sum(-1)
        return self._squares[key]


def gram(kernel: Kernel, pairs: PointPairs) -> Float[Tensor, "n m"]:
    """k(p, q) of all pairs: by a closed form where the kernel has one lengthscale, otherwise by GPyTorch."""
    # Exact types: a subclass may compute something else.
    if type(kernel) is ScaleKernel:
        return kernel.outputscale * gram(kernel.base_kernel, pairs)
    if type(kernel) is AdditiveKernel or type(kernel) is ProductKernel:
        total: Tensor | None = None
        for part in children_of(kernel):
            block = gram(part, pairs)
            if total is not None:
                block = total + block if type(kernel) is AdditiveKernel else total * block
            total = block
        assert total is not None, "a sum or product has at least one part"
        return total
    if type(kernel) is ConstantKernel or type(kernel) is CentredLinearKernel:
        return kernel.forward(*pairs.selected(kernel))
    if (kernel.ard_num_dims or 1) == 1:
        if (profile := radial_profile(kernel)) is not None:
            # κ(|p - q|²/λ²)
            return profile(pairs.squared_distance(kernel) / kernel.lengthscale.square(), 0)
        left, right = pairs.selected(kernel)
        if type(kernel) is PeriodicKernel and left.shape[1] == 1:
            # exp(-2 sin²(πτ/p)/λ) = exp((cos(2πτ/p) - 1)/λ), which has no kink at τ = 0
            angle = (left - right.mT) * (2 * math.pi / kernel.period_length)
            return (angle.cos() - 1).div(kernel.lengthscale).exp()
    values = kernel(pairs.left, pairs.right).to_dense()
    assert isinstance(values, torch.Tensor)
    return values
