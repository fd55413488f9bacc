"""Process(mean, kernel): the base process g, and the one covariance function of all its functionals.

cov(L_i g, L'_j g) = Σ_s Σ_t w_is w'_jt k_g(p_is, p'_jt), and where atoms are derivatives, so is k_g. All
matrices are computed in tiles, forward and backward, so that memory is bounded for any number of atoms. If
the base kernel itself is invariant to an orbit's group, k_g(hx, hy) = k_g(x, y), one side of the double sum
suffices.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, final

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PolynomialKernel,
    ProductKernel,
    ScaleKernel,
)
from gpytorch.means import ConstantMean, LinearMean, Mean, ZeroMean
from gpytorch.module import Module
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from orbitwise.declarations import Field, Stored
from orbitwise.functionals.functional import Atoms, Block, Gradients
from orbitwise.kernels.bases import children_of
from orbitwise.kernels.wide_networks import WideNetworkKernel
from orbitwise.orbits.orbit import Orbit
from orbitwise.process.closed_forms import (
    assembled,
    is_mixed,
    jet,
    pieces,
    radial_profile,
    variance_of,
)
from orbitwise.process.double_sums import double_sum, own_sum, takes_double_sums
from orbitwise.process.gradients import gradient_covariance, gradient_product, takes_gradients, takes_products


class Moments(NamedTuple):
    """Mean, variance and mean square of every row, one column per output; outputs may share a variance.

    In training on drawn rows each entry is an unbiased estimate, so `mean_square` is not computed from the
    other two.
    """

    mean: Float[Tensor, "n c"]
    variance: Float[Tensor, " n"] | Float[Tensor, "n c"]
    mean_square: Float[Tensor, "n c"]


def is_rotation_invariant(kernel: Kernel) -> bool:
    """Whether the kernel is known to depend only on |x-y|², x·y, |x|² and |y|²."""
    if kernel.active_dims is not None:
        return False
    if type(kernel) is ScaleKernel:
        return is_rotation_invariant(kernel.base_kernel)
    if type(kernel) is AdditiveKernel or type(kernel) is ProductKernel:
        return all(is_rotation_invariant(part) for part in children_of(kernel))
    # one lengthscale per coordinate is never treated as invariant, even while they are equal:
    # values would agree, but gradients would not.
    if radial_profile(kernel) is not None or type(kernel) in (MaternKernel, LinearKernel):
        return kernel.ard_num_dims in (None, 1)
    return type(kernel) in (PolynomialKernel, ConstantKernel, WideNetworkKernel)


def check_asserted(
    kernel: Kernel, block: Block, rows: int = 3, elements: int = 32, tolerance: float = 1e-4
) -> bool:
    """Raise a ValueError unless k_g(hx, hy) = k_g(x, y), and its gradient, on some rows of a symmetric block.

    Returns whether the rows were sufficient: one row, or copies of it, do not test a stationary kernel.
    """
    size, count = 1 if block.symmetry is None else block.symmetry.size, block.points.shape[-3]
    some = block.rows(slice(None, None, max(1, count // rows)))
    some = replace(some, points=some.points.detach(), weights=some.weights.detach())
    # The atoms h·x of the rows: their covariance must not depend on h.
    seen = [
        _signature(kernel, some.take(slice(h, None, size))) for h in range(0, size, max(1, size // elements))
    ]
    gap = (torch.stack(seen) - seen[0]).abs().max() / seen[0].abs().max().clamp_min(1e-30)
    if not gap < tolerance:
        raise ValueError(
            "one_sided=True asserts that the kernel is invariant to the orbit's group, but on these inputs "
            "k(hx, hy), or its gradient by a hyperparameter, differs from k(x, y) by "
            f"{float(gap):.1e} of its size. Use one_sided='auto'."
        )
    return bool((some.points != some.points[..., :1, :, :]).any())


def _signature(kernel: Kernel, block: Block) -> Tensor:
    """The covariances of a block's rows, and their gradients by the hyperparameters."""
    with torch.enable_grad():
        gram = block_covariance(kernel, block)
        probe = torch.arange(gram.numel(), dtype=gram.dtype, device=gram.device).cos().reshape(gram.shape)
        free = [parameter for parameter in kernel.parameters() if parameter.requires_grad]
        slopes = torch.autograd.grad((gram * probe).sum(), free, allow_unused=True) if free else []
    return torch.cat([part.detach().flatten().to(gram) for part in (gram, *slopes) if part is not None])


