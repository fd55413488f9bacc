"""Functionals at points: evaluation, differences, features, deleted features, and wrapped columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.declarations import LARGEST, OMITTED, POSITIVE, SMALLEST, Field, Stored, require
from orbitwise.functionals.features import FixedFeatures
from orbitwise.functionals.functional import Atoms, Functional, check_matrix, exact_atoms
from orbitwise.transforms.transform import check_rows


@final
class Difference(Functional):
    """g(x) - g(x′) for inputs [n, 2, d] that hold the pairs (x, x′)."""

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        if x.dim() != 3 or x.shape[1] != 2:
            raise ValueError(f"Difference takes pairs of inputs [n, 2, d], not shape {tuple(x.shape)}.")
        return exact_atoms(x, x.new_tensor([1.0, -1.0]).expand(len(x), 2))


def _refuse_code(functional: FeatureMap) -> str | None:
    if isinstance(functional.features, FixedFeatures):
        return None
    return (
        "FeatureMap evaluates a function of your own, which is code and cannot be stored; give it to the "
        "estimator as features=…, fit on the features themselves, computed beforehand, or pickle the model, "
        "for yourself alone."
    )


@final
class FeatureMap(Functional):
    """g(φ(x)) for a differentiable map φ of rows [n, d] to rows of features [n, e]: g lives on features.

    Composed on the right of other functionals it pushes their points to φ(p) and their tangents to Jφ·v.

    Parameters
    ----------
    features : callable
        φ, a differentiable function or module from [n, d] to [n, e] that treats rows one by one. What it
        learns itself is learned with the kernel, unless it is a `FixedFeatures`.
    """

    stored = Stored({"features": Field((FixedFeatures,))}, refuse=_refuse_code)

    def __init__(self, features: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.features = features
        self.fingerprint = features.fingerprint if isinstance(features, FixedFeatures) else ""

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        check_matrix(x, self)
        mapped = self.features(x)
        if mapped.dim() != 2 or len(mapped) != len(x) or mapped.numel() == 0:
            raise ValueError(
                "A feature map must turn [n, d] into [n, e]; "
                f"it turned {tuple(x.shape)} into {tuple(mapped.shape)}."
            )
        if not mapped.is_floating_point():
            raise ValueError(f"A feature map must give floating-point features, not {mapped.dtype}.")
        return exact_atoms(mapped[:, None, :], torch.ones_like(mapped[:, :1]))


def deletion_pairs(
    x: Float[Tensor, "n d"],
    features: Sequence[int] | None = None,
    reference: float | Float[Tensor, " d"] = 0.0,
) -> Float[Tensor, "pairs 2 d"]:
    """(x, x with x_j set to the reference) for every row and feature, as `Difference` takes them.

    The k `features` run fastest; the default is all. A deleted feature is set to the `reference`: one number,
    or one per feature, such as the means of x. If a feature already has this value, the difference is zero
    for every f.
    """
    check_rows(x, "deletion_pairs")
    width = x.shape[-1]
    chosen = list(range(width)) if features is None else list(features)
    if not chosen or not all(-width <= j < width for j in chosen):
        raise ValueError(f"features={chosen} must name columns of inputs of width {width}, at least one.")
    value = torch.as_tensor(reference, dtype=x.dtype, device=x.device)
    if value.shape not in ((), (width,)):
        raise ValueError(
            f"reference must be one number, or {width} numbers for inputs of width {width}, not shape "
            f"{tuple(value.shape)}."
        )
    is_deleted = torch.eye(width, dtype=torch.bool, device=x.device)[chosen]
    deleted = torch.where(is_deleted, value, x[:, None, :])
    return torch.stack([x[:, None, :].expand_as(deleted), deleted], dim=2).flatten(0, 1)


@final
class Wrap(Functional):
    """f(x) = g(x with column c wound around a circle of circumference p): f(x + p e_c) = f(x) for any kernel.

    The column is replaced by two, (p/2π)(cos 2πx_c/p, sin 2πx_c/p), so g has one more column. Small distances
    on the circle are those of x, so lengthscales keep their meaning. An RBF kernel of that column becomes the
    periodic kernel. The group of all shifts by p is infinite, so this cannot be a sum over an orbit.

    Parameters
    ----------
    period : float
        p, in the units of the column; where learning starts.
    column : int, default=0
        The column c that is wound around the circle.
    learnable : bool, default=True
        Whether the period is learned, as its logarithm.
    """

    stored = Stored({"period": POSITIVE, "learnable": OMITTED})

    def __init__(self, period: float, column: int = 0, learnable: bool = True) -> None:
        super().__init__()
        if not 0 < period < math.inf:
            raise ValueError(f"The period of Wrap must be positive and finite, not {period}.")
        if column < 0:
            raise ValueError(f"The column of Wrap is counted from 0, so it cannot be {column}.")
        self.column = column
        self.log_period = nn.Parameter(
            torch.tensor(math.log(period), dtype=torch.float64), requires_grad=learnable
        )

    def check_parts(self) -> None:
        """Raise a ValueError if the period is out of range."""
        require(SMALLEST <= self.period.item() <= LARGEST, "a period out of range")

    @property
    def period(self) -> Tensor:
        """The present period p."""
        return self.log_period.exp()

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        check_matrix(x, self)
        if self.column >= x.shape[1]:
            raise ValueError(f"Wrap turns column {self.column}, but the inputs have width {x.shape[1]}.")
        radius = self.period.to(x) / (2 * math.pi)
        angle = x[:, self.column] / radius
        circle = radius * torch.stack([angle.cos(), angle.sin()], 1)
        points = torch.cat([x[:, : self.column], circle, x[:, self.column + 1 :]], 1)
        return exact_atoms(points[:, None, :], torch.ones_like(points[:, :1]))

    def __repr__(self) -> str:
        return f"Wrap(period={self.period.item():.6g}, column={self.column})"
