"""What every engine returns: a posterior of g that is asked through functionals.

A row is L_i g of any functional L; rows are one block of atoms, or a list of blocks. Each posterior gives the
moments, the mean alone, the joint covariance and joint draws of rows, so that estimators need not know which
engine made it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.functional import Functional
from orbitwise.inference.linear_algebra import gaussian_draws
from orbitwise.process.process import Moments, Process, Rows


class Posterior(ABC):
    """The posterior of g given the targets; a Gaussian unless an engine says otherwise."""

    process: Process
    """The prior of g, at the hyperparameters of the fit. Mixtures over hyperparameters have none."""
    num_outputs: int
    """How many functions the posterior is of; posteriors that can be stored know it."""
    width: int
    """How many columns the inputs of g have; posteriors that can be stored know it."""

    def mean(
        self, functional: Functional, x: Tensor, generator: torch.Generator | None = None
    ) -> Float[Tensor, "n c"]:
        """The posterior mean of L_x g for every row of x, at a lower cost than all moments."""
        return self.row_mean(functional.atoms(x, generator))

    def moments(self, functional: Functional, x: Tensor, generator: torch.Generator | None = None) -> Moments:
        """The posterior moments of L_x g for every row of x."""
        return self.row_moments(functional.atoms(x, generator))

    @abstractmethod
    def row_moments(self, rows: Rows) -> Moments:
        """The posterior moments of rows that were lowered to atoms already."""

    def row_mean(self, rows: Rows) -> Float[Tensor, "n c"]:
        """The posterior mean alone, which most engines have at a lower cost than the variance."""
        return self.row_moments(rows).mean

    @abstractmethod
    def covariance(self, rows: Rows) -> Float[Tensor, "*c n n"]:
        """The joint posterior covariance of rows: one matrix for all outputs, or one for each."""

    def sample(
        self, rows: Rows, num_samples: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "n c q"]:
        """Joint posterior draws of rows, for every output."""
        mean, covariance = self.row_mean(rows), self.covariance(rows)
        each = covariance.expand(mean.shape[1], -1, -1)
        draws = [
            gaussian_draws(m[:, None], k, num_samples, generator) for m, k in zip(mean.T, each, strict=True)
        ]
        return torch.stack(draws, dim=1)
