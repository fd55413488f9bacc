import pytest
import torch

from orbitwise.inference.risk import newton, stochastic
from orbitwise.losses import Hinge, Squared
from tests.inference.risk.problems import random_problem


@pytest.mark.parametrize("batch_size", [5, 500])
def test_any_size_of_blocks_converges(batch_size):
    problem = random_problem((Hinge(0.2), Squared()), strength=0.5, structured=True)
    best = newton(random_problem((Hinge(0.2), Squared()), strength=0.5))
    found = stochastic(problem, batch_size, generator=torch.Generator().manual_seed(0))
    assert found.converged
    torch.testing.assert_close(found.objective, best.objective, rtol=1e-6, atol=0)


def test_seeds_decide_everything():
    runs = [
        stochastic(
            random_problem(), 5, max_epochs=2, generator=torch.Generator().manual_seed(seed)
        ).coefficients
        for seed in (1, 1, 2)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_bad_sizes():
    with pytest.raises(ValueError, match="batch_size=0"):
        stochastic(random_problem(), 0)
