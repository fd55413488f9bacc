import math

import numpy as np
import pytest
import torch

from orbitwise.transforms import TimeShift, TimeWarp
from orbitwise.transforms.signals import TANGENT_STEP, check_signal_shape, read_delayed
from tests.contracts.annotations import unchecked
from tests.contracts.transform_contract import ContinuousContract, inputs


class TestTimeShift(ContinuousContract):
    tangent_step = TANGENT_STEP

    @pytest.fixture(params=["zero", "wrap", "channels"])
    def case(self, request):
        return {
            "zero": lambda: (TimeShift(6), 6),
            "wrap": lambda: (TimeShift(6, boundary="wrap"), 6),
            "channels": lambda: (TimeShift((2, 3)), 6),
        }[request.param]()


class TestTimeWarp(ContinuousContract):
    tangent_step = TANGENT_STEP

    @pytest.fixture(params=["zero", "wrap", "channels"])
    def case(self, request):
        return {
            "zero": lambda: (TimeWarp(6), 6),
            "wrap": lambda: (TimeWarp(6, boundary="wrap"), 6),
            "channels": lambda: (TimeWarp((2, 3)), 6),
        }[request.param]()


def shifted(transform: TimeShift, x: torch.Tensor, shift: float) -> torch.Tensor:
    return transform(x, torch.full((len(x), 1, 1), shift, dtype=x.dtype))[:, 0]


@pytest.mark.parametrize("shift", [-9, -3, 0, 1, 4, 5, 13])
def test_whole_samples_roll(shift: int):
    x = inputs(10)
    rolled = x.reshape(3, 2, 5).roll(shift, -1).reshape(3, 10)
    torch.testing.assert_close(
        shifted(TimeShift((2, 5), "wrap"), x, float(shift)), rolled, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("shift", [-7, -5, -2, 0, 1, 4, 5, 9])
def test_whole_samples_move_zeros_in(shift: int):
    x = inputs(5)
    expected = torch.zeros_like(x)
    for time in range(5):
        if 0 <= time - shift < 5:
            expected[:, time] = x[:, time - shift]
    torch.testing.assert_close(shifted(TimeShift(5), x, float(shift)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("boundary", ["zero", "wrap"])
def test_parts_of_a_sample_are_interpolated(boundary: str):
    x, shift = inputs(7, rows=1), 1.3
    time, padded = np.arange(7) - shift, np.r_[0, x[0].numpy(), 0]
    expected = np.interp(time, np.arange(-1, 8), padded)
    if boundary == "wrap":
        expected = np.interp(time, np.arange(7), x[0].numpy(), period=7)
    np.testing.assert_allclose(shifted(TimeShift(7, boundary), x, shift)[0], expected, atol=1e-12)


def test_a_constant_warp_is_a_shift():
    x = inputs(10)
    delays = torch.tensor([0.4, -2.7, 11.0], dtype=torch.float64)[:, None, None]
    for boundary in ("zero", "wrap"):
        shift, warp = TimeShift((2, 5), boundary), TimeWarp((2, 5), boundary)
        warped = warp(x, delays.expand(3, 1, 5))
        torch.testing.assert_close(warped, shift(x, delays), rtol=0, atol=1e-12)


def test_a_warp_delays_each_sample_by_its_own():
    x = torch.tensor([[0.0, 10.0, 20.0, 30.0]], dtype=torch.float64)
    moved = TimeWarp(4)(x, torch.tensor([[[0.0, -1.0, 0.5, 1.25]]], dtype=torch.float64))
    assert moved[0, 0].tolist() == [0, 20, 15, 17.5]


def test_the_tangent_of_a_shift_is_minus_the_slope():
    x = inputs(6)
    slope = (x.roll(-1, -1) - x.roll(1, -1)) / 2
    torch.testing.assert_close(TimeShift(6, "wrap").tangent(x)[:, 0], -slope)


def test_a_signal_of_one_sample():
    x = torch.tensor([[3.0]])
    assert shifted(TimeShift(1, "wrap"), x, 0.3).item() == pytest.approx(3)
    assert shifted(TimeShift(1), x, 0.25).item() == pytest.approx(3 * 0.75)
    assert shifted(TimeShift(1), x, 2.0).item() == 0


def test_one_delay_for_all_times_or_one_for_each():
    x = inputs(4)
    one = read_delayed(x, torch.full((3, 2, 1), 0.5, dtype=torch.float64), (1, 4), "zero")
    each = read_delayed(x, torch.full((3, 2, 4), 0.5, dtype=torch.float64), (1, 4), "zero")
    torch.testing.assert_close(one, each, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [5, (5,), (1, 5)])
def test_shapes_of_one_channel(shape):
    assert check_signal_shape(shape) == (1, 5)


@pytest.mark.parametrize("shape", [0, -1, (2, 0), (1, 2, 3), (2.5, 3), ()])
def test_bad_shapes(shape):
    with unchecked(), pytest.raises(ValueError, match="whole samples"):
        TimeShift(shape)


def test_bad_boundary():
    for make in (TimeShift, TimeWarp):
        with unchecked(), pytest.raises(ValueError, match="'zero' or 'wrap', not 'mirror'"):
            make(4, "mirror")


def test_far_shifts_stay_finite():
    x = inputs(4)
    for boundary in ("zero", "wrap"):
        assert shifted(TimeShift(4, boundary), x, 1e7 + 1 / 3).isfinite().all()
    assert math.isclose(shifted(TimeShift(4, "wrap"), x, 4e6).sum().item(), x.sum().item())
