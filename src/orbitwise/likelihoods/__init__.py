"""Likelihoods: lower bounds of E[log p(y | f)] that are quadratic in f."""

from orbitwise.likelihoods.bernoulli import Bernoulli
from orbitwise.likelihoods.dirichlet import Dirichlet
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic

__all__ = ["Bernoulli", "Dirichlet", "Gaussian", "Likelihood", "Quadratic"]
