"""Kernels with their first and mixed second directional derivatives, in closed form.

A jet holds k(p, q), ∂_v k, ∂_w k and ∂_v∂_w k for all pairs of points p (tangent v) and q (tangent w). Leaves
come from `orbitwise.process.profiles`; scale, sum and product rules combine them. Values alone work for every
GPyTorch kernel. With a blur, a jet is the average over Gaussians around p and q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    Kernel,
    PolynomialKernel,
    ProductKernel,
    ScaleKernel,
)
from jaxtyping import Float
from torch import Tensor

from orbitwise.process.profiles import (
    SHARP,
    Blur,
    Profile,
    average_power,
    check_blur,
    check_power,
    dot_product_profile,
    over_rows,
    parts_of,
    radial_profile,
    rbf,
    select,
    widened,
)


@dataclass(frozen=True)
class Jet:
    """Values and derivatives for all pairs of two lists of points; a derivative not asked for is None."""

    value: Float[Tensor, "*#batch a b"]
    left: Float[Tensor, "*#batch a b"] | None = None
    right: Float[Tensor, "*#batch a b"] | None = None
    mixed: Float[Tensor, "*#batch a b"] | None = None

    def scale(self, factor: Tensor | float) -> Jet:
        return Jet(factor * self.value, *(None if part is None else factor * part for part in self.parts[1:]))

    def shift(self, constant: Tensor | float) -> Jet:
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

    `rows` says that the last batch dimension of the points counts rows, for which the kernel's own batch has
    no place. `blur` holds the variances of the Gaussians around all p and all q that the kernel is averaged
    over.
    """
    if blur != SHARP:
        check_blur(kernel)
    # Parameters follow the points' precision, so that float32 points cost float32 products.
    # Exact types: a subclass may compute something else.
    kind = type(kernel)
    if type(kernel) is ScaleKernel:
        if kernel.base_kernel.active_dims is None:
            # Else the scale has copied the active dimensions of its base, which selects them itself.
            p, q, v, w = _selected(kernel, p, q, v, w)
        scale = over_rows(kernel.outputscale[..., None, None], kernel, rows).to(p)
        return jet(kernel.base_kernel, p, q, v, w, rows, blur).scale(scale)
    if type(kernel) is AdditiveKernel or type(kernel) is ProductKernel:
        p, q, v, w = _selected(kernel, p, q, v, w)
        total, *others = [jet(part, p, q, v, w, rows, blur) for part in parts_of(kernel)]
        for other in others:
            total = total + other if kind is AdditiveKernel else total * other
        return total
    if (radial := radial_profile(kernel, rows)) is not None:
        lengthscale = over_rows(kernel.lengthscale, kernel, rows).to(p)
        p, q, v, w = _selected(kernel, p, q, v, w)
        if blur == SHARP:
            return _radial_jet(radial, lengthscale, p, q, v, w)
        wide, factor = widened(lengthscale, p.shape[-1], blur)
        return _radial_jet(radial, wide, p, q, v, w).scale(factor)
    if type(kernel) is PolynomialKernel and blur != SHARP:
        offset = over_rows(kernel.offset[..., None], kernel, rows).to(p)
        return _average_power_jet(offset, check_power(kernel), blur, *_selected(kernel, p, q, v, w))
    if (product := dot_product_profile(kernel, rows)) is not None:
        return _dot_product_jet(*product, *_selected(kernel, p, q, v, w))
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
    """Both lists of points in lengthscales, about the mean of the second, because products cancel far from 0.

    Where some points are far from all others their mean is far from everything, and points stay as they are.
    """
    centre = q.detach().mean(dim=-2, keepdim=True)
    near = [(points - centre) / lengthscale for points in (p, q)]
    if is_far(*(points.detach().square().sum(-1) for points in near)):
        return p / lengthscale, q / lengthscale
    return near[0], near[1]


def is_far(*squares: Tensor) -> bool:
    """Whether points with these squared norms are so far from the origin that products lose their distances.

    The product of such points is off by eps·|p|². One point far from all others, such as a row of 1e9 in
    place of missing values, then spoils the distances of all of them. On a GPU nothing is looked at while
    gradients are recorded, because that would wait for the GPU.
    """
    if torch.is_grad_enabled() and squares[0].device.type != "cpu":
        return False
    largest = max((float(each.detach().max()) for each in squares if each.numel()), default=0.0)
    return largest > torch.finfo(squares[0].dtype).eps ** -0.5


