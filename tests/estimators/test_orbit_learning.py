"""Ranges learned by exact inference: the same for every seed and order of rows, and nodes that suffice."""

import warnings

import numpy as np
import pytest
import torch
from gpytorch.kernels import PeriodicKernel, RBFKernel, RQKernel, ScaleKernel
from torch import nn

from orbitwise import InvariantGPClassifier, InvariantGPRegressor
from orbitwise.estimators import learned_ranges as orbit_learning
from orbitwise.estimators.learned_ranges import most_nodes
from orbitwise.functionals import Evaluation, Gradient, OrbitAverage
from orbitwise.functionals.averages import freeze_at
from orbitwise.inference.exact import sample_prior
from orbitwise.orbits import ComposedOrbit, ImageOrbit, JitterOrbit, ModuleOrbit, SampledOrbit
from orbitwise.orbits.orbit import ZERO
from orbitwise.process import Process
from orbitwise.transforms import Rotation, Translation

# Few nodes and iterations are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
QUICK = {"num_nodes": 8, "max_iterations": 6}


def rotation(half: float = 0.5) -> SampledOrbit:
    return SampledOrbit(Rotation(), -half, half, two_sided=False)


def ring(num_rows: int = 30, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A function of the radius alone."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num_rows, 2))
    return x, np.sin(2 * np.hypot(*x.T)) + 0.05 * generator.normal(size=num_rows)


def images(num_rows: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Bars that stand or lie, a little turned and moved, 6 by 6 pixels."""
    generator = np.random.default_rng(1)
    labels = np.arange(num_rows) % 2
    x = np.zeros((num_rows, 6, 6))
    for picture, label in zip(x, labels, strict=True):
        at = generator.integers(1, 5)
        picture[(slice(None), at) if label else (at, slice(None))] = 1
    return (x + 0.05 * generator.random(x.shape)).reshape(num_rows, -1), labels


@pytest.mark.parametrize("kind", [InvariantGPRegressor, InvariantGPClassifier])
def test_the_answer_is_the_same_for_every_seed_and_order_of_rows(kind):
    x, y = images()
    y = y if kind is InvariantGPClassifier else y + 0.1 * x.sum(1)
    settings = {"invariance": "rotation", "image_shape": (6, 6), **QUICK}
    first, other = (kind(random_state=seed, **settings).fit(x, y) for seed in (0, 7))
    assert first.log_evidence_ == other.log_evidence_
    assert first.orbit_.learned() == other.orbit_.learned()
    order = np.random.default_rng(0).permutation(len(x))
    turned = kind(random_state=0, **settings).fit(x[order], y[order])
    assert turned.log_evidence_ == pytest.approx(first.log_evidence_, abs=0.2)
    assert turned.orbit_.learned()["angle"] == pytest.approx(
        first.orbit_.learned()["angle"], rel=0.1, abs=0.02
    )


def test_nodes_are_gauss_in_one_and_two_dimensions_and_sobol_in_more():
    one = freeze_at(OrbitAverage(rotation()), 16).orbit
    assert len(one.weights) == 16
    nodes = np.sort(one.nodes[:, 0].numpy())
    np.testing.assert_allclose(nodes, np.polynomial.legendre.leggauss(16)[0], atol=1e-12)
    two = freeze_at(OrbitAverage(SampledOrbit(Translation(2), -1.0, 1.0)), 16).orbit
    assert len(two.weights) == 16
    assert len(two.nodes[:, 0].unique()) == 4
    others = [freeze_at(OrbitAverage(rotation()), 16, scramble).orbit.size for scramble in (1, 2)]
    assert others == [15, 17]
    three = SampledOrbit(Translation(3), -1.0, 1.0)
    many = freeze_at(OrbitAverage(three), 16).orbit
    np.testing.assert_allclose(many.weights, np.full(16, 1 / 16))
    again, elsewhere = (freeze_at(OrbitAverage(three), 16, scramble).orbit for scramble in (0, 1))
    assert torch.equal(many.nodes, again.nodes)
    assert not torch.equal(many.nodes, elsewhere.nodes)
    # what jumps takes no Gauss nodes
    jumps = ModuleOrbit(nn.Bilinear(2, 1, 2), 1)
    np.testing.assert_allclose(freeze_at(OrbitAverage(jumps), 8).orbit.weights, np.full(8, 1 / 8))


def test_the_most_nodes_are_a_power_of_two_that_falls_with_the_rows(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    sizes = [most_nodes(rows, 64, cpu) for rows in (10, 300, 1000, 1500, 100_000)]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size in (4, 8, 16, 32, 64, 128) for size in sizes)
    assert (sizes[0], sizes[-1]) == (64, 4)
    assert all(most_nodes(rows, 64, cuda) >= most_nodes(rows, 64, cpu) for rows in (300, 1000, 3000))
    monkeypatch.setitem(orbit_learning.MOST_NODES, "cpu", 16)
    model = InvariantGPRegressor(invariance=rotation(), max_iterations=2).fit(*ring(12))
    assert model.search_[-1]["num_nodes"] <= 16
    limited = InvariantGPRegressor(invariance=rotation(), max_iterations=2, max_nodes=5).fit(*ring(12))
    assert [stage["num_nodes"] for stage in limited.search_] == [5]


def test_without_iterations_everything_stays_as_it_was_given():
    x, y = ring(15)
    kernel = ScaleKernel(RBFKernel())
    model = InvariantGPRegressor(kernel, rotation(0.3), num_nodes=8, max_iterations=0).fit(x, y)
    assert model.orbit_.learned()["angle"] == pytest.approx((-0.3, 0.3))
    assert model.kernel_.base_kernel.lengthscale.item() == pytest.approx(
        kernel.base_kernel.lengthscale.item()
    )
    assert model.search_ == []
    assert model.stopped_by_ == "nothing was to be learned"
    assert model.log_evidence_error_ > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fixed = SampledOrbit(Rotation(), -0.3, 0.3, learnable=False)
        for parameter in kernel.parameters():
            parameter.requires_grad_(False)
        held = InvariantGPRegressor(kernel, fixed, noise=0.1, num_nodes=8).fit(x, y)
    assert held.converged_


def test_single_precision_finds_what_double_precision_finds(monkeypatch):
    x, y = images()
    settings = {"invariance": "rotation", "image_shape": (6, 6), "num_nodes": 8, "max_iterations": 20}
    single = InvariantGPClassifier(**settings).fit(x, y)
    monkeypatch.setattr(orbit_learning, "takes_double_sums", lambda *given: False)
    double = InvariantGPClassifier(**settings).fit(x, y)
    assert single.log_evidence_ == pytest.approx(double.log_evidence_, abs=0.3)
    ours, theirs = (model.orbit_.learned()["angle"][1] for model in (single, double))
    assert ours == pytest.approx(theirs, abs=0.2 * single.orbit_errors_["angle"] + 0.02)


def drawn(half: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a function that was drawn from the prior, averaged over turns of this half-width."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1.5, 1.5, size=(60, 2))
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = 0.5, 1.0
    functional = freeze_at(OrbitAverage(rotation(half)), 32) if half else Evaluation()
    with torch.no_grad():
        rows = functional.atoms(torch.from_numpy(x))
        draw = sample_prior(Process(None, kernel), rows, 1, torch.Generator().manual_seed(seed))
    f = draw[:, 0].numpy()
    return x, f + 0.05 * f.std() * generator.normal(size=60)


@pytest.mark.parametrize("seed", [0, 3])
def test_a_known_range_is_recovered_within_its_interval(seed):
    x, y = drawn(0.6, seed)
    kernel = ScaleKernel(RBFKernel())
    model = InvariantGPRegressor(kernel, rotation(0.3), num_nodes=16, max_iterations=30).fit(x, y)
    low, high = model.orbit_intervals_["angle"]
    assert low < 0.6 < high < 1.0
    assert model.orbit_errors_["angle"] < 0.1
    assert model.converged_


@pytest.mark.parametrize("seed", [0, 1])
def test_a_move_that_is_not_needed_ends_at_exactly_zero(seed):
    x, y = drawn(0.0, seed)
    kernel = ScaleKernel(RBFKernel())
    model = InvariantGPRegressor(kernel, rotation(0.3), num_nodes=16, max_iterations=30).fit(x, y)
    assert model.orbit_.learned() == {"angle": (0.0, 0.0)}
    assert "angle not needed" in repr(model.orbit_)
    low, high = model.orbit_intervals_["angle"]
    assert low == 0.0
    assert 0.0 < model.orbit_errors_["angle"] < high < 0.5
    # where nothing is averaged over, this is the evidence of the plain model
    plain = InvariantGPRegressor(kernel, max_iterations=50).fit(x, y)
    assert model.log_evidence_ == pytest.approx(plain.log_evidence_, abs=0.3)


def test_restarts_are_random_starts_of_the_screening():
    x, y = ring()
    plain, more = (
        InvariantGPRegressor(invariance=rotation(), **QUICK, **each).fit(x, y)
        for each in ({}, {"num_restarts": 2, "random_state": 0})
    )
    assert len(more.search_[0]["values"]) == len(plain.search_[0]["values"]) + 2
    assert more.log_evidence_ >= plain.log_evidence_ - 0.5


@pytest.mark.parametrize("kind", [InvariantGPRegressor, InvariantGPClassifier])
def test_a_warm_start_goes_on_from_the_ranges_that_were_learned(kind):
    x, y = ring()
    y = y if kind is InvariantGPRegressor else y > 0
    model = kind(invariance=rotation(), warm_start=True, num_nodes=8, max_iterations=20).fit(x, y)
    before, evidence = model.orbit_.learned(), model.log_evidence_
    seen = []

    def look(step, value):
        seen.append(model.orbit_.learned()["angle"])

    model.set_params(callback=look).fit(x, y)
    assert seen[0] == pytest.approx(before["angle"])
    assert model.log_evidence_ >= evidence - 0.2


class Turn(nn.Module):
    """Turns points of the plane by a learned weight times the noise."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def forward(self, x, noise):
        angle = self.weight.to(noise) * noise
        return Rotation()(x, angle)


def test_weights_of_a_users_module_are_learned():
    x, y = ring()
    orbit = ModuleOrbit(Turn(), 1, "uniform")
    model = InvariantGPRegressor(invariance=orbit, num_nodes=16, max_iterations=15).fit(x, y)
    learned = model.orbit_.module.weight.item()
    assert orbit.module.weight.item() == 0.3
    # y depends on the radius alone, so that wide turns are worth having
    assert abs(learned) > 0.6
    plain = InvariantGPRegressor(max_iterations=15).fit(x, y)
    assert model.log_evidence_ > plain.log_evidence_


@pytest.mark.parametrize(
    "kernel",
    [
        ScaleKernel(RQKernel()),
        ScaleKernel(PeriodicKernel()),
        ScaleKernel(RBFKernel(ard_num_dims=2)) + ScaleKernel(RBFKernel()),
        type("Mine", (RBFKernel,), {})(),
    ],
    ids=["rq", "periodic", "sum", "mine"],
)
def test_kernels_of_all_kinds_are_searched_with(kernel):
    model = InvariantGPRegressor(kernel, rotation(), num_nodes=4, max_iterations=3).fit(*ring(15))
    assert np.isfinite(model.log_evidence_)
    assert np.isfinite(model.orbit_errors_["angle"])


@pytest.mark.parametrize("noise", [0.0, 1e-9, 0.01])
def test_noise_that_is_given_stays(noise):
    x, y = ring(15)
    model = InvariantGPRegressor(invariance=rotation(), noise=noise, num_nodes=4, max_iterations=4).fit(x, y)
    assert model.noise_ == pytest.approx(noise)
    assert np.isfinite(model.log_evidence_)


def test_weights_and_observations_of_other_functionals_are_searched_with():
    x, y = ring(15)
    weight = np.ones(15)
    weight[:3] = 40.0
    slopes = (Gradient(), x[:3], np.zeros((3, 2)), None)
    settings = {"invariance": rotation(), "num_nodes": 4, "max_iterations": 3}
    weighted = InvariantGPRegressor(**settings).fit(x, y, weight)
    repeated = InvariantGPRegressor(**settings).fit(
        np.repeat(x, weight.astype(int), axis=0), np.repeat(y, weight.astype(int))
    )
    assert weighted.log_evidence_ == pytest.approx(repeated.log_evidence_, rel=1e-6)
    observed = InvariantGPRegressor(**settings).fit(x, y, observations=[slopes])
    assert np.isfinite(observed.log_evidence_)
    assert observed.observation_noise_[0] > 0


@pytest.mark.parametrize("kind", ["constant", "float32", "two rows", "one row per class"])
def test_data_at_the_edge_are_searched_with(kind):
    x, y = images(12)
    if kind == "constant":
        x = np.full_like(x, 0.5)
    elif kind == "float32":
        x = x.astype(np.float32)
    elif kind == "two rows":
        x, y = x[:2], y[:2]
    else:
        x, y = x[:5], np.arange(5)
    settings = {"invariance": "affine", "image_shape": (6, 6), "num_nodes": 4, "max_iterations": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = InvariantGPClassifier(**settings).fit(x, y)
        regression = InvariantGPRegressor(**settings).fit(x, y.astype(float))
    for each in (model, regression):
        assert np.isfinite(each.log_evidence_)
        assert all(np.isfinite(error) for error in each.orbit_errors_.values())
    assert model.predict(x).shape == y.shape


def test_the_noise_has_a_floor_where_it_is_learned():
    x, _ = ring(12)
    model = InvariantGPRegressor(invariance=rotation(), num_nodes=4, max_iterations=20).fit(x, x[:, 0])
    assert model.noise_ / x[:, 0].var() >= 0.99 * orbit_learning.LEAST_NOISE


def test_a_composition_is_searched_with():
    orbit = ComposedOrbit(JitterOrbit(2, 0.1), rotation())
    model = InvariantGPRegressor(invariance=orbit, num_nodes=8, max_iterations=3).fit(*ring(15))
    assert set(model.orbit_.learned()) == {"jitter", "angle"}
    assert set(model.orbit_errors_) == {"jitter", "angle"}


def test_the_deformation_of_images_is_searched_with():
    x, y = images(16)
    orbit = ImageOrbit((6, 6), {"angle": 0.2}, amplitude=0.3, smoothness=1.0)
    model = InvariantGPClassifier(invariance=orbit, image_shape=(6, 6), num_nodes=4, max_iterations=3).fit(
        x, y
    )
    assert set(model.orbit_errors_) == {"angle", "amplitude", "smoothness"}
    assert all(error >= 0 for error in model.orbit_errors_.values())


@pytest.mark.parametrize("inference", ["collapsed", "variational"])
def test_a_range_of_zero_moves_again_in_other_engines(inference):
    orbit = SampledOrbit(Rotation(), -0.3, 0.3, two_sided=False).double()
    with torch.no_grad():
        orbit.bounds.raw_half.fill_(ZERO)
    assert orbit.bounds.half_width.item() == 0
    settings = {"num_inducing": 10, "num_nodes": 4, "max_iterations": 5, "num_steps": 30}
    model = InvariantGPRegressor(invariance=orbit, inference=inference, **settings).fit(*ring(30))
    assert model.orbit_.bounds.half_width.item() > 0.01
    assert orbit.bounds.half_width.item() == 0
