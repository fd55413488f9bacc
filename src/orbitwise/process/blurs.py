"""Kernels averaged over Gaussians around their arguments, in closed form (RKHS 4.3, as METHOD 9 corrects it).

For τ ~ N(x, θ²I) and τ′ ~ N(x′, θ′²I), E k(τ, τ′) is for an RBF a wider and lower RBF, because variances add;
for a polynomial kernel it is a moment of τᵀτ′ + c, whose generating function is known; a linear or constant
kernel stays as it is. Rows whose atoms have several blurs are covariances of pieces with one blur each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    Kernel,
    LinearKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    ScaleKernel,
)
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Block

if TYPE_CHECKING:
    from orbitwise.process.jets import Jet

Blur = tuple[float, float]
"""θ² and θ′², the variances around the left and the right argument of a kernel."""

SHARP: Blur = (0.0, 0.0)
CLOSED = (AdditiveKernel, ConstantKernel, LinearKernel, PolynomialKernel, RBFKernel, ScaleKernel)


def variance_of(block: Block) -> float:
    """The one blur of all atoms of a block."""
    return 0.0 if not isinstance(block, Atoms) or block.blur is None else float(block.blur[0])


def is_mixed(block: Block) -> bool:
    """Whether the atoms have several blurs."""
    return isinstance(block, Atoms) and block.blur is not None and block.blur.unique().numel() > 1


def pieces(block: Block) -> list[Block]:
    """Blocks of one blur each that add up to the block."""
    if not isinstance(block, Atoms) or not is_mixed(block):
        return [block]
    return [block.take(places) for places in _places(block)]


def assembled(
    evaluate: Callable[[Atoms, Atoms], Tensor], left: Atoms, right: Atoms, dims: tuple[int, int]
) -> Tensor:
    """`evaluate` of pieces of one blur each, put together along the dimensions that count atoms."""
    lefts, rights = _places(left), _places(right)
    bands = [
        torch.cat([evaluate(left.take(here), right.take(there)) for there in rights], dim=dims[1])
        for here in lefts
    ]
    whole = torch.cat(bands, dim=dims[0])
    for dim, places in zip(dims, (lefts, rights), strict=True):
        whole = whole.index_select(dim, torch.cat(places).argsort())
    return whole


def _places(atoms: Atoms) -> list[Int[Tensor, " k"]]:
    """The numbers of the atoms of each blur, the widest first."""
    blur = atoms.filled_blur
    return [torch.nonzero(blur == value).flatten() for value in blur.unique().flip(0)]


def check_blur(kernel: Kernel) -> None:
    """Raise a ValueError unless Gaussian averages of this kernel, apart from its parts, are known here."""
    # Exact types: a subclass may compute something else.
    if type(kernel) in CLOSED or (type(kernel) is ProductKernel and _is_separable(kernel)):
        return
    raise ValueError(
        f"{type(kernel).__name__} has no local averages in closed form here. Use "
        "average_minus_value(orbit) with a frozen JitterOrbit, or RBF, polynomial, linear or constant "
        "kernels, their scalings and sums, and products of kernels of different active dimensions."
    )


def check_power(kernel: PolynomialKernel) -> int:
    """The power of a polynomial kernel, which must be a whole number."""
    if kernel.power != int(kernel.power) or kernel.power < 0:
        raise ValueError(
            f"Local averages need a polynomial kernel of a whole power of 0 or more, not {kernel.power}."
        )
    return int(kernel.power)


def _is_separable(kernel: ProductKernel) -> bool:
    """Whether no two factors look at the same coordinate, so that the average of the product factorises."""
    active = [part.active_dims for part in kernel.kernels if type(part) is not ConstantKernel]
    if len(active) < 2:
        return True
    if any(dims is None for dims in active):
        return False
    every = torch.cat([dims for dims in active if isinstance(dims, Tensor)])
    return every.unique().numel() == every.numel()


def widened(
    lengthscale: Float[Tensor, "*batch 1 d"], num_dims: int, blur: Blur
) -> tuple[Float[Tensor, "*batch 1 d"], Float[Tensor, "*batch 1 1"]]:
    """√(ℓ² + θ² + θ′²) and Π_d ℓ_d/√(ℓ_d² + θ² + θ′²): the averaged RBF's lengthscale and its value at 0."""
    wide = (lengthscale.square() + sum(blur)).sqrt()
    factors = (lengthscale / wide).expand(*lengthscale.shape[:-1], num_dims)
    return wide, factors.prod(-1, keepdim=True)


def average_power(
    product: Jet, squares: tuple[Jet, Jet], offset: Tensor, power: int, num_dims: int, blur: Blur
) -> Jet:
    """E (τᵀτ′ + c)^r from xᵀx′ and (|x|², |x′|²), in n dimensions.

    E exp(s(τᵀτ′+c)) = (1-s²t)^{-n/2} exp(sc + [s xᵀx′ + ½s²w]/(1-s²t)) with t = θ²θ′² and
    w = θ′²|x|² + θ²|x′|². The series of its logarithm gives cumulants, and these give moments.
    """
    both = blur[0] * blur[1]
    spread = squares[0].scale(blur[1]) + squares[1].scale(blur[0])
    cumulants: dict[int, Jet] = {}
    for j in range(1, power + 1 if both > 0 else min(power, 2) + 1):
        half = j // 2
        if j % 2 == 1:
            # (2h+1)! t^h xᵀx′, and c in the first
            cumulants[j] = product.scale(math.factorial(j) * both**half)
        else:
            # (2h)! (½ w t^{h-1} + n t^h/2h)
            constant = math.factorial(j - 1) * num_dims * both**half
            cumulants[j] = spread.scale(math.factorial(j) / 2 * both ** (half - 1)).shift(constant)
    moments = [product.scale(0.0).shift(1.0)]
    if power:
        cumulants[1] = cumulants[1].shift(offset)
    for r in range(1, power + 1):
        # M_r = Σ_j C(r-1, j-1) κ_j M_{r-j}
        terms = [(cumulants[j] * moments[r - j]).scale(math.comb(r - 1, j - 1)) for j in cumulants if j <= r]
        total, *others = terms
        for term in others:
            total = total + term
        moments.append(total)
    return moments[-1]
