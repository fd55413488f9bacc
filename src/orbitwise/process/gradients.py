"""Covariances of blocks of derivatives that share their points, and matrix-free products with them.

For a radial kernel κ(|δ|²), δ = p - q, a slope along v at p_i and one along u_j at q_j have the covariance
S_ij v·u_j - B_ij (δ·v)(δ·u_j), S = -2κ′, B = 4κ″. Contracting the first term over atoms before the product
over d makes the number of kernel evaluations independent of the number of directions. Under h(p·q) the
covariance is S_ij v·u_j + B_ij (v·q_j)(p_i·u_j), S = h′, B = h″.

Products (RKHS eq. 7, 8, 9 and 11): the slopes at the points p from slopes u are G = SU + CQ - P∘(C1), C =
B∘T, T_ij = δ·u_j (for dot products T_ij = p_i·u_j, without the last term): three matrix products of l²d each
instead of (ld)² numbers. The values at the points p are (S∘T)1. Directions enter first, u_j = w_j Σ_k a_jk
v_jk, and leave last.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.functional import Atoms, Block, Gradients, exact_atoms
from orbitwise.process.closed_forms import (
    SHARP,
    Blur,
    Part,
    check_blur,
    dot_product_profile,
    in_lengthscales,
    jet,
    parts_of_sum,
    radial_profile,
    rbf,
    snapped_squared_distance,
    variance_of,
    widened,
)


def takes_gradients(kernel: Kernel, left: Block, right: Block) -> bool:
    """Whether `gradient_covariance` applies: a sum of radial kernels, and rows of values or of slopes.

    Rows that mix the two, and slopes of local averages, need the general path.
    """
    if max(left.points.dim(), right.points.dim()) > 3 or len(kernel.batch_shape) > 0:
        return False
    if any(block.has_slopes and (block.has_values or block.blur is not None) for block in (left, right)):
        return False
    return all(part.is_radial or not part.has_slopes for part in parts_of_sum(kernel))


def gradient_covariance(kernel: Kernel, left: Block, right: Block) -> Float[Tensor, "n m"]:
    """The covariance of two blocks, one of them `Gradients`, the other too or atoms of values or slopes."""
    if (slopes := left.slopes()) is None:
        return gradient_covariance(kernel, right, left).T
    total = slopes.points.new_zeros(slopes.num_rows, right.num_rows)
    for pair in _pairs(kernel, slopes, right):
        total = total + _pair_covariance(pair, slopes, right)
    return total


def _pair_covariance(pair: _Pair, left: Gradients, right: Block) -> Float[Tensor, "n m"]:
    """The contribution of one radial kernel to the covariance of slopes with slopes or values."""
    (n, s), (m, t) = left.weights.shape, right.weights.shape
    p, q, v = pair.p, pair.q, pair.part.select(left.directions) * pair.metric
    weights = left.weights.flatten()[:, None] * right.weights.flatten()
    slope = (weights * pair.slope).reshape(n, s, m, t)
    # δ·v for every direction k: [n s k, m t]
    along_v = (p.reshape(n, s, 1, -1) * v).sum(-1).reshape(-1, 1) - v.flatten(0, 2) @ q.T
    along_v = along_v.reshape(n, s, -1, m, t)
    if (others := right.slopes()) is None:
        # ∂_v κ = -S δ·v
        return -torch.einsum("nsmt,nskmt->nkm", slope, along_v).flatten(0, 1)
    w = pair.part.select(others.directions) * pair.metric
    along_w = (p @ w.flatten(0, 2).T).reshape(n, s, m, t, -1) - (q.reshape(m, t, 1, -1) * w).sum(-1)
    # S v·w first over t, then over s and d: Σ_s v_isk · (Σ_t S_isjt w_jtl); then B (δ·v)(δ·w)
    carried = torch.einsum("nsmt,mtld->nsmld", slope, w)
    first = torch.einsum("nskd,nsmld->nkml", v, carried)
    bend = (weights * pair.bend).reshape(n, s, 1, m, t)
    second = torch.einsum("nskmt,nsmtl->nkml", along_v * bend, along_w)
    return (first - second).reshape(left.num_rows, right.num_rows)


NUMBERS_AT_ONCE = 2**21
"""Entries of T in memory at once: 16 MiB in double precision, for any number of right-hand sides."""


def has_products(kernel: Kernel) -> bool:
    """Whether products with this kernel's derivatives are available without forming covariances."""
    return not len(kernel.batch_shape) and all(
        part.is_radial or dot_product_profile(part.kernel) is not None or not part.has_slopes
        for part in parts_of_sum(kernel)
    )


