"""Selection: compare, weigh and average models by evidence, with hyperparameters integrated out; search."""

from orbitwise.selection.compare import Candidate, Comparison, compare
from orbitwise.selection.evidence import EvidenceEstimate, integrate_evidence
from orbitwise.selection.fitted import hyperparameters_of
from orbitwise.selection.model_posterior import (
    ModelPosterior,
    PredictiveMixture,
    average_hyperparameters,
    model_posterior,
)
from orbitwise.selection.search import AutoGPRegressor

__all__ = [
    "AutoGPRegressor",
    "Candidate",
    "Comparison",
    "EvidenceEstimate",
    "ModelPosterior",
    "PredictiveMixture",
    "average_hyperparameters",
    "compare",
    "hyperparameters_of",
    "integrate_evidence",
    "model_posterior",
]
