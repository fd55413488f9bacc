"""Mirrors: even and odd functions about a learned centre."""

import pytest
import torch
from gpytorch.kernels import RBFKernel

from orbitwise.functionals import OrbitAverage
from orbitwise.inference.exact import sample_prior
from orbitwise.orbits import MirrorOrbit
from orbitwise.process import Process
from tests.contracts.learnable_contract import assert_gradients_reach_what_is_learned
from tests.contracts.orbit_contract import OrbitContract, inputs


class TestMirrorOrbit(OrbitContract):
    @pytest.fixture(params=["one column", "two columns"])
    def case(self, request):
        return {
            "one column": lambda: (MirrorOrbit([0.3, 0.1, -0.4]), 3),
            "two columns": lambda: (MirrorOrbit((1.0, 2.0), (2, 0)), 3),
        }[request.param]()

    def test_a_transform_that_does_not_fit_the_width(self, case):
        orbit, _ = case
        with pytest.raises(ValueError, match="not for width 2"):
            orbit.points(torch.zeros(2, 2))

    def test_gradients_reach_the_centre(self, case):
        orbit, width = case
        assert_gradients_reach_what_is_learned(orbit, inputs(width))


def test_only_the_named_columns_move():
    x = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    moved = MirrorOrbit((10.0, 20.0), (2, 0)).points(x)
    assert moved.points[0].tolist() == [[1.0, 2.0, 3.0], [39.0, 2.0, 17.0]]
    assert moved.weights[0].tolist() == [0.5, 0.5]
    assert MirrorOrbit(is_odd=True).points(x).weights[0].tolist() == [0.5, -0.5]


@pytest.mark.parametrize(("is_odd", "sign"), [(False, 1), (True, -1)])
def test_draws_are_even_or_odd(is_odd: bool, sign: int):
    t = torch.linspace(0.1, 2, 7, dtype=torch.float64)[:, None]
    process = Process(None, RBFKernel().double())
    rows = OrbitAverage(MirrorOrbit(0.7, is_odd=is_odd)).atoms(torch.cat([0.7 + t, 0.7 - t]))
    with torch.no_grad():
        draws = sample_prior(process, rows, 3, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws[:7], sign * draws[7:], rtol=0, atol=1e-5)


def test_what_was_learned_is_told():
    assert MirrorOrbit((1.0, 2.0), (2, 0)).learned() == {"centre_2": (1.0, 1.0), "centre_0": (2.0, 2.0)}
    assert not MirrorOrbit(learnable=False).centre.requires_grad
    assert "odd" in repr(MirrorOrbit(is_odd=True))


@pytest.mark.parametrize(
    ("centre", "columns", "problem"),
    [
        (float("nan"), None, "must be finite"),
        (0.0, (1, 1), "different numbers"),
        (0.0, (), "different numbers"),
        ((1.0, 2.0, 3.0), (0, 1), "3 centres were given for 2 columns"),
    ],
)
def test_bad_arguments(centre, columns, problem: str):
    with pytest.raises(ValueError, match=problem):
        MirrorOrbit(centre, columns)