def takes_products(kernel: Kernel, left: Block, right: Block) -> bool:
    """Whether `gradient_product` applies to two blocks that are not both expanded.

    They are blocks of gradients, or one of them holds exact values.
    """
    is_value = [not (block.has_slopes or block.is_drawn) and block.blur is None for block in (left, right)]
    is_block = [not block.is_expanded for block in (left, right)]
    serves = all(a or b for a, b in zip(is_block, is_value, strict=True))
    return serves and max(left.points.dim(), right.points.dim()) == 3 and has_products(kernel)


@torch.no_grad()
def gradient_product(
    kernel: Kernel, left: Block, right: Block, vectors: Float[Tensor, "r c"]
) -> Float[Tensor, "q c"]:
    """cov(left, right) v for `Gradients`, slopes or values on either side, slopes on at least one.

    Not differentiable. For several products with the same block, use a `GradientOperator`.
    """
    slopes, other_slopes = _slopes_of(left), _slopes_of(right)
    _check(right, vectors)
    if other_slopes is not None:
        pairs = _pairs(kernel, left, other_slopes)
        found, values = _from_slopes(left, other_slopes, vectors, pairs)
        return values if found is None else found
    if slopes is not None:
        return _from_values(kernel, slopes, right.expand(), vectors)
    raise ValueError("Neither block has derivatives; multiply by process.covariance(left, right) instead.")


