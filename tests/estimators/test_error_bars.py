import math
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize_scalar
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from orbitwise import InvariantGPRegressor, SparseGPRegressor
from orbitwise.estimators.learned_ranges import (
    HALVINGS,
    TWO_ERRORS,
    expected_seconds,
    learned_errors,
    parameter_errors,
    range_errors,
    searched_errors,
    zero_range_errors,
)
from orbitwise.inference.optimise.orbit_search import LEAST, Coordinates, SearchResult
from orbitwise.orbits.images import ImageOrbit
from orbitwise.orbits.jitters import JitterOrbit
from orbitwise.orbits.orbit import ZERO, Bounds


def test_a_gaussian_gives_back_its_deviations():
    covariance = torch.tensor([[0.5, 0.1], [0.1, 0.2]], dtype=torch.float64)
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    precision = torch.linalg.inv(covariance)
    errors = parameter_errors(lambda: -0.5 * parameter @ precision @ parameter, [parameter])
    torch.testing.assert_close(errors[0], covariance.diagonal().sqrt())
    assert torch.equal(parameter.data, torch.zeros(2, dtype=torch.float64))


def test_a_flat_direction_has_an_infinite_error_and_leaves_the_others_alone():
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    errors = parameter_errors(lambda: -2 * parameter[0] ** 2 + 0 * parameter[1], [parameter])
    torch.testing.assert_close(errors[0][0], torch.tensor(0.5, dtype=torch.float64))
    assert math.isinf(float(errors[0][1]))


def test_errors_pass_through_the_map_to_ranges():
    parameter = nn.Parameter(torch.tensor([math.log(2.0)], dtype=torch.float64))

    def learned():
        width = float(parameter.detach().exp())
        return {"angle": (-width, width), "fixed": (0.0, 1.0)}

    errors = learned_errors(learned, [parameter], [torch.tensor([0.1], dtype=torch.float64)])
    assert abs(errors["angle"] - 2 * math.sinh(0.1)) < 1e-9
    assert errors["fixed"] == 0


CURVATURE = np.array([[6.0, 2.0], [2.0, 3.0]])
"""Of minus the evidence, by the square of a range and by a second parameter."""


class Toy(nn.Module):
    """A range of natural size 0.5 and another parameter."""

    def __init__(self, **settings) -> None:
        super().__init__()
        self.bounds = Bounds(("angle",), {"angle": 0.5}, natural={"angle": 0.5}, **settings)
        self.level = nn.Parameter(torch.zeros(1, dtype=torch.float64))


def found_at(point: list[float], gradient: list[float], curvature=CURVATURE, shifts=()) -> SearchResult:
    found = SearchResult(np.array(point), 16, 0.0, "", [], [], True, np.array(gradient), curvature)
    found.shifts = [np.array(shift) for shift in shifts]
    return found


def profile(v: float, top: float, slope: float) -> float:
    """The evidence at v, the other parameter at its best; it rises by `slope` at `top`."""

    def fallen(level: float) -> float:
        away = np.array([level, v - top])
        return 0.5 * away @ CURVATURE[::-1, ::-1] @ away - slope * (v - top)

    return -minimize_scalar(fallen).fun


def test_the_interval_of_a_range_is_that_of_its_profile():
    toy = Toy()
    coordinates = Coordinates([toy])
    # coordinates: the level, then the square of the range
    found = found_at([0.0, 4.0], [0.0, 0.0], CURVATURE[::-1, ::-1])
    coordinates.assign(found.point)
    before = toy.bounds.intervals()
    errors, intervals = searched_errors(toy.bounds.intervals, coordinates, found)

    def drop(v: float) -> float:
        return profile(v, 4.0, 0.0) + TWO_ERRORS

    ends = [brentq(drop, 0.0, 4.0), brentq(drop, 4.0, 9.0)]
    assert intervals["angle"] == pytest.approx([0.5 * math.sqrt(v) for v in ends], rel=1e-3)
    # dv/da = 2a/0.5², at a = 1
    deviation = math.sqrt(np.linalg.inv(CURVATURE)[0, 0])
    assert errors["angle"] == pytest.approx(deviation / 8, rel=0.02)
    assert toy.bounds.intervals() == before


def test_a_range_that_is_zero_has_a_one_sided_interval():
    toy = Toy()
    coordinates = Coordinates([toy])
    found = found_at([0.0, LEAST], [0.0, -2.0], np.diag([3.0, 6.0]))
    errors, intervals = searched_errors(toy.bounds.intervals, coordinates, found)
    for nats, seen in ((0.5, errors["angle"]), (TWO_ERRORS, intervals["angle"][1])):
        reach = brentq(lambda v, nats=nats: 2 * v + 3 * v**2 - nats, 0, 5)
        assert seen == pytest.approx(0.5 * math.sqrt(reach), rel=1e-3)
    assert intervals["angle"][0] == 0.0
    assert toy.bounds.intervals() == {"angle": (0.0, 0.0)}


def test_other_nodes_widen_errors():
    toy = Toy()
    coordinates = Coordinates([toy])
    curvature = np.diag([3.0, 400.0])
    alone = searched_errors(toy.bounds.intervals, coordinates, found_at([0.0, 4.0], [0.0, 0.0], curvature))
    shifts = [[0.0, 0.3], [0.0, -0.4]]
    found = found_at([0.0, 4.0], [0.0, 0.0], curvature, shifts)
    both = searched_errors(toy.bounds.intervals, coordinates, found)
    assert alone[0]["angle"] == pytest.approx(0.05 / 8, rel=0.01)
    assert both[0]["angle"] == pytest.approx(math.sqrt(0.05**2 + 0.5 * (0.09 + 0.16) / 2) / 8, rel=0.01)
    assert both[1]["angle"][0] < alone[1]["angle"][0] < alone[1]["angle"][1] < both[1]["angle"][1]