def squared_distance(
    p: Float[Tensor, "*#batch a d"], q: Float[Tensor, "*#batch b d"]
) -> Float[Tensor, "*#batch a b"]:
    """|p - q|² as one product, [-2p, |p|², 1]·[q, 1, |q|²], or by differences where that would cancel."""
    p_square, q_square = (x.square().sum(-1, keepdim=True) for x in (p, q))
    if is_far(p_square, q_square):
        return torch.cdist(p, q, compute_mode="donot_use_mm_for_euclid_dist").square()
    left = torch.cat([-2 * p, p_square, torch.ones_like(p_square)], dim=-1)
    right = torch.cat([q, torch.ones_like(q_square), q_square], dim=-1)
    return (left @ right.mT).relu_()


def snapped_squared_distance(
    p: Float[Tensor, "*#batch a d"], q: Float[Tensor, "*#batch b d"]
) -> Float[Tensor, "*#batch a b"]:
    """|p - q|², exactly zero where rounding cannot tell it from zero: slopes feel its root at such points."""
    squares = squared_distance(p, q)
    p_square, q_square = (x.detach().square().sum(-1) for x in (p, q))
    noise = 8 * torch.finfo(squares.dtype).eps * (p_square[..., :, None] + q_square[..., None, :])
    return squares.masked_fill(squares.detach() < noise, 0)


def _radial_jet(
    radial: Profile, lengthscale: Tensor, p: Tensor, q: Tensor, v: Tensor | None, w: Tensor | None
) -> Jet:
    lengthscale = lengthscale.to(p.dtype)
    p, q = in_lengthscales(p, q, lengthscale)
    if v is None and w is None:
        squares = squared_distance(p, q)
        if radial is rbf and not squares.requires_grad:
            return Jet(squares.mul_(-0.5).exp_())  # without a second array
        return Jet(radial(squares, 0))
    squares = snapped_squared_distance(p, q)
    value, slope = radial(squares, 0), radial(squares, 1)
    left = right = mixed = along_v = along_w = None
    if v is not None:
        v = v / lengthscale
        # (p - q)·v, and ∂_v κ(|p-q|²) = 2κ′ (p - q)·v
        along_v = (p * v).sum(-1, keepdim=True) - v @ q.mT
        left = 2 * slope * along_v
    if w is not None:
        w = w / lengthscale
        along_w = p @ w.mT - (q * w).sum(-1)[..., None, :]
        right = -2 * slope * along_w
    if v is not None and w is not None and along_v is not None and along_w is not None:
        # ∂_v∂_w κ = -4κ″ (p-q)·v (p-q)·w - 2κ′ v·w
        mixed = -4 * radial(squares, 2) * along_v * along_w - 2 * slope * (v @ w.mT)
    return Jet(value, left, right, mixed)


def _dot_product_jet(
    variance: Tensor, profile: Profile, p: Tensor, q: Tensor, v: Tensor | None, w: Tensor | None
) -> Jet:
    variance = variance.to(p.dtype)
    # k = h(pᵀΛq); ∂_v k = h′ vᵀΛq; ∂_v∂_w k = h″ (vᵀΛq)(pᵀΛw) + h′ vᵀΛw
    variance = variance.to(p)
    product = (p * variance) @ q.mT
    value = profile(product, 0)
    left = right = mixed = None
    if v is not None:
        along_v = (v * variance) @ q.mT
        left = profile(product, 1) * along_v
    if w is not None:
        along_w = (p * variance) @ w.mT
        right = profile(product, 1) * along_w
    if v is not None and w is not None:
        mixed = profile(product, 2) * along_v * along_w + profile(product, 1) * ((v * variance) @ w.mT)
    return Jet(value, left, right, mixed)


def _average_power_jet(
    offset: Tensor, power: int, blur: Blur, p: Tensor, q: Tensor, v: Tensor | None, w: Tensor | None
) -> Jet:
    product = _dot_product_jet(torch.ones_like(offset), _itself, p, q, v, w)
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


def _itself(t: Tensor, order: int) -> Tensor:
    return (t, torch.ones_like(t), torch.zeros_like(t))[order]


def _values(kernel: Kernel, p: Tensor, q: Tensor, rows: bool) -> Tensor:
    if kernel.num_outputs_per_input(p, q) != 1:
        raise ValueError(
            f"{type(kernel).__name__} has several outputs per input; Orbitwise takes scalar kernels."
        )
    if not rows:
        return kernel(p, q).to_dense().to(p)
    pairs = torch.broadcast_tensors(p[..., :, None, :], q[..., None, :, :])
    # All pairs of all rows as one long list, because the kernel's batch has no place for rows: [*batch n s t]
    first, second = (x.flatten(-4, -2) for x in pairs)
    values = torch.as_tensor(kernel(first, second, diag=True))
    return values.unflatten(-1, pairs[0].shape[-4:-1]).to(p)


def _selected(
    kernel: Kernel, p: Tensor, q: Tensor, v: Tensor | None, w: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    v, w = (None if tangents is None else select(kernel, tangents) for tangents in (v, w))
    return select(kernel, p), select(kernel, q), v, w
