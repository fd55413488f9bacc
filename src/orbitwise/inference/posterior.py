"""What every engine returns: a posterior that knows the moments of any functional."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from orbitwise.functionals.functional import Functional
from orbitwise.process.moments import Moments


class Posterior(ABC):
    """A Gaussian posterior over g, asked through functionals."""

    @abstractmethod
    def moments(self, functional: Functional, x: Tensor, generator: torch.Generator | None = None) -> Moments:
        """The posterior moments of L_x g for every row of x."""
