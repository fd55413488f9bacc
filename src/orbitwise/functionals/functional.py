"""What every functional promises: lower inputs to atoms. And the algebra of functionals.

a + b, a - b, 2 * a     linear combinations, row by row
a @ b                   a of the function x ↦ b_x(g): derivatives of averages, averages of features, …
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.declarations import Stored
from orbitwise.functionals.atoms import Atoms, Block, Gradients


class Functional(nn.Module, ABC):
    """A family of linear functionals L_x of the base process g, one for every input x."""

    is_identity: bool = False
    """Whether L_x(g) = g(x)."""

    stored = Stored()

    @abstractmethod
    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Block:
        """The atoms of L_x for every row of a checked x."""

    def atoms(self, x: Float[Tensor, "n ..."], generator: torch.Generator | None = None) -> Block:
        """The atoms of L_x for every row of x, after a look at x."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"Functionals take a floating-point tensor [n, d], not {kind}: torch.as_tensor(x).double()."
            )
        if x.dim() < 2 or x.numel() == 0:
            raise ValueError(
                f"Functionals take a non-empty tensor of inputs [n, d], not shape {tuple(x.shape)}."
            )
        return self.lower(x, generator)

    def __add__(self, other: Functional) -> Functional:
        return Combination([self, other], [1.0, 1.0]) if isinstance(other, Functional) else NotImplemented

    def __sub__(self, other: Functional) -> Functional:
        return Combination([self, other], [1.0, -1.0]) if isinstance(other, Functional) else NotImplemented

    def __mul__(self, factor: float) -> Functional:
        return NotImplemented if isinstance(factor, Functional) else Combination([self], [float(factor)])

    __rmul__ = __mul__

    def __neg__(self) -> Functional:
        return self * -1.0

    def __matmul__(self, inner: Functional) -> Functional:
        if not isinstance(inner, Functional):
            return NotImplemented
        return inner if self.is_identity else self if inner.is_identity else Composition(self, inner)


@final
class Combination(Functional):
    """Σ_j factor_j L_j."""

    def __init__(self, parts: list[Functional], factors: list[float]) -> None:
        super().__init__()
        if not parts or len(parts) != len(factors):
            raise ValueError(
                f"A combination has one factor per functional, not {len(factors)} factors for {len(parts)}."
            )
        self.parts = nn.ModuleList(parts)
        self.factors = factors

    @property
    def functionals(self) -> list[Functional]:
        """The L_j."""
        return [part for part in self.parts if isinstance(part, Functional)]

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Block:
        scaled = [
            part.lower(x, generator).scale(factor)
            for part, factor in zip(self.functionals, self.factors, strict=True)
        ]
        if len(scaled) == 1:
            return scaled[0]
        total = _as_atoms(scaled[0])
        for block in scaled[1:]:
            total = total + _as_atoms(block)
        return total


@final
class Composition(Functional):
    """`outer` of the function x ↦ inner_x(g)."""

    def __init__(self, outer: Functional, inner: Functional) -> None:
        super().__init__()
        self.outer = outer
        self.inner = inner

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Block:
        return self.outer.lower(x, generator).substitute(self.inner, generator)


def _as_atoms(block: Block) -> Atoms:
    if isinstance(block, Gradients):
        raise ValueError(
            "Gradient is a block of many rows and cannot be added; add DirectionalDerivative functionals."
        )
    return block


def check_matrix(x: Tensor, functional: Functional) -> None:
    """Raise a ValueError unless x is a matrix of inputs."""
    if x.dim() != 2:
        raise ValueError(f"{type(functional).__name__} takes inputs [n, d], not shape {tuple(x.shape)}.")
