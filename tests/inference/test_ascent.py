"""Ascent in a box, compared with scipy's L-BFGS-B on random problems, and what it says of its own end."""

import numpy as np
import pytest
from scipy.optimize import minimize

from orbitwise.inference.optimise.checkpoints import Evaluation
from orbitwise.inference.optimise.training import Box, best_step, climb, climb_many, curvature_at

SIZE = 5


class Hill:
    """A smooth function of a box with its gradient; with `waves` it is not concave."""

    def __init__(self, seed: int, waves: float = 0.0) -> None:
        generator = np.random.default_rng(seed)
        root = generator.normal(size=(SIZE, SIZE))
        self.curvature = root @ root.T + 0.3 * np.eye(SIZE)
        self.top = generator.normal(size=SIZE)
        self.box = Box(self.top - generator.uniform(-0.5, 2, SIZE), self.top + 3.0)
        self.waves, self.count = waves, 0

    def __call__(self, point: np.ndarray) -> Evaluation:
        self.count += 1
        away = point - self.top
        value = -0.5 * away @ self.curvature @ away + self.waves * np.cos(3 * away).sum()
        return Evaluation(float(value), -self.curvature @ away - 3 * self.waves * np.sin(3 * away))


def by_scipy(hill: Hill, start: np.ndarray):
    def negative(point):
        found = hill(point)
        return -found.value, -found.gradient

    bounds = np.stack([hill.box.lower, hill.box.upper], axis=1)
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 500}
    return minimize(negative, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ascent", ["dense", "many"])
def test_concave_hills_in_a_box_are_climbed_to_scipys_top(seed, ascent):
    hill = Hill(seed)
    start = hill.box.clip(np.zeros(SIZE))
    expected = by_scipy(hill, start)
    if ascent == "dense":
        curvature = curvature_at(hill, start, hill.box)
        summit = climb(hill, start, hill.box, curvature, 60, 1e-8)
    else:
        summit = climb_many(hill, start, hill.box, 200, 1e-7)
    assert summit.has_settled
    assert summit.value == pytest.approx(-expected.fun, abs=1e-5)
    np.testing.assert_allclose(summit.point, expected.x, atol=2e-3)
    # what lies on a bound lies there exactly
    np.testing.assert_array_equal(summit.point <= hill.box.lower, expected.x <= hill.box.lower)


@pytest.mark.parametrize("seed", range(8))
def test_hills_with_waves_end_on_a_top_that_scipy_cannot_improve(seed):
    hill = Hill(seed, waves=0.7)
    start = hill.box.clip(np.zeros(SIZE))
    summit = climb(hill, start, hill.box, curvature_at(hill, start, hill.box), 200, 1e-8)
    assert summit.has_settled
    assert summit.value >= hill(start).value
    assert -by_scipy(hill, summit.point).fun == pytest.approx(summit.value, abs=1e-4)


def test_it_takes_few_evaluations():
    ours, theirs = 0, 0
    for seed in range(8):
        hill = Hill(seed)
        start = hill.box.clip(np.zeros(SIZE))
        climb(hill, start, hill.box, curvature_at(hill, start, hill.box), 60, 1e-2)
        ours, hill.count = ours + hill.count, 0
        theirs += by_scipy(hill, start).nfev
    assert ours < theirs


def test_a_coordinate_ends_on_a_bound_and_leaves_it():
    box = Box(np.zeros(2), np.full(2, 10.0))

    def objective(point):
        # the second coordinate pays only where the first is large
        value = -((point[0] - 3) ** 2) + (point[0] - 1) * point[1] - point[1] ** 2
        gradient = np.array([-2 * (point[0] - 3) + point[1], point[0] - 1 - 2 * point[1]])
        return Evaluation(float(value), gradient)

    summit = climb(objective, np.zeros(2), box, np.eye(2), 100, 1e-9)
    exact = np.linalg.solve([[2.0, -1.0], [-1.0, 2.0]], [6.0, -1.0])
    np.testing.assert_allclose(summit.point, exact, atol=1e-4)

    def falling(point):
        return Evaluation(float(-point.sum() - (point**2).sum()), -1 - 2 * point)

    held = climb(falling, np.array([2.0, 0.5]), box, np.eye(2), 100, 1e-9)
    np.testing.assert_array_equal(held.point, [0.0, 0.0])
    np.testing.assert_array_equal(box.at_bound(held.point, held.gradient), [True, True])


@pytest.mark.parametrize("ascent", ["dense", "many"])
def test_where_the_objective_fails_the_ascent_turns_back(ascent):
    box = Box(np.full(2, -10.0), np.full(2, 10.0))

    def objective(point):
        if point[0] > 1.5:
            return Evaluation.failed("it is too far")
        return Evaluation(float(-((point - 1) ** 2).sum()), -2 * (point - 1))

    start = np.array([-4.0, 3.0])
    if ascent == "dense":
        # far too flat a curvature, so that the first steps are too long
        summit = climb(objective, start, box, 1e-2 * np.eye(2), 100, 1e-6)
    else:
        summit = climb_many(objective, start, box, 100, 1e-6)
    assert summit.has_settled
    np.testing.assert_allclose(summit.point, [1.0, 1.0], atol=1e-2)


@pytest.mark.parametrize("ascent", [climb, climb_many])
def test_a_start_that_fails_has_not_settled(ascent):
    box = Box(np.zeros(2), np.ones(2))
    given = (np.eye(2),) if ascent is climb else ()
    summit = ascent(lambda _: Evaluation.failed("no"), np.zeros(2), box, *given, 10, 1.0)
    assert not summit.has_settled


@pytest.mark.parametrize("ascent", ["dense", "many"])
def test_it_says_when_it_has_not_settled(ascent):
    hill = Hill(3)
    start = hill.box.clip(hill.top + 2.5)
    for most in (1, 200):
        if ascent == "dense":
            summit = climb(hill, start, hill.box, np.eye(SIZE), most, 1e-6)
        else:
            summit = climb_many(hill, start, hill.box, most, 1e-6)
        best = climb(hill, summit.point, hill.box, hill.curvature, 100, 1e-10)
        assert summit.has_settled == (best.value - summit.value < 1e-3) == (most == 200)


def test_what_is_promised_is_what_is_gained_on_a_quadratic():
    hill = Hill(1)
    start = hill.box.clip(hill.top + 0.4)
    value, gradient, _ = hill(start)
    step, promise = best_step(start, gradient, hill.curvature, hill.box, 1.0)
    assert hill(start + step).value - value == pytest.approx(promise)
    # any other step within the box and the trust region gains less
    generator = np.random.default_rng(0)
    for _ in range(200):
        other = hill.box.clip(start + generator.uniform(-1, 1, SIZE) * hill.box.unit(start))
        assert hill(other).value - value <= promise + 1e-12
    flat = Box(start, start)
    np.testing.assert_array_equal(best_step(start, gradient, hill.curvature, flat, 1.0)[0], 0.0)


def test_curvature_is_the_hessian_also_at_bounds():
    hill = Hill(5)
    for point in (hill.box.clip(hill.top), hill.box.lower, hill.box.upper):
        np.testing.assert_allclose(curvature_at(hill, point, hill.box), hill.curvature, atol=1e-8)
