"""Every learned number has a prior, which is weak and follows the units of the inputs."""

import numpy as np
import pytest
import torch
from torch import nn

from orbitwise.kernels import BASES, parse
from orbitwise.selection.search.claims import Claim, functional_of_claims
from orbitwise.selection.search.hyperpriors import Normal, hyperpriors, log_prior

X = np.random.default_rng(0).uniform(0, 5, (30, 1))


def priors_of(text: str, x: np.ndarray, claims: list[Claim]) -> list[Normal]:
    noise, constant = (nn.Parameter(torch.zeros((), dtype=torch.float64)) for _ in range(2))
    functional = functional_of_claims(claims, x.shape[1])
    return hyperpriors(parse(text, x.shape[1]), functional, noise, constant, x)


@pytest.mark.parametrize("name", BASES)
def test_nothing_that_is_learned_is_without_a_prior(name: str):
    claims = [Claim("mirror", (0,), 1.0), Claim("period", (0,), 2.0), Claim("odd", (0,), 1.0, True)]
    found = priors_of(f"{name}*rbf", X, claims)
    learned = [each for each in parse(f"{name}*rbf", 1).parameters() if each.requires_grad]
    assert len(found) == len(learned) + 4
    assert all(np.isfinite(each.mean) and each.deviation > 0 for each in found)


def test_the_density_is_that_of_normals():
    found = priors_of("rbf + linear", X, [Claim("mirror", (0,), 1.0)])
    expected = sum(
        torch.distributions.Normal(each.mean, each.deviation).log_prob(each.parameter.detach()).sum().item()
        for each in found
    )
    assert log_prior(found).item() == pytest.approx(expected, rel=1e-7)


def test_priors_follow_the_units():
    def means(x: np.ndarray) -> list[float]:
        return [each.mean for each in priors_of("rbf + periodic", x, [])]

    difference = np.array(means(10 * X)) - np.array(means(X))
    assert difference[difference != 0] == pytest.approx(np.log(10.0) * np.ones(2))
