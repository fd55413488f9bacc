"""Functionals: what is observed of the base process g. All are lowered to atoms."""

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.averages import OrbitAverage, OrbitSum, average_minus_value
from orbitwise.functionals.derivatives import (
    DirectionalDerivative,
    FiniteDifference,
    Gradient,
    TransformationDerivative,
)
from orbitwise.functionals.functional import Block, Combination, Composition, Functional
from orbitwise.functionals.gradients import Gradients
from orbitwise.functionals.points import Difference, Evaluation, FeatureMap

__all__ = [
    "Atoms",
    "Block",
    "Combination",
    "Composition",
    "Difference",
    "DirectionalDerivative",
    "Evaluation",
    "FeatureMap",
    "FiniteDifference",
    "Functional",
    "Gradient",
    "Gradients",
    "OrbitAverage",
    "OrbitSum",
    "TransformationDerivative",
    "average_minus_value",
]
