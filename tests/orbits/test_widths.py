import math

import pytest
import torch

from orbitwise.orbits import Widths


def test_values_by_name():
    widths = Widths({"jitter": 0.5, "warp": 2.0})
    assert widths["jitter"].item() == pytest.approx(0.5)
    assert widths["warp"].item() == pytest.approx(2.0)
    assert widths.intervals()["jitter"] == pytest.approx((0.0, 0.5))
    assert widths.intervals()["warp"] == pytest.approx((0.0, 2.0))


def test_zero_is_off_and_stays_so():
    widths = Widths({"jitter": 0.0, "warp": 2.0})
    with torch.no_grad():
        widths.raw += 1
    assert widths["jitter"].item() == 0
    assert widths["warp"].item() == pytest.approx(2 * math.e)
    assert set(widths.intervals()) == {"warp"}


def test_what_is_learned():
    widths = Widths({"jitter": 0.5, "warp": 2.0}, ["warp"])
    widths.values.sum().backward()
    assert widths.raw.grad.tolist() == pytest.approx([0.0, 2.0])
    assert widths["jitter"].item() == 0.5
    assert not Widths({"jitter": 0.5}, ()).raw.requires_grad
    assert not Widths({"jitter": 0.0}).raw.requires_grad


def test_no_widths_at_all():
    assert Widths({}).intervals() == {}
    assert not Widths({}).raw.requires_grad


def test_they_say_what_they_are():
    assert repr(Widths({"jitter": 0.5})) == "Widths(jitter 0.5)"


@pytest.mark.parametrize(
    ("start", "learnable", "message"),
    [
        ({"jitter": -0.1}, None, "jitter must be finite and must not be negative, not -0.1"),
        ({"jitter": math.nan}, None, "finite"),
        ({"jitter": math.inf}, None, "finite"),
        ({"jitter": 0.5}, ["jiter"], "no width 'jiter'; there are jitter"),
        ({"jitter": 0.0}, ["jitter"], "jitter is zero"),
    ],
)
def test_bad_arguments(start, learnable, message: str):
    with pytest.raises(ValueError, match=message):
        Widths(start, learnable)


def test_a_hundred_thousand_names_are_no_burden():
    """Time that grows with the square of the names would be minutes."""
    widths = Widths({f"jitter_{place}": 0.1 for place in range(100_000)})
    assert len(widths.intervals()) == 100_000
