"""What every engine returns: a posterior that knows the moments of any functional."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.functional import Functional


class Moments(NamedTuple):
    """Posterior moments of rows, one column for each output. The variance is shared by all outputs."""

    mean: Float[Tensor, "n c"]
    variance: Float[Tensor, " n"]
    mean_square: Float[Tensor, "n c"]


class Posterior(ABC):
    """A Gaussian posterior over g, asked through functionals."""

    @abstractmethod
    def moments(
        self, functional: Functional, x: Tensor, generator: torch.Generator | None = None
    ) -> Moments:
        """The posterior moments of L_x g for every row of x."""
