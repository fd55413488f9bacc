import math

import pytest
import torch

from orbitwise.transforms import Intensity
from tests.contracts.transform_contract import ContinuousContract, inputs


class TestIntensity(ContinuousContract):
    narrower = None

    @pytest.fixture
    def case(self):
        return Intensity(), 6


def moved(brightness: float, log_contrast: float) -> torch.Tensor:
    alpha = torch.tensor([brightness, log_contrast], dtype=torch.float64).expand(3, 1, 2)
    return Intensity()(inputs(6), alpha)[:, 0]


def test_brightness_is_added():
    torch.testing.assert_close(moved(0.2, 0.0), inputs(6) + 0.2)


def test_contrast_keeps_the_mean_and_scales_the_deviation():
    x = inputs(6)
    torch.testing.assert_close(moved(0.0, math.log(3)).mean(-1), x.mean(-1))
    torch.testing.assert_close(moved(0.0, math.log(3)).std(-1), 3 * x.std(-1))
    torch.testing.assert_close(moved(0.0, -50.0), x.mean(-1, keepdim=True).expand(3, 6))
