"""Functionals at points: evaluation, the difference of two inputs, and evaluation of features."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from orbitwise.functionals.atoms import Atoms, exact_atoms
from orbitwise.functionals.functional import Functional, check_matrix


@final
class Evaluation(Functional):
    """g(x)."""

    is_identity = True

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        check_matrix(x, self)
        return exact_atoms(x[:, None, :], torch.ones_like(x[:, :1]))


@final
class Difference(Functional):
    """g(x) - g(x′) for inputs [n, 2, d] that hold the pairs (x, x′)."""

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        if x.dim() != 3 or x.shape[1] != 2:
            raise ValueError(f"Difference takes pairs of inputs [n, 2, d], not shape {tuple(x.shape)}.")
        return exact_atoms(x, x.new_tensor([1.0, -1.0]).expand(len(x), 2))


@final
class FeatureMap(Functional):
    """g(φ(x)) for a differentiable map φ of rows [n, d] to rows of features [n, e]: g lives on features.

    Composed on the right of other functionals it pushes their points to φ(p) and their tangents to Jφ·v.
    """

    def __init__(self, features: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.features = features

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