@final
class GradientOperator:
    """The covariance N of a block of slopes with l atoms, as an operator that is never formed.

    It keeps the kernel matrix of the atoms, l² numbers (two for kernels other than the Gaussian, and for
    every part of a sum). A product costs 6l²d operations per right-hand side, for all d derivatives or any
    number k of directions (then 4lkd more), and needs memory for a few copies of the vectors and
    `NUMBERS_AT_ONCE` more numbers.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        A kernel for which `has_products` holds.
    block : Gradients
        The derivatives L.
    """

    @torch.no_grad()
    def __init__(self, kernel: Kernel, block: Gradients) -> None:
        self.kernel, self.block = kernel, block
        self._own = _pairs(kernel, block, block)

    @classmethod
    def of(cls, kernel: Kernel, block: Block) -> GradientOperator | None:
        """The operator of a block of gradients; None for other rows, and for kernels without products."""
        slopes = None if block.is_expanded else block.slopes()
        return cls(kernel, slopes) if slopes is not None and has_products(kernel) else None

    @property
    def num_rows(self) -> int:
        """The size of N."""
        return self.block.num_rows

    @torch.no_grad()
    def product(self, vectors: Float[Tensor, "r c"]) -> Float[Tensor, "r c"]:
        """N v."""
        return self.product_and_values(vectors)[0]

    @torch.no_grad()
    def product_and_values(
        self, vectors: Float[Tensor, "r c"]
    ) -> tuple[Float[Tensor, "r c"], Float[Tensor, "n c"]]:
        """N v, and the values cov(g(p), L g) v at the block's own points, at no extra cost."""
        _check(self.block, vectors)
        slopes, values = _from_slopes(self.block, self.block, vectors, self._own)
        assert slopes is not None
        return slopes, values

    def values_product(self, rows: Block, vectors: Float[Tensor, "r c"]) -> Float[Tensor, "n c"]:
        """cov(rows, L g) v for rows of values, such as `Evaluation().atoms(x)`: predictions from slopes."""
        return gradient_product(self.kernel, rows, self.block, vectors)

    def slopes_product(self, rows: Block, vectors: Float[Tensor, "n c"]) -> Float[Tensor, "r c"]:
        """cov(L g, rows) v for rows of values."""
        return gradient_product(self.kernel, self.block, rows, vectors)

    @torch.no_grad()
    def columns(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "r n"]:
        """cov(L g, g(x)), one column for every point: the matrix that `slopes_product` multiplies by."""
        weights = torch.ones_like(x[:, :1])
        slopes = x.new_zeros(len(_flat(self.block)), self.block.points.shape[-1], len(x))
        for pair in _pairs(self.kernel, exact_atoms(x[:, None], weights), self.block):
            # S_ij (p_i - q_j) for every pair
            moved = pair.p.T[None] - pair.relative * pair.q[:, :, None]
            pair.add_to(slopes, moved.mul_(pair.slope.T[:, None]))
        return _contract(self.block, slopes)

    @torch.no_grad()
    def diagonal(self) -> Float[Tensor, " r"]:
        """The variances of the rows."""
        atoms, count = self.block.expand(), self.block.num_atoms
        step = max(1, NUMBERS_AT_ONCE // (count * max(count, atoms.points.shape[-1])))
        found = []
        for start in range(0, self.num_rows, step):
            part = atoms.rows(slice(start, start + step))
            p, v = part.points, part.tangents
            slopes = jet(self.kernel, p, p, v, v, rows=True).mixed
            assert slopes is not None
            found.append(torch.einsum("ns,nst,nt->n", part.weights, slopes, part.weights))
        return torch.cat(found)


@torch.no_grad()
def squared_slopes(
    kernel: Kernel, points: Float[Tensor, "t d"], block: Gradients
) -> Float[Tensor, "t t"] | None:
    """M_jl = Σ_r cov(g(p_j), L_r g) cov(L_r g, g(p_l)) over all slopes of a block, so Σ_r (L_r f)² = αᵀMα.

    With S_ji and δ_ji = p_j - q_i it is Σ_i S_ji S_li δ_ji·δ_li: four products of t²l instead of t²ld, for
    one radial kernel and the same directions at every point. None for other kernels and blocks.
    """
    basis, parts = _shared_basis(block), parts_of_sum(kernel)
    if basis is None or len(parts) != 1 or len(kernel.batch_shape) > 0 or not parts[0].is_radial:
        return None
    values = exact_atoms(points[:, None], torch.ones_like(points[:, :1]))
    pair = _pair(parts[0], _flat(values), _flat(block), (variance_of(values), variance_of(block)))
    along = pair.part.select(basis) * pair.metric
    # coordinates along the directions, about a common centre
    p, q = (pair.p - pair.q.mean(0)) @ along.mT, (pair.q - pair.q.mean(0)) @ along.mT
    weighted = pair.slope * block.weights.flatten().square()
    # (p_j - q_i)·(p_l - q_i) = p_j·p_l - p_j·q_i - q_i·p_l + q_i·q_i
    mixed = (pair.slope * (p @ q.mT)) @ weighted.mT
    own = (weighted * q.square().sum(1)) @ pair.slope.mT
    total = (weighted @ pair.slope.mT).mul_(p @ p.mT)
    return total.add_(own).sub_(mixed).sub_(mixed.mT)


class _Pair(NamedTuple):
    """One radial or dot-product kernel evaluated for two lists of points."""

    p: Float[Tensor, "l e"]
    q: Float[Tensor, "m e"]
    slope: Float[Tensor, "l m"]
    bend: Float[Tensor, "l m"]
    metric: Float[Tensor, "1 e"]
    relative: float  # 1 for radial kernels, 0 for dot products
    part: Part

    def scaled(self, slopes: Float[Tensor, "m d c"]) -> Float[Tensor, "m e c"]:
        """u in the coordinates of the kernel."""
        columns = self.part.columns
        chosen = slopes if columns is None else slopes.index_select(1, columns)
        return chosen if bool((self.metric == 1).all()) else chosen * self.metric[..., None]

    def add_to(self, slopes: Float[Tensor, "l d c"], own: Float[Tensor, "l e c"]) -> None:
        """Slopes in the coordinates of the kernel added to those in the coordinates of the points."""
        own.mul_(self.metric[..., None])
        if self.part.columns is None:
            slopes.add_(own)
        else:
            slopes.index_add_(1, self.part.columns, own)


def _pairs(kernel: Kernel, left: Block, right: Block) -> list[_Pair]:
    """The parts of a sum of kernels that have slopes."""
    if len(kernel.batch_shape) > 0 or left.points.dim() != 3 or right.points.dim() != 3:
        raise ValueError("Gradient products take one kernel and one block, without batch dimensions.")
    blur = variance_of(left), variance_of(right)
    return [_pair(part, _flat(left), _flat(right), blur) for part in parts_of_sum(kernel) if part.has_slopes]


def _pair(part: Part, p: Tensor, q: Tensor, blur: Blur) -> _Pair:
    kernel, p, q = part.kernel, part.select(p), part.select(q)
    scale = torch.as_tensor(part.scale, dtype=p.dtype, device=p.device)
    if (profile := radial_profile(kernel)) is not None:
        lengthscale = kernel.lengthscale.to(p)
        if blur != SHARP:
            check_blur(kernel)
            lengthscale, factor = widened(lengthscale, p.shape[-1], blur)
            scale = scale * factor
        metric = lengthscale.reciprocal()
        p, q = in_lengthscales(p, q, lengthscale)
        squares = snapped_squared_distance(p, q)
        slope = -2 * scale * profile(squares, 1)
        bend = slope if profile is rbf else 4 * scale * profile(squares, 2)
        return _Pair(p, q, slope, bend, metric, 1.0, part)
    if (found := dot_product_profile(kernel)) is not None:
        variance, profile = found
        metric = variance.to(p).sqrt().reshape(1, -1)
        p, q = p * metric, q * metric
        product = p @ q.T
        return _Pair(p, q, scale * profile(product, 1), scale * profile(product, 2), metric, 0.0, part)
    raise ValueError(
        f"{type(kernel).__name__} has no products with its derivatives here. Use RBF, Matérn, rational "
        "quadratic, polynomial or linear kernels, their scalings and sums, or multiply by "
        "process.covariance(block)."
    )


def _from_slopes(
    left: Block, right: Gradients, vectors: Tensor, pairs: list[_Pair]
) -> tuple[Tensor | None, Tensor]:
    """Slopes (None where `left` are values) and values at the points of `left`, from slopes at `right`."""
    count, columns = len(_flat(left)), vectors.shape[1]
    wanted = left.slopes()
    directions = _spread(right, vectors)
    slopes = vectors.new_zeros(0 if wanted is None else count, left.points.shape[-1], columns)
    values = vectors.new_zeros(count, columns)
    for pair in pairs:
        own = pair.scaled(directions)
        # SU, all right-hand sides in one product
        total = None if wanted is None else (pair.slope @ own.flatten(1)).unflatten(1, own.shape[1:])
        _add_bends(pair, own, total, values)
        if total is not None:
            pair.add_to(slopes, total)
    weights = left.weights.flatten()[:, None]
    values = (weights * values).reshape(len(left.points), -1, columns).sum(1)
    return (None if wanted is None else _contract(wanted, slopes)), values


def _add_bends(pair: _Pair, own: Tensor, total: Tensor | None, values: Tensor) -> None:
    """CQ - P∘(C1) added to `total`, and (S∘T)1 to `values`, a tile of points and columns at a time."""
    count, others = pair.slope.shape
    batch = max(1, NUMBERS_AT_ONCE // (count * others))
    step = max(1, NUMBERS_AT_ONCE // (batch * others))
    minus = torch.full_like(pair.p[:, :1], -pair.relative)
    p, q = torch.cat([pair.p, minus], 1), torch.cat([pair.q, torch.ones_like(pair.q[:, :1])], 1)
    # u with q·u below it, so that one product makes T = p·u - q·u
    along = torch.einsum("me,mec->mc", pair.q, own)
    for first in range(0, own.shape[2], batch):
        part = slice(first, first + batch)
        stacked = torch.cat([own[:, :, part], along[:, None, part]], 1).permute(1, 2, 0).flatten(1)
        for start in range(0, count, step):
            rows = slice(start, start + step)
            tile = (p[rows] @ stacked).unflatten(1, (-1, others))
            if total is None or pair.bend is not pair.slope:
                values[rows, part] += torch.bmm(tile, pair.slope[rows, :, None])[..., 0]
            if total is None:
                continue
            # C and [CQ, C1]
            moved = tile.mul_(pair.bend[rows, None]) @ q
            if pair.bend is pair.slope:
                values[rows, part] += moved[..., -1]
            moved = moved[..., :-1] - pair.relative * pair.p[rows, None] * moved[..., -1:]
            total[rows, :, part] += moved.transpose(1, 2)


def _from_values(kernel: Kernel, left: Gradients, right: Atoms, vectors: Tensor) -> Tensor:
    """Slopes at the points of `left` from values at `right`: Σ_i S_ij (p_i - q_j) a_i."""
    values = (right.weights[..., None] * vectors[:, None]).flatten(0, 1)
    slopes = vectors.new_zeros(len(_flat(left)), left.points.shape[-1], vectors.shape[1])
    for pair in _pairs(kernel, right, left):
        # P∘a: [l, e c]
        moved = (pair.p[:, :, None] * values[:, None]).flatten(1)
        total = (pair.slope.T @ moved).unflatten(1, (-1, vectors.shape[1]))
        if pair.relative:
            total -= pair.q[:, :, None] * (pair.slope.T @ values)[:, None]
        pair.add_to(slopes, total)
    return _contract(left, slopes)


def _flat(block: Block) -> Float[Tensor, "m d"]:
    return block.points.flatten(0, 1)


def _shared_basis(block: Gradients) -> Float[Tensor, "k d"] | None:
    """Directions that are the same at every point, such as those of all derivatives."""
    directions = block.directions
    same = block.points.shape[1] == 1 and (len(directions) == 1 or directions.stride(0) == 0)
    return directions[0, 0] if same else None


def _is_identity(basis: Tensor) -> bool:
    return basis.shape[0] == basis.shape[1] and torch.equal(basis, torch.eye(len(basis)).to(basis))


def _spread(block: Gradients, vectors: Float[Tensor, "r c"]) -> Float[Tensor, "m d c"]:
    """u_j = w_j Σ_k a_jk v_jk for every atom."""
    split = vectors.unflatten(0, (len(block.points), -1))
    if (basis := _shared_basis(block)) is None:
        slopes = torch.einsum("nskd,nkc->nsdc", block.directions, split).flatten(0, 1)
    else:
        slopes = split if _is_identity(basis) else basis.T @ split
    weights = block.weights.flatten()
    return slopes if bool((weights == 1).all()) else slopes * weights[:, None, None]


def _contract(block: Gradients, slopes: Float[Tensor, "m d c"]) -> Float[Tensor, "r c"]:
    """Σ_s w_is v_isk · G_is for every row."""
    weights = block.weights.flatten()
    if not bool((weights == 1).all()):
        slopes = slopes * weights[:, None, None]
    if (basis := _shared_basis(block)) is None:
        shaped = slopes.unflatten(0, block.weights.shape)
        return torch.einsum("nskd,nsdc->nkc", block.directions, shaped).flatten(0, 1)
    return (slopes if _is_identity(basis) else basis @ slopes).flatten(0, 1)


def _slopes_of(block: Block) -> Gradients | None:
    """Rows of slopes as gradients; None for rows of values."""
    if block.is_drawn:
        raise ValueError("Gradient products take no rows drawn at random; freeze the orbit first.")
    if block.has_slopes and block.has_values:
        raise ValueError("Gradient products take rows of values or of slopes, not rows that mix them.")
    return block.slopes()


def _check(block: Block, vectors: Tensor) -> None:
    if len(vectors) != block.num_rows or vectors.dtype != block.points.dtype:
        raise ValueError(
            f"A block of {block.num_rows} rows in {block.points.dtype} takes vectors [{block.num_rows}, c] "
            f"of that type, not {vectors.dtype} of shape {tuple(vectors.shape)}."
        )
