"""The number of labels that one label counts as: given, or learned by the evidence like the noise variance.

Labels in data sets are more certain than single draws, because data sets contain what people agreed on
(Aitchison 2021, "A statistical theory of cold posteriors"). If each label counts as a single draw, the
evidence prefers functions that are too smooth.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.declarations import LARGEST, SMALLEST, is_plain_numbers, require

FLOOR = 1e-6
"""One over the greatest count that is learned."""


@final
class LabelCount(nn.Module):
    """w, a positive number. One that is `learnable` starts as given and stays below 1/`FLOOR`."""

    def __init__(self, count: float = 1.0, learnable: bool = False) -> None:
        super().__init__()
        if not 0 < count < math.inf:
            raise ValueError(f"count must be positive and finite, not {count!r}.")
        if learnable and count * FLOOR >= 1:
            raise ValueError(f"A learned count starts below {1 / FLOOR:g}, not at {count!r}.")
        self.start = count
        self.raw_dispersion: nn.Parameter | None = None
        if learnable:
            start = torch.tensor(math.log(1 / count - FLOOR), dtype=torch.float64)
            self.raw_dispersion = nn.Parameter(start)

    @property
    def is_learned(self) -> bool:
        """Whether the evidence chooses the count."""
        return self.raw_dispersion is not None

    def value(self, like: Tensor) -> Float[Tensor, ""]:
        """w, of the type and device of a tensor."""
        if self.raw_dispersion is None:
            return like.new_tensor(self.start)
        return (self.raw_dispersion.exp() + FLOOR).reciprocal().to(like)

    def check_parts(self) -> None:
        """Raise a ValueError where the count is out of range."""
        value = self.value(torch.zeros((), dtype=torch.float64)).detach()
        require(is_plain_numbers(value, SMALLEST, LARGEST), "a count of labels out of range")
