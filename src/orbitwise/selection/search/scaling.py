"""A search looks at inputs of mean 0 and deviation 1; what it learned is then said in the units of the data.

One shift and one scale serve all columns, so that exchanges of columns and distances keep their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from orbitwise.kernels.spelling import Expression, Sum, Term, add, multiply
from orbitwise.selection.search.claims import Claim
from orbitwise.selection.search.hypotheses import Hypothesis

POWERS = {
    "lengthscale": 1.0,
    "period_length": 1.0,
    "variance": -2.0,
    "mixture_means": -1.0,
    "mixture_scales": -1.0,
}
"""With which power of the scale a hyperparameter grows."""

ABOUT_THE_ORIGIN = ("arc", "dot", "polynomial")
"""Kernels that a shift of the inputs changes into others: with them, inputs are looked at as they are."""


@final
@dataclass(frozen=True)
class Scaling:
    """u = (x - shift)/scale."""

    shift: float
    scale: float

    @staticmethod
    def of(x: NDArray[np.float64], names: list[str]) -> Scaling:
        """The shift and scale of the inputs; none where a base kernel has its own origin."""
        if any(name in ABOUT_THE_ORIGIN for name in names):
            return Scaling(0.0, 1.0)
        spread = float(np.sqrt(np.square(x - x.mean(0)).mean()))
        shift = float(x.mean())
        is_constant = spread <= 1e-13 * max(abs(shift), float(np.abs(x).max()))
        return Scaling(shift, 1.0 if is_constant else spread)

    @property
    def inverse(self) -> Scaling:
        """From u back to x: `inverse.undo` takes a hypothesis in the units of the data to scaled inputs."""
        return Scaling(-self.shift / self.scale, 1 / self.scale)

    def apply(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scaled inputs."""
        return (x - self.shift) / self.scale

    def undo(self, hypothesis: Hypothesis) -> Hypothesis:
        """The hypothesis for the inputs as they were."""
        claims = tuple(self._claim(claim) for claim in hypothesis.claims)
        return replace(hypothesis, expression=self._expression(hypothesis.expression), claims=claims)

    def scaled_claim(self, claim: Claim) -> Claim:
        """A claim whose value was given in the units of the data, for scaled inputs."""
        if claim.value is None:
            return claim
        shift = 0.0 if claim.kind == "period" else self.shift
        return replace(claim, value=(claim.value - shift) / self.scale)

    def _claim(self, claim: Claim) -> Claim:
        if claim.value is None:
            return claim
        shift = 0.0 if claim.kind == "period" else self.shift
        return replace(claim, value=claim.value * self.scale + shift)

    def _expression(self, expression: Expression) -> Expression:
        if isinstance(expression, Term):
            values = tuple((name, self._values(expression, name, each)) for name, each in expression.values)
            return replace(expression, values=values)
        parts = [self._expression(part) for part in expression.parts]
        if isinstance(expression, Sum):
            return add(*parts)
        return multiply(*parts, factor=expression.factor)

    def _values(self, term: Term, name: str, values: tuple[float, ...]) -> tuple[float, ...]:
        if name == "centre":
            return tuple(value * self.scale + self.shift for value in values)
        if term.name == "periodic" and name == "lengthscale":
            return values
        return tuple(value * self.scale ** POWERS.get(name, 0.0) for value in values)
