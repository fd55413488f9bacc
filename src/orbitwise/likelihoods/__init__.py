"""Likelihoods: lower bounds of E[log p(y | f)] that are quadratic in f, and general ones for exact rows."""

from orbitwise.likelihoods.bernoulli import Bernoulli
from orbitwise.likelihoods.dirichlet import Dirichlet
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.laplace import Laplace
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic
from orbitwise.likelihoods.poisson import Poisson
from orbitwise.likelihoods.softmax import Softmax
from orbitwise.likelihoods.student import StudentT

__all__ = [
    "Bernoulli",
    "Dirichlet",
    "Gaussian",
    "Laplace",
    "Likelihood",
    "Poisson",
    "Quadratic",
    "Softmax",
    "StudentT",
]
