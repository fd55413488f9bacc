import math

import pytest
import torch
from gpytorch.kernels import RBFKernel

from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.orbits import JitterOrbit, SampledOrbit
from orbitwise.process import Process
from orbitwise.transforms import Translation
from tests.contracts.learnable_contract import LearnableContract
from tests.contracts.orbit_contract import inputs, seeded


class TestJitterOrbit(LearnableContract):
    @pytest.fixture(params=["shared", "separate"])
    def case(self, request):
        return JitterOrbit(3, 0.2, request.param == "separate", num_samples=4), 3


def test_zero_width_is_the_identity():
    moved = JitterOrbit(3, 0.0, num_samples=2).points(inputs(3), seeded()).points
    assert torch.equal(moved, inputs(3)[:, None].expand(3, 2, 3))


def test_it_is_a_normal_translation():
    same = SampledOrbit(Translation(3), -0.2, 0.2, "normal", num_samples=4)
    torch.testing.assert_close(
        JitterOrbit(3, 0.2, num_samples=4).points(inputs(3), seeded()).points,
        same.points(inputs(3), seeded()).points,
    )


def test_separate_widths():
    orbit = JitterOrbit(2, 0.2, separate=True)
    assert set(orbit.learned()) == {"jitter_0", "jitter_1"}
    with torch.no_grad():
        orbit.widths.raw[1] += math.log(10)
    moved = orbit.points(torch.zeros(500, 2, dtype=torch.float64), seeded()).points.detach()
    assert moved.flatten(0, 1).std(0).tolist() == pytest.approx([0.2, 2.0], rel=0.05)


@pytest.mark.parametrize("rule", ["gauss", "sobol"])
def test_an_rbf_averaged_over_jitter_is_a_wider_rbf(rule):
    theta, x, y = 0.4, inputs(2), 2 * inputs(2) - 0.3
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.7
    process = Process(None, kernel)
    average = OrbitAverage(JitterOrbit(2, theta).freeze({"gauss": 225, "sobol": 512}[rule], seeded(), rule))
    tolerance = {"gauss": 1e-8, "sobol": 4e-3}[rule]
    for right, times in ((average, 2), (Evaluation(), 1)):
        square = 0.49 + times * theta**2
        exact = (0.49 / square) * torch.exp(-0.5 * torch.cdist(x, y).square() / square)
        found = process.covariance(average.atoms(x), right.atoms(y)).detach()
        torch.testing.assert_close(found, exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_features": 0}, "at least 1, not 0"),
        ({"width": -0.1}, "jitter must be finite and must not be negative"),
        ({"width": math.nan}, "finite"),
        ({"num_samples": 1}, "num_samples=1"),
    ],
)
def test_bad_arguments(arguments, message: str):
    with pytest.raises(ValueError, match=message):
        JitterOrbit(**{"num_features": 3} | arguments)


def test_fixed_widths():
    assert not any(p.requires_grad for p in JitterOrbit(3, 0.2, learnable=False).parameters())
    assert JitterOrbit(3, 0.2, learnable=False).learned() == {"jitter": (0.0, 0.2)}
