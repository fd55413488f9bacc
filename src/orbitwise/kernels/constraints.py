"""Constraints that let hyperparameters of any scale be learned equally fast."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.constraints import Positive


def log_positive(initial_value: float | None = None) -> Positive:
    """A positivity constraint by exponentials, so that parameters of any scale are learned equally fast."""
    exp: Any = torch.exp
    return Positive(transform=exp, inv_transform=torch.log, initial_value=initial_value)
