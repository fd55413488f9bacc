"""The posterior that the talk's results share is exact with inducing points at all data."""

import pytest
import torch

from orbitwise.inference import exact
from orbitwise.reproduce.talk_demo import process_of, variational, wave, waves

NOISE = 0.3


def test_data_are_noisy_values_of_the_function_that_a_seed_repeats():
    rows, again, other = waves(4000, NOISE, 0), waves(4000, NOISE, 0), waves(4000, NOISE, 1)
    assert torch.equal(rows.targets, again.targets)
    assert not torch.equal(rows.x, other.x)
    errors = rows.targets - wave(rows.x)
    assert errors.std().item() == pytest.approx(NOISE, rel=0.05)
    assert abs(errors.mean().item()) < 0.02


@pytest.mark.parametrize("tight", [True, False])
def test_points_at_all_data_give_the_exact_posterior_and_fewer_a_lower_bound(tight):
    rows, process, variance = waves(12, NOISE, 0), process_of(0.3), NOISE**2
    noise = torch.full((12,), variance, dtype=torch.float64)
    posterior = exact.condition(process, rows.atoms(), rows.targets, noise)
    whole, part = (variational(process, rows, variance, rows.x[:count], tight) for count in (12, 6))
    truth = posterior.evidence().value.item()
    assert whole.bound == pytest.approx(truth, abs=1e-5)
    assert part.bound < truth - 1
    asked = rows.functional.atoms(torch.linspace(0, 6, 20, dtype=torch.float64)[:, None])
    mean = posterior.row_moments(asked).mean
    torch.testing.assert_close(whole.posterior.row_moments(asked).mean, mean, rtol=0, atol=1e-5)
