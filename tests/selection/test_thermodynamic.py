"""Thermodynamic integration: the exact evidence of a linear model, its curve, and its errors."""

import math

import pytest
import torch
from torch import nn

from orbitwise.inference.optimise.hyperparameters import Hyperparameters
from orbitwise.selection.evidence import thermodynamic
from tests.selection.evidence_problems import NOISE, Linear, gaussian_sampler


def test_the_evidence_of_a_linear_model():
    problem = Linear()
    hyperparameters = problem.hyperparameters()
    found = thermodynamic(hyperparameters, gaussian_sampler, torch.zeros(2).double(), 24, 150)
    assert abs(found.log_evidence - problem.exact()) < 4 * found.standard_error + 0.05
    assert found.standard_error < 0.5
    # E_β[log p(y | θ)] rises from prior to posterior
    assert found.means[0] < found.means[12] - 10 < found.means[-1] - 20
    # under the prior E[log p(y | w)] is known
    square = problem.features.square().sum() + problem.y.square().sum()
    prior = -4 * math.log(2 * math.pi * NOISE**2) - 0.5 * square.item() / NOISE**2
    assert found.means[0].item() == pytest.approx(prior, rel=0.3)


def test_correction_by_variances_helps_a_coarse_rule():
    problem = Linear()
    hyperparameters = problem.hyperparameters()
    found = thermodynamic(hyperparameters, gaussian_sampler, torch.zeros(2).double(), 10, 300)
    plain = torch.trapezoid(found.means, found.powers).item()
    assert abs(found.log_evidence - problem.exact()) < abs(plain - problem.exact())


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="at least 3"):
        thermodynamic(Linear().hyperparameters(), gaussian_sampler, torch.zeros(2).double(), num_powers=2)
    module = nn.Module()
    module.a = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def evidence() -> torch.Tensor:
        if module.a.abs().item() > 0.5:
            raise ValueError("cannot be computed")
        return -module.a.square().sum()

    def far(log_density, start: torch.Tensor, num_samples: int, seed: int) -> torch.Tensor:
        return torch.ones(1, num_samples, 1, dtype=torch.float64)

    with pytest.raises(ValueError, match="not finite for samples at power 1"):
        thermodynamic(Hyperparameters(evidence, module), far, torch.zeros(1).double(), num_samples=8)
