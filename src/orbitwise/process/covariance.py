"""The one covariance function: cov(L_i g, L'_j g) = Σ_s Σ_t w_is w'_jt k_g(p_is, p'_jt).

Where atoms are derivatives, so is k_g. Everything streams over tiles of the matrix, forward and backward, so
that memory is bounded whatever the number of atoms. When kernel and orbit share a symmetry, one side of the
double sum is enough (`one_of_equal_symmetry`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from orbitwise.functionals.atoms import Atoms, Block
from orbitwise.process.double_sums import double_sum, takes_double_sums
from orbitwise.process.gradient_blocks import gradient_covariance, takes_gradients
from orbitwise.process.jets import jet
from orbitwise.process.profiles import assembled, is_mixed, pieces, variance_of

PAIRS_AT_ONCE = {"cpu": 2**20, "cuda": 2**27}
"""Kernel evaluations held at a time when `row_block` is not given: on a CPU 8 MiB in double precision, which
stay in its caches between the few passes over them, on a GPU enough to fill it."""

Reduction = Callable[[Kernel, Block, Block], Tensor]
"""The covariance of two tiles of rows."""


def block_covariance(
    kernel: Kernel, left: Block, right: Block | None = None, row_block: int | None = None
) -> Float[Tensor, "*batch n m"]:
    """The covariance of two blocks of rows; without `right`, of `left` with itself, one half computed.

    It is computed in tiles of about `PAIRS_AT_ONCE` kernel evaluations, or in bands of `row_block` rows of
    `left` (of points, where these are gradients).
    """
    if is_mixed(left) or (right is not None and is_mixed(right)):
        return _sum_of_pieces(kernel, left, right, row_block)
    symmetric = right is None
    left, right = one_of_equal_symmetry(left, left if right is None else right)
    # One side of a symmetric matrix's double sum is not symmetric; the tiles below compute half of it.
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
    left, right = one_of_equal_symmetry(left.expand(), right.expand())
    if left.num_rows != right.num_rows:
        raise ValueError(f"Cannot pair {left.num_rows} rows with {right.num_rows} rows.")
    step = _entries(kernel, left, right) if row_block is None else _checked(row_block)
    if step >= left.num_rows:
        return _paired(kernel, left, right)
    slices = [slice(i, i + step) for i in range(0, left.num_rows, step)]
    return torch.cat(
        [_bounded(_paired, kernel, left.rows(part), right.rows(part)) for part in slices], dim=-1
    )


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
    """Keep only the identity of each orbit of `left` when both sides carry the same usable symmetry.

    Σ_h Σ_h' k(hx, h'y) = |G| Σ_h' k(x, h'y) when k(hx, hy) = k(x, y); the process strips symmetries it
    cannot use.
    """
    if left.symmetry is None or right.symmetry is None or left.symmetry.token is not right.symmetry.token:
        return left, right
    size = left.symmetry.size
    return left.take(slice(None, None, size), factor=float(size)), right


def _sum_of_pieces(kernel: Kernel, left: Block, right: Block | None, row_block: int | None) -> Tensor:
    """The covariance of rows with atoms of different blurs, which ask for different kernels."""
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
    """The symmetric matrix of a lower half."""
    return matrix.tril() + matrix.tril(-1).mT


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
    """The entry of the jet that each pair of atoms asks for."""
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
    """How many rows of `left` and of `right` to take at once: about as many atoms of each."""
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
    """How many entries, each a double sum over atoms, make up the pairs held at once."""
    batch = max(
        math.prod(shape) for shape in (left.points.shape[:-3], right.points.shape[:-3], kernel.batch_shape)
    )
    return max(
        1, pairs_at_once(left.points.device) // (_atoms_per_point(left) * _atoms_per_point(right) * batch)
    )


def _atoms_per_point(block: Block) -> int:
    return block.num_rows // block.points.shape[-3] * block.points.shape[-2]


def pairs_at_once(device: torch.device) -> int:
    """Kernel evaluations to hold at a time on a device."""
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