Rows = Block | Sequence[Block]
ROWS_AT_ONCE = 1024
"""Rows whose covariances with all others are in memory at once in products."""
PRODUCT_PAIRS = 2**22
"""Pairs of points in memory at once in products of slopes: two matrices of 32 MiB in double precision."""
ROUNDING = 64
"""Variances below this many rounding units of the largest one are treated as zero."""


@final
class Process(Module):
    """g ~ GP(mean, kernel), for any GPyTorch mean and scalar kernel.

    Rows are one block of atoms, or a list of blocks of different widths, which are never padded. `one_sided`
    controls whether one side of a double sum over a group is skipped: "auto" if the kernel is known to be
    invariant to the group, True if you assert it (checked once on a few rows), False never.

    Parameters
    ----------
    mean : gpytorch.means.Mean or None
        E[g]; None is zero.
    kernel : gpytorch.kernels.Kernel
        The covariance of g, of one output. Derivatives need one known in `closed_forms`.
    one_sided : "auto" or bool, default="auto"
        Whether one side of the double sum over a group is skipped.
    """

    stored = Stored(
        {"mean": Field(read="mean_module")},
        {"_checked": Field((list,), Field((Orbit,)))},
    )

    def __init__(self, mean: Mean | None, kernel: Kernel, one_sided: Literal["auto"] | bool = "auto") -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise TypeError(f"kernel must be a gpytorch.kernels.Kernel, not {type(kernel).__name__}.")
        if one_sided not in ("auto", True, False):
            raise ValueError(f"one_sided must be 'auto', True or False, not {one_sided!r}.")
        self.mean_module = ZeroMean() if mean is None else mean
        self.kernel = kernel
        self.one_sided: Literal["auto"] | bool = one_sided
        self._checked: list[object] = []

    def stretched(self, factor: float) -> Process | None:
        """A copy with all learned lengthscales multiplied by a factor; None where that is not possible."""
        other = copy.deepcopy(self)
        found = False
        for kernel in other.kernel.modules():
            if isinstance(kernel, Kernel) and kernel.has_lengthscale and kernel.raw_lengthscale.requires_grad:
                lengthscale = factor * kernel.lengthscale.detach()
                constraint = kernel.constraint_for_parameter_name("raw_lengthscale")
                if constraint is not None and not constraint.check(lengthscale):
                    return None
                kernel.lengthscale, found = lengthscale, True
        return other if found else None

    def covariance(
        self, left: Rows, right: Rows | None = None, row_block: int | None = None
    ) -> Float[Tensor, "*batch n m"]:
        """cov(L g, L' g); with `right` left out, the covariance matrix of `left`, symmetric."""
        lefts = [self._usable(block) for block in as_blocks(left)]
        if right is not None:
            rights = [self._usable(block) for block in as_blocks(right)]
            table = [[block_covariance(self.kernel, a, b, row_block) for b in rights] for a in lefts]
            return _joined(table)
        # the lower half, block by block, and its mirror image
        lower = [
            [block_covariance(self.kernel, a, None if a is b else b, row_block) for b in lefts[: i + 1]]
            for i, a in enumerate(lefts)
        ]
        count = len(lefts)
        return _joined(
            [[lower[i][j] if j <= i else lower[j][i].mT for j in range(count)] for i in range(count)]
        )

    def variance(self, rows: Rows, row_block: int | None = None) -> Float[Tensor, "*batch n"]:
        """var(L g) of every row, at the cost of the diagonal."""
        return torch.cat(
            [self.paired_covariance(block, block, row_block) for block in as_blocks(rows)], dim=-1
        )

    def paired_covariance(
        self, left: Block, right: Block, row_block: int | None = None
    ) -> Float[Tensor, "*batch n"]:
        """cov(L_i g, L'_i g) of row i of one block with row i of another."""
        return paired_covariance(self.kernel, self._usable(left), self._usable(right), row_block)

    def product(self, left: Rows, right: Rows, vectors: Float[Tensor, "m c"]) -> Float[Tensor, "n c"]:
        """cov(L g, L' g) v, without forming the covariance if its structure allows that."""
        rights = as_blocks(right)
        parts = vectors.split([block.num_rows for block in rights])
        totals = []
        for each in as_blocks(left):
            terms = [self._block_product(each, *pair) for pair in zip(rights, parts, strict=True)]
            totals.append(functools.reduce(torch.add, terms))
        return torch.cat(totals)

    def _block_product(self, left: Block, right: Block, vectors: Tensor) -> Tensor:
        left, right = one_of_equal_symmetry(self._usable(left), self._usable(right))
        is_plain = left.is_expanded and right.is_expanded
        if not is_plain and not torch.is_grad_enabled() and takes_products(self.kernel, left, right):
            # no covariance is formed, so only pairs of points are in memory
            pairs = left.num_atoms * right.num_atoms * len(right.points)
            bands = _bands(left, PRODUCT_PAIRS // pairs)
            return torch.cat([gradient_product(self.kernel, band, right, vectors) for band in bands])
        bands = _bands(left, ROWS_AT_ONCE * len(left.points) // left.num_rows)
        slopes = None if right.is_expanded else right.slopes()
        if slopes is not None and vectors.shape[1] < slopes.num_directions:
            # one slope per point, Σ_k c_ik of its rows (i, k)
            shape = (len(slopes.points), -1)
            combined = [slopes.combine(column.reshape(shape)) for column in vectors.T]
            return torch.stack([self.covariance(left, each).sum(-1) for each in combined], dim=-1)
        return torch.cat([self.covariance(band, right) @ vectors for band in bands])

    def mean(self, rows: Rows) -> Float[Tensor, "*batch n"]:
        """E[L g] of every row."""
        return torch.cat([_block_mean(self.mean_module, block) for block in as_blocks(rows)], dim=-1)

    def atom_covariance(self, left: Atoms, right: Atoms) -> Float[Tensor, "*batch n s m t"]:
        """The covariance of single atoms, neither weighted nor summed."""
        return atom_covariance(self.kernel, left, right)

    def normalize(self, atoms: Atoms) -> Atoms:
        """Rows scaled to unit prior variance: the normalised double-sum kernel (LIM-A eq. 2)."""
        variance = self.variance(atoms)
        # A row that is almost surely zero (an anti-symmetric f on its mirror) stays zero.
        floor = (
            ROUNDING
            * torch.finfo(variance.dtype).eps
            * variance.detach().amax(-1, keepdim=True).clamp_min(1e-30)
        )
        return atoms.scale(torch.where(variance > floor, variance.clamp_min(floor).rsqrt(), 0))

    def shares_symmetry(self, block: Block) -> bool:
        """Whether one side of a double sum over the block's group suffices for this kernel."""
        return self._usable(block).symmetry is not None

    def _usable(self, block: Block) -> Block:
        """The block, without its symmetry unless this kernel is known to share it."""
        symmetry = block.symmetry
        if symmetry is None:
            return block
        proved = symmetry.isometric and is_rotation_invariant(self.kernel)
        if self.one_sided == "auto" and proved:
            return block
        if self.one_sided is True:
            known = proved or any(token is symmetry.token for token in self._checked)
            if not known and check_asserted(self.kernel, block):
                self._checked.append(symmetry.token)
            return block
        return replace(block, symmetry=None)


def as_blocks(rows: Rows) -> list[Block]:
    """Rows as a list of blocks."""
    return [rows] if isinstance(rows, Atoms | Gradients) else list(rows)


def _joined(table: list[list[Tensor]]) -> Tensor:
    """One matrix of a table of blocks."""
    if len(table) == 1 and len(table[0]) == 1:
        return table[0][0]
    return torch.cat([torch.cat(row, dim=-1) for row in table], dim=-2)


def _bands(block: Block, step: int) -> list[Block]:
    """The rows of so many points at a time."""
    step = max(1, step)
    return [block.rows(slice(start, start + step)) for start in range(0, len(block.points), step)]


def _block_mean(mean: Mean, block: Block) -> Tensor:
    if isinstance(mean, ZeroMean):
        return block.points.new_zeros(*block.points.shape[:-3], block.num_rows)
    if block.blur is not None and not isinstance(mean, ConstantMean | LinearMean):
        raise ValueError(
            f"The Gaussian average of {type(mean).__name__} is not known: with LocalAverage use a zero, "
            "constant or linear mean."
        )
    atoms = block.expand()
    flat = atoms.points.flatten(-3, -2)
    if atoms.tangents is None:
        values = torch.as_tensor(mean(flat))
    else:
        value, slope, *_ = torch.func.jvp(mean, (flat,), (atoms.tangents.flatten(-3, -2),))
        values = torch.where(atoms.order.repeat(atoms.num_rows) == 1, slope, value)
    values = values.unflatten(-1, (atoms.num_rows, atoms.num_atoms))
    return (values * atoms.weights).sum(-1)


PAIRS_AT_ONCE = {"cpu": 2**20, "cuda": 2**27}
"""Kernel evaluations in memory at once if `row_block` is not given: on a CPU 8 MiB in double precision, which
stay in its caches between passes, on a GPU enough to keep it busy."""

Reduction = Callable[[Kernel, Block, Block], Tensor]
"""The covariance of two tiles of rows."""


def block_covariance(
    kernel: Kernel, left: Block, right: Block | None = None, row_block: int | None = None
) -> Float[Tensor, "*batch n m"]:
    """The covariance of two blocks of rows; without `right`, that of `left` with itself, of which half is
    computed.

    It is computed in tiles of about `PAIRS_AT_ONCE` kernel evaluations, or in bands of `row_block` rows of
    `left` (of points, where these are gradients).

    Parameters
    ----------
    kernel : Kernel
        k_g.
    left, right : Atoms or Gradients
        The rows of both sides; `right` is `left` where None.
    row_block : int, default=None
        Rows of a band; None chooses tiles by `PAIRS_AT_ONCE`.
    """
    if is_mixed(left) or (right is not None and is_mixed(right)):
        return _sum_of_pieces(kernel, left, right, row_block)
    symmetric = right is None
    left, right = one_of_equal_symmetry(left, left if right is None else right)
    # a one-sided double sum is not computed by symmetric tiles; those below compute half of the matrix
    if row_block is None and (left is right or not symmetric) and takes_double_sums(kernel, left, right):
        whole = double_sum(kernel, left.expand(), None if symmetric else right.expand())
        if whole is not None:
            return whole
    reduce: Reduction = _reduced
    if not (left.is_expanded and right.is_expanded):
        if takes_gradients(kernel, left, right):
            reduce = gradient_covariance
        else:
            left, right = left.expand(), right.expand()
    height, width = left.points.shape[-3], right.points.shape[-3]
    rows, columns = _tile(kernel, left, right, row_block)
    if rows >= height and columns >= width:
        whole = reduce(kernel, left, right)
        return _mirrored(whole) if symmetric else whole
    strips = []
    for start in range(0, width, columns):
        strip = right.rows(slice(start, start + columns))
        first = start if symmetric else 0
        tiles = [
            _bounded(reduce, kernel, left.rows(slice(i, i + rows)), strip) for i in range(first, height, rows)
        ]
        strips.append(torch.cat(tiles, dim=-2))
    if not symmetric:
        return torch.cat(strips, dim=-1)
    padded = [torch.nn.functional.pad(strip, (0, 0, left.num_rows - strip.shape[-2], 0)) for strip in strips]
    return _mirrored(torch.cat(padded, dim=-1))


def paired_covariance(
    kernel: Kernel, left: Block, right: Block, row_block: int | None = None
) -> Float[Tensor, "*batch n"]:
    """The covariance of row i of `left` with row i of `right`, at the cost of the diagonal alone."""
    is_own, (left, right) = left is right, one_of_equal_symmetry(left.expand(), right.expand())
    if left.num_rows != right.num_rows:
        raise ValueError(f"Cannot pair {left.num_rows} rows with {right.num_rows} rows.")
    is_own = is_own and left.num_atoms == right.num_atoms and takes_double_sums(kernel, left, right)
    reduce: Reduction = _own if is_own else _paired
    step = _entries(kernel, left, right) if row_block is None else _checked(row_block)
    if step >= left.num_rows:
        return reduce(kernel, left, right)
    slices = [slice(i, i + step) for i in range(0, left.num_rows, step)]
    return torch.cat([_bounded(reduce, kernel, left.rows(part), right.rows(part)) for part in slices], dim=-1)


def atom_covariance(kernel: Kernel, left: Atoms, right: Atoms) -> Float[Tensor, "*batch n s m t"]:
    """The covariance of every atom of `left` with every atom of `right`, without weights."""
    if is_mixed(left) or is_mixed(right):
        return assembled(functools.partial(atom_covariance, kernel), left, right, (-3, -1))
    flat = _select_orders(kernel, _flat(left), _flat(right), left, right)
    return flat.unflatten(-1, (right.num_rows, right.num_atoms)).unflatten(
        -3, (left.num_rows, left.num_atoms)
    )


def pair_covariance(kernel: Kernel, left: Atoms, right: Atoms) -> Float[Tensor, "*batch n s t"]:
    """The covariance of the atoms of row i of `left` with those of row i of `right`, without weights."""
    if is_mixed(left) or is_mixed(right):
        return assembled(functools.partial(pair_covariance, kernel), left, right, (-2, -1))
    return _select_orders(
        kernel, (left.points, left.tangents), (right.points, right.tangents), left, right, rows=True
    )


def one_of_equal_symmetry(left: Block, right: Block) -> tuple[Block, Block]:
    """Keep only the identity of each orbit of `left` if both sides have the same usable symmetry.

    Σ_h Σ_h' k(hx, h'y) = |G| Σ_h' k(x, h'y) when k(hx, hy) = k(x, y); the process strips symmetries it
    cannot use.
    """
    if left.symmetry is None or right.symmetry is None or left.symmetry.token is not right.symmetry.token:
        return left, right
    size = left.symmetry.size
    return left.take(slice(None, None, size), factor=float(size)), right


def _sum_of_pieces(kernel: Kernel, left: Block, right: Block | None, row_block: int | None) -> Tensor:
    """The covariance of rows whose atoms have different blurs, which need different kernels."""
    lefts = pieces(left)
    if right is not None:
        table = [block_covariance(kernel, a, b, row_block) for a in lefts for b in pieces(right)]
        return functools.reduce(torch.add, table)
    total = functools.reduce(torch.add, [block_covariance(kernel, a, None, row_block) for a in lefts])
    for i, piece in enumerate(lefts):
        for other in lefts[:i]:
            cross = block_covariance(kernel, piece, other, row_block)
            total = total + (cross + cross.mT)
    return total


def _reduced(kernel: Kernel, left: Block, right: Block) -> Tensor:
    left, right = left.expand(), right.expand()
    unreduced = _select_orders(kernel, _flat(left), _flat(right), left, right)
    # Σ_t k w'_t, then Σ_s w_s k
    half = _weighted_sum(unreduced.unflatten(-1, (right.num_rows, right.num_atoms)), right.weights)
    return _weighted_sum(half.mT.unflatten(-1, (left.num_rows, left.num_atoms)), left.weights).mT


def _weighted_sum(values: Float[Tensor, "*#batch a m t"], weights: Float[Tensor, "*#batch m t"]) -> Tensor:
    if weights.dim() == 2 and weights.stride(0) == 0:
        return values @ weights[0]  # the same weights in every row
    if values.shape[-1] == 1:
        return values.squeeze(-1) * weights.mT
    return (values * weights[..., None, :, :]).sum(-1)


def _mirrored(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """The symmetric matrix with this lower half."""
    return matrix.tril() + matrix.tril(-1).mT


def _own(kernel: Kernel, left: Block, right: Block) -> Tensor:
    """The covariance of every row with itself; `right` is `left`."""
    found = own_sum(kernel, left.expand())
    return _paired(kernel, left, right) if found is None else found


def _paired(kernel: Kernel, left: Block, right: Block) -> Tensor:
    unreduced = pair_covariance(kernel, left.expand(), right.expand())
    return torch.einsum("...ns,...nst,...nt->...n", left.weights, unreduced, right.weights)


def _flat(atoms: Atoms) -> tuple[Tensor, Tensor | None]:
    tangents = None if atoms.tangents is None else atoms.tangents.flatten(-3, -2)
    return atoms.points.flatten(-3, -2), tangents


def _select_orders(
    kernel: Kernel,
    left_points: tuple[Tensor, Tensor | None],
    right_points: tuple[Tensor, Tensor | None],
    left: Atoms,
    right: Atoms,
    rows: bool = False,
) -> Tensor:
    """The entry of the jet that each pair of atoms needs."""
    (p, v), (q, w) = left_points, right_points
    parts = jet(kernel, p, q, v, w, rows, (variance_of(left), variance_of(right)))
    if v is None and w is None:
        return parts.value
    rank_left = left.order.repeat(1 if rows else left.num_rows)[:, None] == 1
    rank_right = right.order.repeat(1 if rows else right.num_rows)[None, :] == 1
    chosen = parts.value
    if parts.left is not None:
        chosen = torch.where(rank_left & ~rank_right, parts.left, chosen)
    if parts.right is not None:
        chosen = torch.where(~rank_left & rank_right, parts.right, chosen)
    if parts.mixed is not None:
        chosen = torch.where(rank_left & rank_right, parts.mixed, chosen)
    return chosen


def _tile(kernel: Kernel, left: Block, right: Block, row_block: int | None) -> tuple[int, int]:
    """How many rows of `left` and of `right` form a tile: about equal numbers of atoms."""
    height, width = left.points.shape[-3], right.points.shape[-3]
    if row_block is not None:
        return _checked(row_block), width
    entries = _entries(kernel, left, right)
    rows = min(
        height,
        max(1, math.isqrt(pairs_at_once(left.points.device)) // _atoms_per_point(left), entries // width),
    )
    return rows, max(1, entries // rows)


def _entries(kernel: Kernel, left: Block, right: Block) -> int:
    """How many entries, each a double sum over atoms, are computed at once."""
    batch = max(
        math.prod(shape) for shape in (left.points.shape[:-3], right.points.shape[:-3], kernel.batch_shape)
    )
    return max(
        1, pairs_at_once(left.points.device) // (_atoms_per_point(left) * _atoms_per_point(right) * batch)
    )


def _atoms_per_point(block: Block) -> int:
    return block.num_rows // block.points.shape[-3] * block.points.shape[-2]


def pairs_at_once(device: torch.device) -> int:
    """Kernel evaluations in memory at once on a device."""
    return PAIRS_AT_ONCE["cpu" if device.type == "cpu" else "cuda"]


def _checked(row_block: int) -> int:
    if row_block < 1:
        raise ValueError(f"row_block must be at least 1, not {row_block}.")
    return row_block


def _bounded(reduce: Reduction, kernel: Kernel, left: Block, right: Block) -> Tensor:
    """`reduce(kernel, left, right)`, recomputed in the backward pass instead of remembered."""
    tensors = [*kernel.parameters(), *vars(left).values(), *vars(right).values()]
    if torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in tensors):
        return checkpoint(reduce, kernel, left, right, use_reentrant=False, preserve_rng_state=False)
    return reduce(kernel, left, right)
