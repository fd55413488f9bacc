"""The one covariance function: cov(L_i g, L'_j g) = Σ_s Σ_t w_is w'_jt k_g(p_is, p'_jt), derivatives where atoms ask for them.

Everything streams over blocks of rows, forward and backward, so that memory is bounded by `row_block`, not by the number of
atoms. When kernel and orbit share a symmetry, one side of the double sum is enough (`one_sided`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Block
from orbitwise.functionals.gradients import Gradients
from orbitwise.process.gradient_blocks import gradient_covariance, has_fast_gradients
from orbitwise.process.jets import jet

PAIRS_AT_ONCE = {"cpu": 2**20, "cuda": 2**27}
"""Kernel evaluations held at a time when `row_block` is not given: 8 MiB in double precision on a CPU, which its caches and
its allocator keep warm, and enough to fill a GPU."""


def block_covariance(
    kernel: Kernel, left: Block, right: Block, row_block: int | None = None
) -> Float[Tensor, "*batch n m"]:
    """The covariance of two blocks of rows, streamed over the rows of `left`."""
    left, right = one_of_equal_symmetry(left, right)
    reduce = _reduced
    if isinstance(left, Gradients) or isinstance(right, Gradients):
        if has_fast_gradients(kernel):
            reduce = gradient_covariance
        else:
            left, right = _expanded(left), _expanded(right)
    count = left.points.shape[-3]
    step = _rows_at_once(left, right) if row_block is None else row_block
    if step >= count:
        return reduce(kernel, left, right)
    parts = [_bounded(reduce, kernel, left.rows(slice(i, i + step)), right) for i in range(0, count, step)]
    return torch.cat(parts, dim=-2)


def paired_covariance(
    kernel: Kernel, left: Block, right: Block, row_block: int | None = None
) -> Float[Tensor, "*batch n"]:
    """The covariance of row i of `left` with row i of `right`, at the cost of the diagonal alone."""
    left, right = one_of_equal_symmetry(_expanded(left), _expanded(right))
    step = max(1, _pairs_at_once(left) // (left.num_atoms * right.num_atoms)) if row_block is None else row_block

    def reduce(a: Atoms, b: Atoms) -> Tensor:
        unreduced = pair_covariance(kernel, a, b)
        return torch.einsum("...ns,...nst,...nt->...n", a.weights, unreduced, b.weights)

    if step >= left.num_rows:
        return reduce(left, right)
    slices = [slice(i, i + step) for i in range(0, left.num_rows, step)]
    return torch.cat([_bounded(reduce, left.rows(part), right.rows(part)) for part in slices], dim=-1)


def atom_covariance(kernel: Kernel, left: Atoms, right: Atoms) -> Float[Tensor, "*batch n s m t"]:
    """The covariance of every atom of `left` with every atom of `right`, without weights."""
    flat = _select_orders(kernel, _flat(left), _flat(right), left, right)
    return flat.unflatten(-1, (right.num_rows, right.num_atoms)).unflatten(-3, (left.num_rows, left.num_atoms))


def pair_covariance(kernel: Kernel, left: Atoms, right: Atoms) -> Float[Tensor, "*batch n s t"]:
    """The covariance of the atoms of row i of `left` with those of row i of `right`, without weights."""
    return _select_orders(
        kernel, (left.points, left.tangents), (right.points, right.tangents), left, right, rows=True
    )


def one_of_equal_symmetry(left: Block, right: Block) -> tuple[Block, Block]:
    """Keep only the identity of each orbit of `left` when both sides carry the same usable symmetry.

    Σ_h Σ_h' k(hx, h'y) = |G| Σ_h' k(x, h'y) when k(hx, hy) = k(x, y); the process strips symmetries it cannot use.
    """
    if left.symmetry is None or right.symmetry is None or left.symmetry.token is not right.symmetry.token:
        return left, right
    size = left.symmetry.size
    return left.pick(slice(None, None, size), factor=float(size)), right


def _reduced(kernel: Kernel, left: Atoms, right: Atoms) -> Tensor:
    unreduced = _select_orders(kernel, _flat(left), _flat(right), left, right)
    unreduced = unreduced.unflatten(-1, (right.num_rows, right.num_atoms))
    half = _weighted_sum(unreduced, right.weights[..., None, :, :])
    half = half.unflatten(-2, (left.num_rows, left.num_atoms))
    return _weighted_sum(half.transpose(-1, -2), left.weights[..., :, None, :])


def _weighted_sum(values: Tensor, weights: Tensor) -> Tensor:
    if values.shape[-1] == 1:
        return (values * weights).squeeze(-1)
    if weights.stride(-2) == 0 and weights.dim() == 3:
        return values @ weights[0, 0]  # the same weights in every row
    return torch.linalg.vecdot(values, weights)


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
    parts = jet(kernel, p, q, v, w, rows)
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


def _rows_at_once(left: Block, right: Block) -> int:
    columns = right.num_rows * right.points.shape[-2]
    batch = left.points.shape[:-3].numel()
    width = left.num_rows // left.points.shape[-3] * left.points.shape[-2]
    return max(1, _pairs_at_once(left) // max(1, columns * width * batch))


def _pairs_at_once(block: Block) -> int:
    return PAIRS_AT_ONCE["cpu" if block.points.device.type == "cpu" else "cuda"]


def _bounded(reduce: Callable[..., Tensor], *arguments: Kernel | Block) -> Tensor:
    """`reduce(*arguments)`, recomputed in the backward pass instead of remembered."""
    if torch.is_grad_enabled():
        return checkpoint(reduce, *arguments, use_reentrant=False)
    return reduce(*arguments)


def _expanded(block: Block) -> Atoms:
    return block.expand() if isinstance(block, Gradients) else block
