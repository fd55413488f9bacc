"""InvariantGPRegressor is invariant to rounding, and learns how far."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise import InvariantGPRegressor
from orbitwise.functionals import (
    FeatureMap,
    OrbitAverage,
)
from orbitwise.inference.exact import sample_prior
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.transforms import Rotation, coordinate_permutations, negation

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

GROUPS = ["permutation", "sign", "negation", "cyclic", "flip", "quarter_turn", "flip+quarter_turn"]


def rmse(model, x, y) -> float:
    return float(np.sqrt(np.mean((model.predict(x) - y) ** 2)))


def moved(name: str, x: np.ndarray) -> list[np.ndarray]:
    """Rows of four numbers, or images of 2×2, moved by some elements of the group."""
    images = x.reshape(-1, 2, 2)
    return {
        "permutation": [x[:, [1, 0, 2, 3]], x[:, [3, 1, 0, 2]]],
        "sign": [x * [1, -1, 1, 1], x * [-1, 1, -1, 1]],
        "negation": [-x],
        "cyclic": [np.roll(x, 1, axis=1), np.roll(x, 2, axis=1)],
        "flip": [images[..., ::-1].reshape(-1, 4)],
        "quarter_turn": [np.rot90(images, turns, axes=(1, 2)).reshape(-1, 4) for turns in (1, 2)],
        "flip+quarter_turn": [np.rot90(images[..., ::-1], axes=(1, 2)).reshape(-1, 4)],
    }[name]


@pytest.mark.parametrize("name", GROUPS)
def test_every_group_is_exact(name, rng):
    x, points = rng.normal(size=(20, 4)), rng.normal(size=(6, 4))
    y = x[:, 0] + np.sin(x[:, 1] * x[:, 2])
    shape = (2, 2) if "flip" in name or "turn" in name else None
    model = InvariantGPRegressor(invariance=name, image_shape=shape, max_iterations=10).fit(x, y)
    plain = InvariantGPRegressor(max_iterations=10).fit(x, y)
    mean, deviation = model.predict(points, return_std=True)
    for other in moved(name, points):
        assert np.abs(plain.predict(other) - plain.predict(points)).max() > 1e-3, "a move worth the name"
        there, spread = model.predict(other, return_std=True)
        np.testing.assert_allclose(there, mean, rtol=0, atol=1e-11)
        np.testing.assert_allclose(spread**2, deviation**2, rtol=0, atol=1e-11)
        rows = [model.functional_.atoms(torch.from_numpy(each.copy())) for each in (points, other)]
        with torch.no_grad():
            here, there = sample_prior(
                model.posterior_.process, rows, 4, torch.Generator().manual_seed(0)
            ).split(6)
        assert here.std() > 0.05
        np.testing.assert_allclose(there, here, rtol=0, atol=1e-8)
    draws = model.sample_y(np.concatenate([points, *moved(name, points)]), 3).reshape(-1, 6, 3)
    np.testing.assert_allclose(draws, draws[:1].repeat(len(draws), 0), rtol=0, atol=1e-8)


def test_an_anti_symmetric_function_is_odd_and_its_targets_are_not_centred(rng):
    x = rng.normal(size=(30, 2))
    y = 5 + x[:, 0] - x[:, 1]
    odd = FiniteOrbit(coordinate_permutations(2), weights=torch.tensor([1.0, -1.0]))
    model = InvariantGPRegressor(invariance=odd, max_iterations=20).fit(x, y)
    np.testing.assert_allclose(model.predict(x[:, ::-1]), -model.predict(x), atol=1e-9)
    np.testing.assert_allclose(model.predict([[1.0, 1.0]]), 0, atol=1e-9)
    right = InvariantGPRegressor(invariance=odd, max_iterations=20).fit(x, y - 5)
    wrong = InvariantGPRegressor(invariance="permutation").fit(x, y - 5)
    assert right.log_evidence_ > wrong.log_evidence_ + 20
    assert right.log_evidence_ > model.log_evidence_ + 20, "a constant is not anti-symmetric"


def test_the_right_invariance_helps_and_the_evidence_knows(rng):
    x = rng.uniform(-2, 2, size=(40, 2))

    def f(points: np.ndarray) -> np.ndarray:
        return np.cos(2 * points).sum(1) + points.prod(1)

    y = f(x) + 0.1 * rng.normal(size=40)
    new = rng.uniform(-2, 2, size=(200, 2))
    plain, right = (InvariantGPRegressor(invariance=each).fit(x, y) for each in (None, "permutation"))
    assert right.log_evidence_ > plain.log_evidence_ + 3
    assert rmse(right, new, f(new)) < 0.8 * rmse(plain, new, f(new))


def test_an_orbit_and_a_functional_say_the_same_as_a_name(data, new):
    orbit = FiniteOrbit(coordinate_permutations(2))
    expected = InvariantGPRegressor(invariance="permutation", max_iterations=5).fit(*data).predict(new)
    for same in (orbit, OrbitAverage(orbit)):
        np.testing.assert_array_equal(
            InvariantGPRegressor(invariance=same, max_iterations=5).fit(*data).predict(new), expected
        )


def test_one_side_of_the_average_is_enough(data, new):
    auto, never = (
        InvariantGPRegressor(invariance="permutation", one_sided=each, max_iterations=5).fit(*data)
        for each in ("auto", False)
    )
    np.testing.assert_allclose(auto.predict(new), never.predict(new), atol=1e-6)
    separate = ScaleKernel(RBFKernel(ard_num_dims=2))
    separate.base_kernel.lengthscale = torch.tensor([[0.5, 2.0]])
    with pytest.raises(ValueError, match="one_sided"):
        InvariantGPRegressor(separate, "permutation", one_sided=True).fit(*data)


def test_features_of_inputs_are_a_functional(data, new):
    radius = FeatureMap(lambda x: x.square().sum(-1, keepdim=True))
    x = data[0]
    model = InvariantGPRegressor(invariance=radius, max_iterations=20).fit(x, np.sin((x**2).sum(1)))
    np.testing.assert_allclose(model.predict(new), model.predict(-new[:, ::-1]), atol=1e-10)
    assert rmse(model, new, np.sin((new**2).sum(1))) < 0.1


def test_the_bounds_of_a_frozen_orbit_are_learned_by_the_evidence(rng):
    x = rng.normal(size=(40, 2))
    y = np.sin(2 * np.hypot(*x.T)) + 0.05 * rng.normal(size=40)

    def fit(learnable: bool) -> InvariantGPRegressor:
        orbit = SampledOrbit(Rotation(), -0.3, 0.3, learnable=learnable).freeze(
            8, torch.Generator().manual_seed(0)
        )
        return InvariantGPRegressor(invariance=orbit, max_iterations=40).fit(x, y)

    fixed, learned = fit(False), fit(True)
    source = learned.functional_.orbit.source
    width = (source.upper - source.lower).item()
    assert learned.log_evidence_ > fixed.log_evidence_ + 5
    assert width > 1.5, "data that do not care about rotation widen the orbit"
    assert learned.invariance.source.upper.item() == pytest.approx(0.3), "the orbit given is not changed"


def test_drawn_orbits_are_frozen(data):
    drawn = InvariantGPRegressor(
        invariance=SampledOrbit(Rotation(), -0.3, 0.3), num_nodes=5, max_iterations=2, random_state=0
    ).fit(*data)
    assert drawn.functional_.orbit.size == 5
    whole = InvariantGPRegressor(invariance=FiniteOrbit(negation(2), num_samples=2), max_iterations=2)
    assert whole.fit(*data).functional_.orbit.size == 2
    x = data[0][:3]
    np.testing.assert_allclose(whole.predict(x), whole.predict(-x))
