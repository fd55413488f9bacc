"""Inference engines: functions of a process, rows and targets that return small results."""

from orbitwise.inference.automatic import Certificate, Stage
from orbitwise.inference.exact import Evidence, ExactPosterior, LeaveOneOut
from orbitwise.inference.hyperparameters import Hyperparameters
from orbitwise.inference.posterior import Posterior
from orbitwise.inference.training import Training, log_prior, maximize
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
