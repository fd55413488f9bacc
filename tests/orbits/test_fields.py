import math

import pytest
import torch

from orbitwise.orbits.images import smooth_curve, smooth_field, smoothing
from tests.contracts.orbit_contract import seeded


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(), dtype=torch.float64)


def test_rows_have_unit_norm_and_gaussian_weights():
    weights = smoothing(7, torch.tensor(1.5), torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(weights.square().sum(-1), torch.ones(7, dtype=torch.float64))
    assert (weights[3, 5] / weights[3, 3]).item() == pytest.approx(math.exp(-4 / (2 * 1.5**2)))


@pytest.mark.parametrize("smoothness", [0.5, 2.0, 50.0])
def test_variance_is_one_everywhere(smoothness: float):
    curves = smooth_curve(noise(4000, 9), torch.tensor(smoothness))
    fields = smooth_field(noise(4000, 4, 5), torch.tensor(smoothness))
    for values in (curves, fields):
        assert (values.square().mean(0) - 1).abs().max() < 5 * math.sqrt(2 / 4000)


def test_neighbours_agree_as_far_as_the_curve_is_smooth():
    curves = smooth_curve(noise(8000, 31), torch.tensor(3.0))
    # two Gaussians of width s that are r apart overlap by exp(-r²/4s²)
    assert (curves[:, 15] * curves[:, 18]).mean().item() == pytest.approx(math.exp(-9 / 36), abs=0.05)


def test_a_field_is_smooth_along_both_sides():
    whole = smooth_field(noise(3, 5, 4), torch.tensor(2.0))
    by_rows = smooth_curve(noise(3, 5, 4), torch.tensor(2.0))
    by_both = smooth_curve(by_rows.mT.contiguous(), torch.tensor(2.0)).mT
    torch.testing.assert_close(whole, by_both)
