"""Rows of labels and functionals as a Gram matrix, and the function that coefficients over them make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, ScaleKernel
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.functionals.functional import Block, Functional
from orbitwise.functionals.gradients import Gradients
from orbitwise.inference.risk.grams import DenseGram, ProductGram
from orbitwise.process.gradient_products import GradientOperator, gradient_product
from orbitwise.process.process import Process
from orbitwise.process.profiles import dot_product_profile, radial_profile

BASES = ("none", "bias", "linear")
LARGEST_DENSE = 6000
"""Rows whose Gram matrix is held: 288 MiB in double precision, and decomposed in about a minute."""
ROWS_AT_ONCE = 1024


def basis_rows(rows: Sequence[Block], basis: str) -> Float[Tensor, "m b"]:
    """What each row makes of the unpenalised functions: none, the constant 1, or 1 and all coordinates."""
    if basis not in BASES:
        raise ValueError(f"basis must be one of {', '.join(BASES)}, not {basis!r}.")
    return torch.cat([_block_basis(block, basis) for block in rows])


def _block_basis(block: Block, basis: str) -> Tensor:
    if isinstance(block, Gradients):
        constant = block.points.new_zeros(block.num_rows, 1)
        linear = torch.einsum("ns,nskd->nkd", block.weights, block.directions).flatten(0, 1)
    else:
        is_value = block.order == 0
        constant = (block.weights * is_value).sum(-1, keepdim=True)
        moved = torch.where(is_value[:, None], block.points, block.filled_tangents)
        linear = (block.weights[..., None] * moved).sum(-2)
    columns = {"none": [], "bias": [constant], "linear": [constant, linear]}[basis]
    return torch.cat(columns, -1) if columns else constant[:, :0]


def has_products(kernel: Kernel) -> bool:
    """Whether products with this kernel's derivatives need not form their covariances."""
    if type(kernel) is ScaleKernel:
        return has_products(kernel.base_kernel)
    if type(kernel) is AdditiveKernel:
        return all(has_products(part) for part in kernel.kernels)  # pyright: ignore
    known = radial_profile(kernel) is not None or dot_product_profile(kernel) is not None
    return known or type(kernel) is ConstantKernel


@torch.no_grad()
def gram_of(process: Process, rows: Sequence[Block], largest: int = LARGEST_DENSE) -> DenseGram | ProductGram:
    """The Gram matrix of all rows: held where it is small enough, else known by products."""
    count = sum(block.num_rows for block in rows)
    if count <= largest:
        return DenseGram(process.covariance(list(rows)))
    sizes = [block.num_rows for block in rows]
    operators = {
        i: GradientOperator(process.kernel, block)
        for i, block in enumerate(rows)
        if isinstance(block, Gradients) and has_products(process.kernel)
    }

    def multiply(vectors: Float[Tensor, "m c"]) -> Float[Tensor, "m c"]:
        parts = vectors.split(sizes)
        results = [torch.zeros_like(part) for part in parts]
        for i, left in enumerate(rows):
            for j, right in enumerate(rows):
                if i == j and i in operators:
                    results[i] += operators[i].product(parts[j])
                else:
                    results[i] += covariance_product(process, left, right, parts[j])
        return torch.cat(results)

    def pick(index: Int[Tensor, " k"]) -> Float[Tensor, "m k"]:
        units = torch.nn.functional.one_hot(index, count).to(rows[0].points)
        return multiply(units.mT)

    return ProductGram(multiply, pick, torch.cat([process.variance(block) for block in rows]))


@torch.no_grad()
def covariance_product(
    process: Process, left: Block, right: Block, vectors: Float[Tensor, "r c"]
) -> Float[Tensor, "n c"]:
    """cov(left, right) v, without forming what structure makes needless."""
    slopes = isinstance(left, Gradients) or isinstance(right, Gradients)
    if slopes and _is_plain(left) and _is_plain(right) and has_products(process.kernel):
        return gradient_product(process.kernel, left, right, vectors)
    step = ROWS_AT_ONCE * len(left.points) // left.num_rows or 1
    parts = [left.rows(slice(start, start + step)) for start in range(0, len(left.points), step)]
    return torch.cat([process.covariance(part, right) @ vectors for part in parts])


def _is_plain(block: Block) -> bool:
    """Gradients, or one exact value a row."""
    if isinstance(block, Gradients):
        return True
    return block.num_atoms == 1 and bool((block.order == 0).all()) and block.blur is None


@final
class Machine:
    """f = Σ_i α_i z_i + Σ_j β_j b_j for rows of any kind, with several outputs."""

    def __init__(
        self,
        process: Process,
        rows: Sequence[Block],
        coefficients: Float[Tensor, "m c"],
        beta: Float[Tensor, "b c"],
        basis: str,
    ) -> None:
        self.process, self.rows, self.basis = process, list(rows), basis
        self.coefficients, self.beta = coefficients, beta

    @torch.no_grad()
    def values(self, functional: Functional, x: Tensor) -> Float[Tensor, "n c"]:
        """L_x f of every row, also for functionals other than values."""
        found = []
        for part in x.split(ROWS_AT_ONCE):
            left = functional.atoms(part)
            total = basis_rows([left], self.basis) @ self.beta
            parts = self.coefficients.split([block.num_rows for block in self.rows])
            for block, vectors in zip(self.rows, parts, strict=True):
                total = total + covariance_product(self.process, left, block, vectors)
            found.append(total)
        return torch.cat(found)
