"""Radial profiles κ(|p-q|²) and dot-product profiles h(pᵀΛq): two derivatives each, and Gaussian averages.

A kernel costs three formulas. Averages over Gaussians around the arguments are in closed form (RKHS 4.3, as
METHOD 9 corrects it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Block

Profile = Callable[[Tensor, int], Tensor]
"""κ and its derivatives, by order."""
SMALLEST_DISTANCE = 1e-15


def parts_of(kernel: AdditiveKernel | ProductKernel) -> list[Kernel]:
    """The summands or factors of a kernel."""
    return [part for part in kernel.kernels if isinstance(part, Kernel)]


class Part(NamedTuple):
    """One of the c·k that add up to a kernel: the factor c, k, and the columns that reach k (None: all)."""

    scale: Tensor | float
    kernel: Kernel
    columns: Tensor | None

    @property
    def has_slopes(self) -> bool:
        """Whether the kernel is no constant."""
        return type(self.kernel) is not ConstantKernel

    @property
    def is_radial(self) -> bool:
        """Whether the kernel is a known function of the distance."""
        return radial_profile(self.kernel) is not None

    def select(self, points: Float[Tensor, "*n d"]) -> Float[Tensor, "*n e"]:
        """The columns that reach the kernel."""
        return points if self.columns is None else points.index_select(-1, self.columns)


def parts_of_sum(kernel: Kernel) -> list[Part]:
    """The parts that add up to a kernel, through scales and sums."""
    return _parts(Part(1.0, kernel, active_dims(kernel)))


def _parts(whole: Part) -> list[Part]:
    scale, kernel, columns = whole
    # Exact types: a subclass may compute something else.
    if type(kernel) is ScaleKernel:
        # A scale selects columns for its base, which does not select any itself.
        return _parts(Part(scale * kernel.outputscale, kernel.base_kernel, columns))
    if type(kernel) is not AdditiveKernel:
        return [whole]
    found = []
    for part in parts_of(kernel):
        own = active_dims(part)
        chosen = columns if own is None else own if columns is None else columns[own]
        found += _parts(Part(scale, part, chosen))
    return found


def active_dims(kernel: Kernel) -> Tensor | None:
    """The numbers of the columns that the kernel looks at; None for all of them."""
    return kernel.active_dims if isinstance(kernel.active_dims, Tensor) else None


def select(kernel: Kernel, tensor: Tensor) -> Tensor:
    """The columns that the kernel looks at."""
    active = active_dims(kernel)
    return tensor if active is None else tensor.index_select(-1, active)


def radial_profile(kernel: Kernel, rows: bool = False) -> Profile | None:
    """κ(q, order) of a kernel of the squared distance q in lengthscales, or None for a kernel not known here.

    A kernel class of your own may bring it as a method `radial_profile(q, order)`: κ, κ′ and κ″.
    """
    own: Profile | None = getattr(kernel, "radial_profile", None)
    if own is not None:
        return own
    if type(kernel) is RBFKernel:
        return rbf
    if type(kernel) is MaternKernel and kernel.nu == 1.5:
        return _matern_32
    if type(kernel) is MaternKernel and kernel.nu == 2.5:
        return _matern_52
    if type(kernel) is RQKernel:
        alpha = over_rows(kernel.alpha[..., None], kernel, rows)
        return lambda q, order: _rational_quadratic(q, order, alpha.to(q))
    return None


def dot_product_profile(kernel: Kernel, rows: bool = False) -> tuple[Tensor, Profile] | None:
    """(Λ, h(t, order)) of a kernel of the product t = pᵀΛq, or None when the kernel is not one we know."""
    if type(kernel) is LinearKernel:
        return over_rows(kernel.variance, kernel, rows), lambda t, order: _power(t, order, 0.0, 1)
    if type(kernel) is PolynomialKernel:
        offset, power = over_rows(kernel.offset[..., None], kernel, rows), int(kernel.power)
        return torch.ones_like(offset), lambda t, order: _power(t, order, offset.to(t), power)
    return None


def over_rows(parameter: Tensor, kernel: Kernel, rows: bool) -> Tensor:
    """A parameter [*batch, 1, 1 or d] of a kernel, with room for the rows where points have them."""
    return parameter.unsqueeze(-3) if rows and len(kernel.batch_shape) else parameter


def rbf(q: Tensor, order: int) -> Tensor:
    """κ = e^{-q/2}."""
    value = (-0.5 * q).exp_()
    return value if order == 0 else (-0.5) ** order * value


def _matern_32(q: Tensor, order: int) -> Tensor:
    r = _distance(q) * math.sqrt(3)
    decay = torch.exp(-r)
    if order == 0:
        return (1 + r) * decay
    if order == 1:
        return -1.5 * decay
    # κ″ = 9/4 e^{-r}/r grows like 1/r, but only meets two factors of the order of r: their product is 0 at 0.
    return torch.where(q > 0, 2.25 * decay / r, 0)


def _matern_52(q: Tensor, order: int) -> Tensor:
    r = _distance(q) * math.sqrt(5)
    decay = torch.exp(-r)
    if order == 0:
        return (1 + r + q * (5 / 3)) * decay
    return -5 / 6 * (1 + r) * decay if order == 1 else 25 / 12 * decay


def _rational_quadratic(q: Tensor, order: int, alpha: Tensor) -> Tensor:
    base = 1 + q / (2 * alpha)
    factor = (1.0, -0.5, (alpha + 1) / (4 * alpha))[order]
    return factor * base ** (-alpha - order)


def _power(t: Tensor, order: int, offset: Tensor | float, power: int) -> Tensor:
    if order > power:
        return torch.zeros_like(t)
    return math.prod(range(power, power - order, -1)) * (t + offset) ** (power - order)


def _distance(q: Tensor) -> Tensor:
    """√q, with derivative 0 instead of ∞ at 0."""
    return q.clamp_min(SMALLEST_DISTANCE**2).sqrt()


if TYPE_CHECKING:
    from orbitwise.process.jets import Jet

Blur = tuple[float, float]
"""θ² and θ′², the variances around the left and the right argument of a kernel."""

SHARP: Blur = (0.0, 0.0)
CLOSED = (AdditiveKernel, ConstantKernel, LinearKernel, PolynomialKernel, RBFKernel, ScaleKernel)


def variance_of(block: Block) -> float:
    """The one blur of all atoms of a block."""
    return 0.0 if block.blur is None else float(block.blur[0])


def is_mixed(block: Block) -> bool:
    """Whether the atoms have several blurs."""
    return block.blur is not None and block.blur.unique().numel() > 1


def pieces(block: Block) -> list[Block]:
    """Blocks of one blur each that add up to the block."""
    if not is_mixed(block):
        return [block]
    atoms = block.expand()
    return [atoms.take(places) for places in _places(atoms)]


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
    factors = [part for part in parts_of(kernel) if type(part) is not ConstantKernel]
    active = [dims for part in factors if (dims := active_dims(part)) is not None]
    if len(factors) < 2 or len(active) < len(factors):
        return len(factors) < 2
    every = torch.cat(active)
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
