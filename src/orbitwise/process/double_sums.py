"""Covariances of rows of values, fast: double sums over orbits with their own gradient, and single values.

G_ij = Σ_s Σ_t w_is w'_jt κ(|p_is - p'_jt|²), by tiles that stay in cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
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
KEPT_PAIRS = 2**23
"""Up to this many pairs of points of two sides keep their distances for the backward pass."""


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
    lengthscale, centre = part.kernel.lengthscale.to(points), points.detach().mean(dim=(0, 1))
    sides = [each for each in (points, right_points) if each is not None]
    # Products cancel badly far from the origin.
    if is_far(*(((each.detach() - centre).div_(lengthscale)).square_().sum(-1) for each in sides)):
        return None
    right_weights = None if right is None else right.weights
    whole: Tensor = _DoubleSum.apply(
        profile, centre, lengthscale, points, left.weights, right_points, right_weights
    )
    return part.scale * whole


@final
class _DoubleSum(torch.autograd.Function):
    """The double sum and its gradient; points and weights of the right are None if both sides are equal."""

    @staticmethod
    def forward(
        ctx: Any,
        profile: Profile,
        centre: Tensor,
        lengthscale: Tensor,
        points: Tensor,
        weights: Tensor,
        right_points: Tensor | None,
        right_weights: Tensor | None,
    ) -> Tensor:
        ctx.profile = profile
        ctx.save_for_backward(centre, lengthscale, points, weights, right_points, right_weights)
        left, right = _sides(profile, centre, lengthscale, points, weights, right_points, right_weights)
        result = torch.zeros(left.num_rows, right.num_rows, dtype=torch.float64, device=points.device)
        count = left.num_rows * left.num_atoms * right.num_rows * right.num_atoms
        keeps = any(ctx.needs_input_grad) and left is not right and count <= KEPT_PAIRS
        ctx.kept = []
        for rows, columns in _tiles(left, right):
            exponents = left.exponents(rows, right, columns)
            if keeps:
                ctx.kept.append(exponents)
            values = left.values(exponents.clone() if keeps else exponents)
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
        # read once, because saved tensors that are computed again can be unpacked only once
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable_gradients(ctx.profile, saved, gradients[0])
        lengthscale = saved[1]
        to_lengthscale, *wanted = ctx.needs_input_grad[2:]
        left, right = _sides(ctx.profile, *saved)
        sides = [left] if left is right else [left, right]
        # one lengthscale has its gradient from distances; several have it from the points of both sides
        is_one = lengthscale.numel() == 1
        for side, moves in zip(sides, wanted[::2], strict=False):
            side.moves = moves or (to_lengthscale and not is_one)
        left.weighs = right.weighs = wanted[1] or wanted[3]
        left.stretches = to_lengthscale and is_one
        # a pair of rows of a symmetric matrix is visited once but contributes to two entries
        upstream = gradients[0] + gradients[0].T if left is right else gradients[0]
        for number, (rows, columns) in enumerate(_tiles(left, right)):
            is_diagonal = left is right and rows == columns
            exponents = ctx.kept[number] if ctx.kept else left.exponents(rows, right, columns)
            left.differentiate(exponents, rows, right, columns, upstream[rows, columns], is_diagonal)
        ctx.kept = []
        slopes = [each.point_gradient() if each.moves else None for each in sides]
        stretch: Tensor | None = None
        if left.stretches:
            # distances are in units of λ, so their squares q move by -2q dλ/λ
            stretch = (-2 * left.stretch / lengthscale.double()).to(lengthscale)
        elif to_lengthscale:
            # p/λ moves by -p/λ² dλ
            pairs = zip(sides, slopes, strict=True)
            moved = [slope * each.points for each, slope in pairs if slope is not None]
            stretch = -sum(each.sum((0, 1)) for each in moved) / lengthscale
        results: list[Tensor | None] = []
        for side, slope in zip(sides, slopes, strict=True):
            weight = side.weight_gradient if side.weighs else None
            results += [None if slope is None else slope.div_(lengthscale), weight]
        return None, None, stretch, *results, *[None] * (4 - len(results))


@final
class _Side:
    """One side of a double sum: its scaled points and weights, and their accumulated gradients.

    `moves` and `weighs` say whether gradients of points and of weights are wanted, and `stretches` whether
    the sum of w w' κ′ q over all pairs is, which is the `stretch`.
    """

    moves = weighs = stretches = False

    def __init__(
        self, points: Tensor, weights: Tensor, centre: Tensor, lengthscale: Tensor, profile: Profile
    ) -> None:
        self.num_rows, self.num_atoms, width = points.shape
        self.weights, self.profile = weights, profile
        self.shares_weights = weights.stride(0) == 0
        # |p - q|² = [p, |p|², 1]·[-2q, 1, |q|²]; for e^{-|p-q|²/2}, what stands in the exponent
        self.factor, self.half = (1.0, -0.5) if profile is rbf else (-2.0, 1.0)
        self.as_left = points.new_empty(self.num_rows * self.num_atoms, width + 2)
        flat = self.as_left[:, :width]
        torch.sub(points.reshape(-1, width), centre, out=flat).div_(lengthscale)
        self.points = flat.view(*points.shape[:2], width)
        self.as_left[:, width] = torch.linalg.vector_norm(flat, dim=-1).square_().mul_(self.half)
        self.as_left[:, width + 1] = 1.0
        self.stretch = points.new_zeros((), dtype=torch.float64)

    @cached_property
    def as_right(self) -> Tensor:
        """[-2q, 1, |q|²] of every point."""
        width = self.as_left.shape[1] - 2
        right = self.as_left.clone()
        right[:, :width] *= self.factor
        right[:, width], right[:, width + 1] = 1.0, self.as_left[:, width]
        return right

    @cached_property
    def weighted(self) -> Tensor:
        """w [p, 1] of every point, and sums of it over the other side are its `moment`."""
        weighted = self.as_left[:, :-1] * self.weights.reshape(-1, 1)
        weighted[:, -1] = self.weights.reshape(-1)
        return weighted

    @cached_property
    def moment(self) -> Tensor:
        """Σ_jt C w'_jt [p'_jt, 1] of every point."""
        return torch.zeros_like(self.as_left[:, :-1])

    @cached_property
    def weight_gradient(self) -> Tensor:
        """The gradient with respect to the weights."""
        return torch.zeros_like(self.points[..., 0])

    def exponents(self, rows: slice, other: _Side, columns: slice) -> Tensor:
        """What κ depends on, of all pairs of points of these rows: [rows·s, columns·t]."""
        inner = self.as_left[self._flat(rows)] @ other.as_right[other._flat(columns)].T
        # rounding may make the distance of equal points negative
        return inner.clamp_max_(0) if self.profile is rbf else inner.relu_()

    def values(self, exponents: Tensor) -> Tensor:
        """κ; the exponents may be overwritten."""
        return exponents.exp_() if self.profile is rbf else self.profile(exponents, 0)

    def weighted_sum(self, values: Tensor, rows: slice) -> Tensor:
        """Σ_t values w_t: [a, rows]."""
        values = values.unflatten(-1, (-1, self.num_atoms))
        return values @ self.weights[0] if self.shares_weights else (values * self.weights[rows]).sum(-1)

    def differentiate(
        self,
        exponents: Tensor,
        rows: slice,
        other: _Side,
        columns: slice,
        upstream: Tensor,
        is_diagonal: bool,
    ) -> None:
        """Add the contribution of a tile to the gradients of both sides."""
        mine, theirs = self._flat(rows), other._flat(columns)
        # A tile on the diagonal holds both orders of each pair; elsewhere the other side gets its own share.
        factor = (0.5 * upstream if is_diagonal else upstream)[:, None, :, None]
        shape = (-1, self.num_atoms, upstream.shape[1], other.num_atoms)
        slope = exponents.exp() if self.profile is rbf else self.profile(exponents, 1)
        if self.weighs:
            value = slope if self.profile is rbf else self.profile(exponents, 0)
            seen = (value.view(shape) * factor).view_as(exponents)
            self.weight_gradient[rows] += (seen @ other.weights.reshape(-1)[theirs]).view(-1, self.num_atoms)
            gained = seen.T @ self.weights.reshape(-1)[mine]
            other.weight_gradient[columns] += gained.view(-1, other.num_atoms)
        coefficients = slope.view(shape).mul_(factor).view_as(exponents)
        if self.moves:
            self.moment[mine].addmm_(coefficients, other.weighted[theirs])
        if other.moves:
            other.moment[theirs].addmm_(coefficients.T, self.weighted[mine])
        if self.stretches:
            stretched = coefficients.mul_(exponents) @ other.weights.reshape(-1)[theirs]
            self.stretch += stretched.double() @ self.weights.reshape(-1)[mine].double()

    def point_gradient(self) -> Tensor:
        """The gradient 2 w_is Σ_jt C w'_jt (p_is - p'_jt), from Σ_jt C w'_jt [p'_jt, 1]."""
        moment = self.moment.view(*self.points.shape[:2], self.moment.shape[-1])
        factor = -1.0 if self.profile is rbf else 2.0  # κ′ = -½κ there, and κ is what was summed
        found = (moment[..., -1:] * self.points).sub_(moment[..., :-1])
        return found.mul_(factor * self.weights[..., None])

    def _flat(self, rows: slice) -> slice:
        return slice(rows.start * self.num_atoms, rows.stop * self.num_atoms)


def own_sum(kernel: Kernel, rows: Atoms) -> Float[Tensor, " n"] | None:
    """cov(L_i g, L_i g) of every row of values, the diagonal of `double_sum(kernel, rows)`.

    None if points of a row are so far from each other that products would cancel.
    """
    (part,) = parts_of_sum(kernel)
    profile = radial_profile(part.kernel)
    assert profile is not None
    points = part.select(rows.points)
    lengthscale = part.kernel.lengthscale.to(points)
    with torch.no_grad():
        # half of the distance of a row's farthest point from its first is at most this
        reach = (points - points[:, :1]).abs_().div_(lengthscale).square_().sum(-1)
    if is_far(reach):
        return None
    whole: Tensor = _OwnSum.apply(profile, lengthscale, points, rows.weights)
    return part.scale * whole


@final
class _OwnSum(torch.autograd.Function):
    """Σ_s Σ_t w_s w_t κ(|p_s - p_t|²) of every row, and its gradient."""

    @staticmethod
    def forward(ctx: Any, profile: Profile, lengthscale: Tensor, points: Tensor, weights: Tensor) -> Tensor:
        ctx.profile = profile
        ctx.save_for_backward(lengthscale, points, weights)
        exponents = _own_exponents(profile, _from_first(points, lengthscale))
        values = exponents.exp_() if profile is rbf else profile(exponents, 0)
        return torch.einsum("ns,nst,nt->n", weights, values, weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # read once, because saved tensors that are computed again can be unpacked only once
        profile, saved = ctx.profile, ctx.saved_tensors
        (lengthscale, points, weights), (upstream,) = saved, gradients
        if torch.is_grad_enabled():
            scaled = _from_first(points, lengthscale)
            squares = (scaled[:, :, None] - scaled[:, None, :]).square().sum(-1)
            whole = torch.einsum("ns,nst,nt->n", weights, profile(squares, 0), weights)
            return (None, *_gradients(whole, saved, upstream))
        scaled = _from_first(points, lengthscale)
        exponents = _own_exponents(profile, scaled)
        slope = exponents.exp() if profile is rbf else profile(exponents, 1)
        to_lengthscale: Tensor | None = None
        to_weights: Tensor | None = None
        if ctx.needs_input_grad[3]:
            values = slope if profile is rbf else profile(exponents, 0)
            to_weights = 2 * upstream[:, None] * torch.einsum("nst,nt->ns", values, weights)
        # C_st = ḡ w_s w_t κ′ (or κ = -2κ′); each pair counts twice, and q has the slope 2(p - p')
        factor = -2.0 if profile is rbf else 4.0
        coefficients = slope * (upstream[:, None] * weights)[:, :, None] * weights[:, None, :]
        if ctx.needs_input_grad[1] and lengthscale.numel() == 1:
            # distances are in units of λ, so their squares q move by -2q dλ/λ
            to_lengthscale = (-2 * (coefficients * exponents).sum() / lengthscale).view_as(lengthscale)
        moved = (factor * coefficients).sum(-1, keepdim=True) * scaled
        moved.baddbmm_(coefficients, scaled, alpha=-factor)
        if ctx.needs_input_grad[1] and lengthscale.numel() > 1:
            # p/λ moves by -p/λ² dλ
            to_lengthscale = (-(moved * scaled).sum((0, 1)) / lengthscale).view_as(lengthscale)
        return None, to_lengthscale, moved.div_(lengthscale), to_weights


def _from_first(points: Tensor, lengthscale: Tensor) -> Tensor:
    """Points of each row, from the first of them and in lengthscales."""
    return (points - points[:, :1]) / lengthscale


def _own_exponents(profile: Profile, points: Tensor) -> Tensor:
    """What κ depends on, of all pairs of points of every row: [n, s, s]."""
    products = points @ points.mT
    squares = products.diagonal(dim1=1, dim2=2)
    # |p - q|², or for e^{-|p-q|²/2} what stands in the exponent
    half = squares[:, :, None] + squares[:, None, :] - 2 * products
    return half.mul_(-0.5).clamp_max_(0) if profile is rbf else half.relu_()


def _gradients(whole: Tensor, inputs: Sequence[Tensor | None], upstream: Tensor) -> list[Tensor | None]:
    """Gradients that can be differentiated again, of those inputs that have any."""
    moving = [each for each in inputs if each is not None and each.requires_grad]
    found = iter(torch.autograd.grad(whole, moving, upstream, create_graph=True))
    return [None if each is None or not each.requires_grad else next(found) for each in inputs]


def _differentiable_gradients(
    profile: Profile, saved: tuple[Any, ...], upstream: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients by plain operations on all pairs, which can be differentiated again."""
    centre, lengthscale, points, weights, right_points, right_weights = saved
    if right_points is None or right_weights is None:
        right_points, right_weights = points, weights
    pairs = ((points, weights), (right_points, right_weights))
    (p, w), (q, v) = (((each - centre).flatten(0, 1) / lengthscale, weigh) for each, weigh in pairs)
    values = profile(squared_distance(p, q), 0).view(*w.shape, *v.shape)
    whole = torch.einsum("ns,nsmt,mt->nm", w, values, v)
    return (None, *_gradients(whole, saved, upstream))


def _sides(
    profile: Profile,
    centre: Tensor,
    lengthscale: Tensor,
    points: Tensor,
    weights: Tensor,
    right_points: Tensor | None,
    right_weights: Tensor | None,
) -> tuple[_Side, _Side]:
    left = _Side(points, weights, centre, lengthscale, profile)
    if right_points is None or right_weights is None:
        return left, left
    return left, _Side(right_points, right_weights, centre, lengthscale, profile)


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
