"""Closed forms of kernels: radial and dot-product profiles, and directional derivatives.

A kernel is defined by three formulas: κ(|p-q|²) or h(pᵀΛq), and two derivatives. A `Jet` holds k(p, q), ∂_v
k, ∂_w k and ∂_v∂_w k for all pairs of points p (tangent v) and q (tangent w); rules for scales, sums and
products combine the jets of the parts. Values are available for every GPyTorch kernel. With a blur, profiles
and jets are averages over Gaussians around p and q (RKHS 4.3, as METHOD 9 corrects it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

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

from orbitwise.functionals.functional import Atoms, Block
from orbitwise.kernels.bases import children_of
from orbitwise.kernels.scaled_columns import ScaledColumnsKernel

Profile = Callable[[Tensor, int], Tensor]
"""κ and its derivatives, by order."""
SMALLEST_DISTANCE = 1e-15


class Part(NamedTuple):
    """One summand c·k of a kernel: the factor c, the kernel k, and the columns that k sees (None: all)."""

    scale: Tensor | float
    kernel: Kernel
    columns: Tensor | None

    @property
    def has_slopes(self) -> bool:
        """Whether the kernel is not constant."""
        return type(self.kernel) is not ConstantKernel

    @property
    def is_radial(self) -> bool:
        """Whether the kernel is a known function of the distance."""
        return radial_profile(self.kernel) is not None

    def select(self, points: Float[Tensor, "*n d"]) -> Float[Tensor, "*n e"]:
        """The columns of points that the kernel sees."""
        return points if self.columns is None else points.index_select(-1, self.columns)


def parts_of_sum(kernel: Kernel) -> list[Part]:
    """The summands of a kernel, with scales and sums resolved."""
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
    for part in children_of(kernel):
        own = active_dims(part)
        chosen = columns if own is None else own if columns is None else columns[own]
        found += _parts(Part(scale, part, chosen))
    return found


def active_dims(kernel: Kernel) -> Tensor | None:
    """The indices of the columns that the kernel sees; None for all of them."""
    return kernel.active_dims if isinstance(kernel.active_dims, Tensor) else None


def select(kernel: Kernel, tensor: Tensor) -> Tensor:
    """The columns of a tensor that the kernel sees."""
    active = active_dims(kernel)
    return tensor if active is None else tensor.index_select(-1, active)


def radial_profile(kernel: Kernel, rows: bool = False) -> Profile | None:
    """κ(q, order) of a kernel of the squared distance q in lengthscales, or None if it is not known.

    Your own kernel class may define it as a method `radial_profile(q, order)`: κ, κ′ and κ″.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        A kernel without its scale; RBF, Matérn-3/2, Matérn-5/2 and rational quadratic are known.
    rows : bool, default=False
        Whether parameters of a batched kernel get a dimension for rows.
    """
    own: Profile | None = getattr(kernel, "radial_profile", None)
    if own is not None:
        return own
    if type(kernel) is ScaledColumnsKernel:
        # its lengthscales are in the units of the columns
        return radial_profile(kernel.base_kernel, rows)
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
    """(Λ, h(t, order)) of a kernel of the product t = pᵀΛq, or None if it is not known."""
    if type(kernel) is LinearKernel:
        return over_rows(kernel.variance, kernel, rows), lambda t, order: _power(t, order, 0.0, 1)
    if type(kernel) is PolynomialKernel:
        offset, power = over_rows(kernel.offset[..., None], kernel, rows), int(kernel.power)
        return torch.ones_like(offset), lambda t, order: _power(t, order, offset.to(t), power)
    return None


def over_rows(parameter: Tensor, kernel: Kernel, rows: bool) -> Tensor:
    """A parameter [*batch, 1, 1 or d] of a kernel, with a dimension for rows if points have one."""
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


Blur = tuple[float, float]
"""θ² and θ′², the variances around the left and the right argument of a kernel."""

SHARP: Blur = (0.0, 0.0)
CLOSED = (AdditiveKernel, ConstantKernel, LinearKernel, PolynomialKernel, RBFKernel, ScaleKernel)


def variance_of(block: Block) -> float:
    """The one blur of all atoms of a block."""
    return 0.0 if block.blur is None else float(block.blur[0])


def is_mixed(block: Block) -> bool:
    """Whether the atoms have different blurs."""
    return block.blur is not None and block.blur.unique().numel() > 1


def pieces(block: Block) -> list[Block]:
    """Blocks with one blur each whose sum is the block."""
    if not is_mixed(block):
        return [block]
    atoms = block.expand()
    return [atoms.take(places) for places in _places(atoms)]


def assembled(
    evaluate: Callable[[Atoms, Atoms], Tensor], left: Atoms, right: Atoms, dims: tuple[int, int]
) -> Tensor:
    """`evaluate` for pieces with one blur each, assembled along the dimensions of atoms."""
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
    """The indices of the atoms of each blur, the widest first."""
    blur = atoms.filled_blur
    return [torch.nonzero(blur == value).flatten() for value in blur.unique().flip(0)]


def check_blur(kernel: Kernel) -> None:
    """Raise a ValueError unless Gaussian averages of this kernel are known; its parts are not checked."""
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
    """Whether no two factors see the same column, so that the average of the product factorises."""
    factors = [part for part in children_of(kernel) if type(part) is not ConstantKernel]
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


@dataclass(frozen=True)
class Jet:
    """Values and derivatives for all pairs of two lists of points; None if not requested."""

    value: Float[Tensor, "*#batch a b"]
    left: Float[Tensor, "*#batch a b"] | None = None
    right: Float[Tensor, "*#batch a b"] | None = None
    mixed: Float[Tensor, "*#batch a b"] | None = None

    def scale(self, factor: Tensor | float) -> Jet:
        """The jet of factor·k."""
        return Jet(factor * self.value, *(None if part is None else factor * part for part in self.parts[1:]))

    def shift(self, constant: Tensor | float) -> Jet:
        """The jet of k + constant, whose derivatives are those of k."""
        return Jet(self.value + constant, *self.parts[1:])

    def __add__(self, other: Jet) -> Jet:
        pairs = zip(self.parts[1:], other.parts[1:], strict=True)
        return Jet(self.value + other.value, *(None if a is None or b is None else a + b for a, b in pairs))

    def __mul__(self, other: Jet) -> Jet:
        left = right = mixed = None
        if self.left is not None and other.left is not None:
            left = self.left * other.value + self.value * other.left
        if self.right is not None and other.right is not None:
            right = self.right * other.value + self.value * other.right
        if self.mixed is not None and other.mixed is not None:
            # ∂_v∂_w (k₁k₂) = k₁ᵛʷk₂ + k₁ᵛk₂ʷ + k₁ʷk₂ᵛ + k₁k₂ᵛʷ
            mixed = self.mixed * other.value + self.value * other.mixed
            for one, two in ((self.left, other.right), (self.right, other.left)):
                if one is not None and two is not None:
                    mixed = mixed + one * two
        return Jet(self.value * other.value, left, right, mixed)

    @property
    def parts(self) -> tuple[Tensor | None, ...]:
        """k, ∂_v k, ∂_w k and ∂_v∂_w k."""
        return self.value, self.left, self.right, self.mixed


def jet(
    kernel: Kernel,
    p: Float[Tensor, "*#batch a d"],
    q: Float[Tensor, "*#batch b d"],
    v: Float[Tensor, "*#batch a d"] | None = None,
    w: Float[Tensor, "*#batch b d"] | None = None,
    rows: bool = False,
    blur: Blur = SHARP,
) -> Jet:
    """The jet of a GPyTorch kernel in the precision of the points, with derivatives along v and w if given.

    `rows` means that the last batch dimension of the points is one of rows, which the kernel's own batch does
    not have. `blur` holds the variances of the Gaussians around all p and all q over which the kernel is
    averaged.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        Any kernel of one output for values; for derivatives, one of those with closed forms.
    p, q : Tensor of shape (*batch, a, d) and (*batch, b, d)
        Both lists of points.
    v, w : Tensor of the shape of p and q, default=None
        The direction of the derivative at each point; None asks for none.
    """
    if blur != SHARP:
        check_blur(kernel)
    # parameters are converted to the points' precision, so that float32 points cost float32 products
    # Exact types: a subclass may compute something else.
    kind = type(kernel)
    if type(kernel) is ScaleKernel:
        if kernel.base_kernel.active_dims is None:
            # otherwise the scale has copied the active dimensions of its base, which selects them itself
            p, q, v, w = _selected(kernel, p, q, v, w)
        scale = over_rows(kernel.outputscale[..., None, None], kernel, rows).to(p)
        return jet(kernel.base_kernel, p, q, v, w, rows, blur).scale(scale)
    if type(kernel) is AdditiveKernel or type(kernel) is ProductKernel:
        p, q, v, w = _selected(kernel, p, q, v, w)
        total, *others = [jet(part, p, q, v, w, rows, blur) for part in children_of(kernel)]
        for other in others:
            total = total + other if kind is AdditiveKernel else total * other
        return total
    if (radial := radial_profile(kernel, rows)) is not None:
        lengthscale = over_rows(kernel.lengthscale, kernel, rows).to(p)
        p, q, v, w = _selected(kernel, p, q, v, w)
        factor = None
        if blur != SHARP:
            lengthscale, factor = widened(lengthscale, p.shape[-1], blur)
        p, q = in_lengthscales(p, q, lengthscale)
        v, w = (None if tangents is None else tangents / lengthscale for tangents in (v, w))
        found = _through(radial, _square_jet(p, q, v, w))
        return found if factor is None else found.scale(factor)
    if type(kernel) is PolynomialKernel and blur != SHARP:
        offset = over_rows(kernel.offset[..., None], kernel, rows).to(p)
        return _average_power_jet(offset, check_power(kernel), blur, *_selected(kernel, p, q, v, w))
    if (product := dot_product_profile(kernel, rows)) is not None:
        (variance, profile), (p, q, v, w) = product, _selected(kernel, p, q, v, w)
        variance = variance.to(p)
        return _through(profile, _product_jet(p * variance, q, None if v is None else v * variance, w))
    if v is None and w is None:
        return Jet(_values(kernel, p, q, rows))
    if kind is ConstantKernel:
        zero = torch.zeros_like(value := _values(kernel, p, q, rows))
        return Jet(value, *(None if part is None else zero for part in (v, w, None if v is None else w)))
    raise ValueError(
        f"{kind.__name__} has no derivatives in closed form here. Observe slopes through FiniteDifference, "
        "or use RBF, Matérn-3/2, Matérn-5/2, rational quadratic, polynomial, linear or constant kernels, "
        "their scalings, sums and products."
    )


def in_lengthscales(
    p: Float[Tensor, "*#batch a d"], q: Float[Tensor, "*#batch b d"], lengthscale: Tensor
) -> tuple[Float[Tensor, "*#batch a d"], Float[Tensor, "*#batch b d"]]:
    """Both lists of points in lengthscales, centred at the mean of the second to avoid cancellation in
    products.

    If some points are far from all others, their mean is far from everything, and points are not centred.
    """
    centre = q.detach().mean(dim=-2, keepdim=True)
    near = [(points - centre) / lengthscale for points in (p, q)]
    if is_far(*(points.detach().square().sum(-1) for points in near)):
        return p / lengthscale, q / lengthscale
    return near[0], near[1]


def is_far(*squares: Tensor) -> bool:
    """Whether points with these squared norms are so far from the origin that products cannot resolve
    distances.

    The rounding error of a product is eps·|p|². So one point far from all others, such as a row of 1e9 for
    missing values, spoils all distances. On a GPU this is not checked while gradients are recorded, because
    the check would wait for the GPU.
    """
    if torch.is_grad_enabled() and squares[0].device.type != "cpu":
        return False
    largest = max((float(each.detach().max()) for each in squares if each.numel()), default=0.0)
    return largest > torch.finfo(squares[0].dtype).eps ** -0.5


def squared_distance(
    p: Float[Tensor, "*#batch a d"], q: Float[Tensor, "*#batch b d"]
) -> Float[Tensor, "*#batch a b"]:
    """|p - q|² as one product, [-2p, |p|², 1]·[q, 1, |q|²], or by differences to avoid cancellation."""
    p_square, q_square = (x.square().sum(-1, keepdim=True) for x in (p, q))
    if is_far(p_square, q_square):
        return torch.cdist(p, q, compute_mode="donot_use_mm_for_euclid_dist").square()
    left = torch.cat([-2 * p, p_square, torch.ones_like(p_square)], dim=-1)
    right = torch.cat([q, torch.ones_like(q_square), q_square], dim=-1)
    return (left @ right.mT).relu_()


def snapped_squared_distance(
    p: Float[Tensor, "*#batch a d"], q: Float[Tensor, "*#batch b d"]
) -> Float[Tensor, "*#batch a b"]:
    """|p - q|², set to zero if it is at the level of rounding, because slopes depend on its square root."""
    squares = squared_distance(p, q)
    p_square, q_square = (x.detach().square().sum(-1) for x in (p, q))
    noise = 8 * torch.finfo(squares.dtype).eps * (p_square[..., :, None] + q_square[..., None, :])
    return squares.masked_fill(squares.detach() < noise, 0)


def _square_jet(p: Tensor, q: Tensor, v: Tensor | None, w: Tensor | None) -> Jet:
    """|p - q|², whose slopes are 2(p - q)·v and -2(p - q)·w, and -2v·w."""
    if v is None and w is None:
        return Jet(squared_distance(p, q))
    left = None if v is None else 2 * ((p * v).sum(-1, keepdim=True) - v @ q.mT)
    right = None if w is None else 2 * ((q * w).sum(-1)[..., None, :] - p @ w.mT)
    mixed = None if v is None or w is None else -2 * (v @ w.mT)
    return Jet(snapped_squared_distance(p, q), left, right, mixed)


def _product_jet(p: Tensor, q: Tensor, v: Tensor | None, w: Tensor | None) -> Jet:
    """p·q, whose slopes are v·q and p·w, and v·w."""
    left = None if v is None else v @ q.mT
    right = None if w is None else p @ w.mT
    return Jet(p @ q.mT, left, right, None if v is None or w is None else v @ w.mT)


def _through(profile: Profile, inner: Jet) -> Jet:
    """h(t) of a jet t: h′ ∂_v t, h′ ∂_w t, and h″ ∂_v t ∂_w t + h′ ∂_v∂_w t."""
    t, along_v, along_w, along_both = inner.parts
    assert t is not None
    if along_v is None and along_w is None:
        if profile is rbf and not t.requires_grad:
            return Jet(t.mul_(-0.5).exp_())  # without a second array
        return Jet(profile(t, 0))
    slope = profile(t, 1)
    mixed = None
    if along_v is not None and along_w is not None and along_both is not None:
        mixed = profile(t, 2) * along_v * along_w + slope * along_both
    left, right = (None if along is None else slope * along for along in (along_v, along_w))
    return Jet(profile(t, 0), left, right, mixed)


def _average_power_jet(
    offset: Tensor, power: int, blur: Blur, p: Tensor, q: Tensor, v: Tensor | None, w: Tensor | None
) -> Jet:
    product = _product_jet(p, q, v, w)
    none = product.value.new_zeros(()).expand_as(product.value)
    zeros = (
        None if v is None else none,
        None if w is None else none,
        None if product.mixed is None else none,
    )
    # |p|² has the slope 2p·v along v, |q|² has 2q·w along w, and neither has a mixed derivative.
    p_square, q_square = p.square().sum(-1)[..., :, None], q.square().sum(-1)[..., None, :]
    p_slope = None if v is None else (2 * (p * v).sum(-1)[..., :, None]).expand_as(none)
    q_slope = None if w is None else (2 * (q * w).sum(-1)[..., None, :]).expand_as(none)
    squares = (
        Jet(p_square.expand_as(none), p_slope, *zeros[1:]),
        Jet(q_square.expand_as(none), zeros[0], q_slope, zeros[2]),
    )
    return average_power(product, squares, offset, power, p.shape[-1], blur)


def _values(kernel: Kernel, p: Tensor, q: Tensor, rows: bool) -> Tensor:
    if kernel.num_outputs_per_input(p, q) != 1:
        raise ValueError(
            f"{type(kernel).__name__} has several outputs per input; Orbitwise takes scalar kernels."
        )
    if not rows:
        return kernel(p, q).to_dense().to(p)
    pairs = torch.broadcast_tensors(p[..., :, None, :], q[..., None, :, :])
    # all pairs of all rows as one list, because the kernel's batch has no dimension for rows: [*batch n s t]
    first, second = (x.flatten(-4, -2) for x in pairs)
    values = torch.as_tensor(kernel(first, second, diag=True))
    return values.unflatten(-1, pairs[0].shape[-4:-1]).to(p)


def _selected(
    kernel: Kernel, p: Tensor, q: Tensor, v: Tensor | None, w: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    v, w = (None if tangents is None else select(kernel, tangents) for tangents in (v, w))
    return select(kernel, p), select(kernel, q), v, w
