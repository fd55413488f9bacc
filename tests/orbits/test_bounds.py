import math

import pytest
import torch

from orbitwise.orbits import Bounds
from tests.contracts.annotations import unchecked

NAMES = ("angle", "shear", "shift")


def placed(bounds: Bounds, noise: float) -> list[float]:
    """α for the same noise in every parameter."""
    return bounds.place(torch.full((len(NAMES),), noise, dtype=torch.float64)).tolist()


def test_noise_between_minus_one_and_one_fills_the_bounds():
    bounds = Bounds(NAMES, {"angle": 0.5, "shear": (1.0, 4.0)})
    assert placed(bounds, -1) == pytest.approx([-0.5, 1.0, 0.0])
    assert placed(bounds, 0) == pytest.approx([0.0, 2.5, 0.0])
    assert placed(bounds, 1) == pytest.approx([0.5, 4.0, 0.0])


def test_intervals_leave_out_what_stays_at_the_identity():
    intervals = Bounds(
        NAMES, {"angle": 0.5, "shear": (1.0, 4.0), "shift": 0.0}, learnable=["angle"]
    ).intervals()
    assert set(intervals) == {"angle", "shear"}
    assert intervals["angle"] == pytest.approx((-0.5, 0.5))
    assert intervals["shear"] == (1.0, 4.0)


def test_what_is_learned():
    bounds = Bounds(NAMES, {"angle": 0.5, "shear": (1.0, 4.0), "shift": 0.25}, ["angle", "shift"], ["shift"])
    bounds.place(torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)).sum().backward()
    # the half-width is the exponential of its raw value; the centre moves by itself
    assert bounds.raw_half.grad.tolist() == pytest.approx([0.5, 0.0, 0.25])
    assert bounds.centre.grad.tolist() == [0.0, 0.0, 1.0]
    fixed = Bounds(NAMES, {"angle": 0.5}, learnable=[])
    assert not any(parameter.requires_grad for parameter in fixed.parameters())


def test_a_step_moves_learned_bounds_only():
    bounds = Bounds(NAMES, {"angle": 0.5, "shear": 0.5}, learnable=["angle"])
    with torch.no_grad():
        bounds.raw_half += 1
        bounds.centre += 1
    assert bounds.half_width.tolist() == pytest.approx([0.5 * math.e, 0.5, 0.0])
    assert bounds.middle.tolist() == [0.0, 0.0, 0.0], "no range is two-sided"


def test_limits_are_never_passed():
    bounds = Bounds(NAMES, {"angle": 3.0, "shear": 0.5}, limits={"angle": math.pi})
    assert bounds.half_width.tolist() == pytest.approx([3.0, 0.5, 0.0])
    with torch.no_grad():
        bounds.raw_half += 100
    assert bounds.half_width[0].item() == pytest.approx(math.pi)
    assert bounds.half_width[1] > 1e40


def test_starting_at_the_limit_stays_learnable():
    bounds = Bounds(NAMES, {"angle": math.pi}, limits={"angle": math.pi})
    assert bounds.half_width[0].item() == pytest.approx(math.pi, rel=2e-3)
    bounds.half_width.sum().backward()
    assert bounds.raw_half.grad[0] > 1e-4


def test_placing_takes_the_precision_of_the_noise():
    bounds = Bounds(NAMES, {"angle": 0.5})
    assert bounds.place(torch.zeros(2, 4, 3)).dtype == torch.float32
    assert bounds.place(torch.zeros(2, 4, 3)).shape == (2, 4, 3)


def test_they_say_what_they_are():
    assert "angle -0.500…+0.500" in repr(Bounds(NAMES, {"angle": 0.5}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": {"angel": 0.5}}, "no parameter 'angel'; there are angle, shear, shift"),
        ({"start": {}, "two_sided": ["turn"]}, "no parameter 'turn'"),
        ({"start": {}, "limits": {"turn": 1.0}}, "no parameter 'turn'"),
        ({"start": {}, "learnable": ["angle"]}, "angle starts at zero width"),
        ({"start": {"angle": 0.0}}, "angle starts at zero width"),
        ({"start": {"angle": 4.0}, "limits": {"angle": 3.0}}, "angle starts at 4, above its limit 3"),
        ({"start": {"angle": -0.5}}, "symmetric bound"),
        ({"start": {"angle": (0.5, 0.1)}}, "lower bound must not exceed"),
        ({"start": {"angle": math.nan}}, "finite"),
        ({"start": {"angle": (0.0, math.inf)}}, "finite"),
    ],
)
def test_bad_arguments(arguments, message: str):
    with unchecked(), pytest.raises(ValueError, match=message):
        Bounds(NAMES, **arguments)


def test_a_hundred_thousand_names_are_no_burden():
    """Time that grows with the square of the names would be minutes."""
    names = [f"shift_{place}" for place in range(100_000)]
    bounds = Bounds(names, dict.fromkeys(names, 0.1), two_sided=names)
    assert len(bounds.intervals()) == 100_000
