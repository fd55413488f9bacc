"""Images of the LIM results: what they are at each scale, how they are turned, and what bounds decide."""

import math

import numpy as np
import pytest
import torch

from orbitwise.orbits import DeformationOrbit, ImageOrbit
from orbitwise.reproduce.images import (
    COLOURS,
    RBF,
    degrees_of,
    difference_error,
    is_decided,
    load_images,
    orbit_of,
    order_claim,
    randomly_turned,
    source_of,
)
from orbitwise.reproduce.result import Setting


def test_a_fresh_clone_has_digits_and_full_scale_all_of_mnist(monkeypatch):
    monkeypatch.delenv("ORBITWISE_DATA", raising=False)
    tiny, cpu, full = (source_of(Setting(scale, 1), (60, 1000, 60_000)) for scale in ("tiny", "cpu", "full"))
    assert tiny == {"data": "digits", "num_train": 60, "num_test": 200, "side": 8}
    assert cpu == {"data": "digits", "num_train": 1000, "num_test": 797, "side": 8}
    assert full == {"data": "mnist", "num_train": 60_000, "num_test": 10_000, "side": 28}


def test_images_to_learn_from_are_drawn_by_the_seed_and_never_tested(monkeypatch):
    first, again, other = (load_images("digits", 300, 797, 8, seed) for seed in (0, 0, 1))
    assert first.x.shape == (300, 8, 8)
    assert first.shape == (8, 8)
    assert 0.9 < first.x.max() <= 1
    np.testing.assert_array_equal(first.x, again.x)
    assert (first.x != other.x).any()
    np.testing.assert_array_equal(first.x_test, other.x_test)
    known = {each.tobytes() for each in first.x_test}
    assert sum(each.tobytes() in known for each in first.x) <= 1


def test_images_are_turned_by_no_more_than_the_limit():
    x = np.zeros((40, 9, 9), dtype=np.float32)
    x[:, 4, 6] = 1  # two pixels to the right of the centre
    labels = np.arange(40)
    images = load_images("digits", 1, 1, 8)._replace(x=x, y=labels, x_test=x[:5], y_test=labels[:5])
    moved = randomly_turned(images, 90, 0)
    places = np.arange(9) - 4
    columns = (moved.x * places).sum((1, 2))
    rows = (moved.x * places[:, None]).sum((1, 2))
    assert columns.min() > -0.3
    assert rows.min() < -1.2
    assert rows.max() > 1.2
    np.testing.assert_array_equal(moved.y, labels)


@pytest.mark.parametrize("model", COLOURS)
def test_every_model_has_its_orbit(model):
    orbit = orbit_of(model, (8, 8), 0.5, two_sided=True)
    if model == RBF:
        assert orbit is None
        return
    assert orbit is not None
    assert isinstance(orbit, DeformationOrbit if model == "deformation" else ImageOrbit)
    ranges = orbit.learned()
    learns = [each.requires_grad for each in orbit.parameters()]
    if model == "fixed rotation":
        assert ranges["angle"] == pytest.approx((-math.pi, math.pi))
        assert not any(learns)
        return
    assert any(learns)
    assert ("angle" in ranges) == (model != "deformation")
    assert ("amplitude" in ranges) == ("deformation" in model)
    if model == "rotation":
        assert degrees_of({"ranges": ranges}) == pytest.approx(7.5)
    moved = orbit.points(torch.rand(2, 64, dtype=torch.float64), torch.Generator().manual_seed(0))
    assert moved.points.shape[-1] == 64


def fit(bound: float, half: float | None, error: float) -> dict:
    return {
        "log_evidence": bound,
        "evidence_error": 0.1,
        "half_bound": half,
        "error": error,
        "num_test": 10_000,
    }


def test_bounds_decide_where_half_the_points_agree():
    base = fit(-100.0, -120.0, 5.0)
    assert is_decided(fit(-90.0, -110.0, 4.0), base)
    assert not is_decided(fit(-110.0, -110.0, 4.0), base), "it is lower"
    assert not is_decided(fit(-99.9, -119.9, 4.0), base), "within two standard errors"
    assert not is_decided(fit(-90.0, -121.0, 4.0), base), "reversed with half of the points"
    assert not is_decided(fit(-90.0, -95.0, 4.0), base), "the difference more than halved"
    assert is_decided(fit(-90.0, None, 4.0), fit(-100.0, None, 4.0))


def test_the_order_by_bounds_is_compared_with_that_by_errors():
    good, bad = fit(-90.0, -110.0, 2.0), fit(-100.0, -120.0, 5.0)
    assert order_claim({"a": [good], "b": [bad]}, "").verdict == "holds"
    wrong = order_claim({"a": [good | {"error": 9.0}], "b": [bad]}, "")
    assert (wrong.verdict, wrong.because) == (
        "does not hold",
        "the bounds put a before b, the errors do not",
    )
    reversed_ = order_claim({"a": [good | {"half_bound": -130.0}], "b": [bad]}, "")
    assert reversed_.verdict == "undecided"
    assert "do not decide between a and b" in reversed_.because
    assert "a -130 to -90; b -120 to -100" in reversed_.measured
    equal = order_claim({"a": [good], "b": [bad | {"error": 2.0}]}, "")
    assert equal.verdict == "undecided"


def test_the_error_of_a_difference_is_that_of_two_proportions():
    # 20 and 40 errors of 1,000: variances p(1 - p)/n
    first, second = ({"error": value, "num_test": 1000} for value in (2.0, 4.0))
    assert difference_error(first, second) == pytest.approx(
        100 * math.sqrt((0.02 * 0.98 + 0.04 * 0.96) / 1000)
    )
