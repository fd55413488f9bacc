"""Functionals of the base process g, which are what is observed. All are converted to atoms."""

from orbitwise.functionals.averages import LocalAverage, OrbitAverage, OrbitSum, average_minus_value
from orbitwise.functionals.derivatives import (
    DirectionalDerivative,
    DirectionalDerivatives,
    FiniteDifference,
    Gradient,
    TotalVariation,
    TransformationDerivative,
    total_variation,
)
from orbitwise.functionals.distances import InverseDistances
from orbitwise.functionals.functional import (
    Atoms,
    Block,
    Combination,
    Composition,
    Evaluation,
    Functional,
    Gradients,
)
from orbitwise.functionals.graphs import NeighbourGraph, neighbour_graph
from orbitwise.functionals.points import Difference, FeatureMap, Wrap, deletion_pairs
from orbitwise.functionals.tangents import (
    MOVES,
    PAPER_MOVES,
    ImageTangent,
    image_tangents,
    moved_images,
    moved_pairs,
    smoothed_images,
)

__all__ = [
    "Atoms",
    "Block",
    "Combination",
    "Composition",
    "Difference",
    "DirectionalDerivative",
    "DirectionalDerivatives",
    "Evaluation",
    "FeatureMap",
    "FiniteDifference",
    "Functional",
    "Gradient",
    "Gradients",
    "ImageTangent",
    "InverseDistances",
    "LocalAverage",
    "MOVES",
    "NeighbourGraph",
    "OrbitAverage",
    "OrbitSum",
    "PAPER_MOVES",
    "TotalVariation",
    "TransformationDerivative",
    "Wrap",
    "average_minus_value",
    "deletion_pairs",
    "image_tangents",
    "moved_images",
    "moved_pairs",
    "neighbour_graph",
    "smoothed_images",
    "total_variation",
]
