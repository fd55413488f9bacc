"""Inference engines: functions of a process, rows and targets that return small results."""

from orbitwise.inference.exact import Evidence, ExactPosterior, LeaveOneOut
from orbitwise.inference.model import Posterior
from orbitwise.inference.optimise.hyperparameters import Hyperparameters
from orbitwise.inference.optimise.training import Training, log_prior, maximize
from orbitwise.inference.sparse.certificate import Certificate, Stage
from orbitwise.process.process import Moments

__all__ = [
    "Certificate",
    "Evidence",
    "ExactPosterior",
    "Hyperparameters",
    "LeaveOneOut",
    "Moments",
    "Posterior",
    "Stage",
    "Training",
    "log_prior",
    "maximize",
]