def test_a_range_with_both_ends_has_the_error_of_its_middle_too():
    toy = Toy(two_sided=["angle"])
    coordinates = Coordinates([toy])
    names = [each.shape for each in coordinates.parameters]
    assert len(names) == 3
    start = coordinates.point()
    found = found_at(start.tolist(), [0.0] * 3, np.diag([100.0] * 3))
    errors, intervals = searched_errors(toy.bounds.intervals, coordinates, found)
    # half a range of one by v (da = 0.5 dv / 2), a middle in units of 0.5
    assert errors["angle"] == pytest.approx(math.hypot(0.5 * 0.1 / 2, 0.5 * 0.1), rel=0.01)
    low, high = intervals["angle"]
    assert (high - low) / 2 == pytest.approx(1.96 * errors["angle"])


def test_without_a_curvature_there_are_no_errors():
    toy = Toy()
    found = found_at([0.0, 1.0], [0.0, 0.0], None)
    assert searched_errors(toy.bounds.intervals, Coordinates([toy]), found) == ({}, {})


def test_a_range_that_is_zero_has_the_error_at_which_the_evidence_has_fallen():
    orbit = ImageOrbit((8, 8), {"angle": 0.5, "shift_x": 0.5})
    raw = orbit.bounds.raw_half
    angle, shift = orbit.bounds.names.index("angle"), orbit.bounds.names.index("shift_x")
    with torch.no_grad():
        raw[angle] = ZERO
        raw[shift] = ZERO

    def objective() -> torch.Tensor:
        # the evidence says nothing of the shift
        return -50 * orbit.bounds.half_width[angle].square()

    errors = zero_range_errors(orbit, objective)
    assert set(errors) == {"angle", "shift_x"}
    assert errors["angle"] == pytest.approx(0.1, rel=0.01)
    assert math.isinf(errors["shift_x"])
    assert raw[angle].item() == raw[shift].item() == ZERO


def test_a_range_that_is_zero_has_the_error_of_its_centre_too():
    orbit = ImageOrbit((8, 8), {"angle": 0.5}, two_sided=["angle"])
    bounds, angle = orbit.bounds, orbit.bounds.names.index("angle")
    with torch.no_grad():
        bounds.raw_half[angle] = ZERO

    def objective() -> torch.Tensor:
        # deviations of 0.1 for the width and of 0.2 for the centre
        return -50 * bounds.half_width[angle].square() - 12.5 * bounds.centre[angle].square()

    errors = range_errors(orbit, objective, [bounds.raw_half, bounds.centre])
    assert errors == {"angle": pytest.approx(math.hypot(0.1, 0.2), rel=0.01)}


def test_the_time_of_error_bars_counts_ranges_that_are_zero(monkeypatch):
    orbit = ImageOrbit((8, 8), {"angle": 0.5, "shift_x": 0.5})
    parameters = [orbit.bounds.raw_half]
    count = 0

    def objective() -> torch.Tensor:
        nonlocal count
        count += 1
        return -orbit.bounds.half_width.square().sum()

    def seconds() -> float:
        # each look at the clock is one second after the last
        monkeypatch.setattr("time.perf_counter", iter([0.0, 1.0]).__next__)
        return expected_seconds(objective, parameters, orbit)

    entries = orbit.bounds.raw_half.numel()
    assert seconds() == 3 * (1 + entries)
    with torch.no_grad():
        orbit.bounds.raw_half[orbit.bounds.names.index("angle")] = ZERO
    assert seconds() == 3 * (1 + entries) + 1 + 1 + HALVINGS
    count = 0
    range_errors(orbit, objective, parameters)
    assert count == 1 + entries + 1 + 1 + HALVINGS


def test_a_range_that_is_zero_has_an_error_where_the_search_left_no_curvature(rng):
    x = rng.normal(size=(30, 2))
    model = InvariantGPRegressor(invariance=JitterOrbit(2), max_iterations=0, num_nodes=4)
    model.fit(x, np.sin(3 * x[:, 0]))
    assert not model.knows_orbit_errors
    with torch.no_grad():
        model.orbit_.widths.raw[0] = ZERO
    assert model.orbit_.learned() == {"jitter": (0.0, 0.0)}
    assert 0 < model.orbit_errors_["jitter"] < 1
    assert model.knows_orbit_errors
    assert model.orbit_intervals_["jitter"] == (0.0, pytest.approx(1.96 * model.orbit_errors_["jitter"]))


@pytest.mark.parametrize("kind", [SparseGPRegressor, InvariantGPRegressor])
def test_no_interval_of_a_width_begins_below_zero(kind, rng):
    x = rng.normal(size=(30, 2))
    settings = {"max_iterations": 0, "num_nodes": 4, "random_state": 0}
    model = kind(invariance=JitterOrbit(2, 0.05), **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, np.sin(3 * x[:, 0]))
    (_, high), (low, highest) = model.orbit_.learned()["jitter"], model.orbit_intervals_["jitter"]
    assert model.orbit_errors_["jitter"] * 1.96 > high, "the error reaches below zero"
    assert low == 0.0 < high < highest
