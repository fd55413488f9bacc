"""Coordinates of a search: there and back, gradients compared with differences, and exact zeros."""

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import nn

from orbitwise.inference.optimise.orbit_search import LEAST, RETRIED, Coordinates
from orbitwise.orbits import ComposedOrbit, ImageOrbit, JitterOrbit, SampledOrbit
from orbitwise.orbits.orbit import Bounds, Widths
from orbitwise.transforms import Rotation


def bounds() -> Bounds:
    return Bounds(
        ("a", "b", "c"),
        {"a": 0.3, "b": (-0.1, 0.5), "c": 0.2},
        learnable=("a", "b"),
        two_sided=("b",),
        limits={"a": 1.0},
        natural={"a": 0.25},
    )


def kernel() -> ScaleKernel:
    inner = RBFKernel(ard_num_dims=3, lengthscale_constraint=GreaterThan(1e-3))
    return ScaleKernel(inner)


class Module(nn.Module):
    """A user's module with a parameter of its own, one of which is not learned."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[0.3, -2.0]]))
        self.fixed = nn.Parameter(torch.tensor(1.0), requires_grad=False)


MAKERS = {
    "bounds": bounds,
    "widths": lambda: Widths({"amplitude": 0.4, "smoothness": 2.0, "off": 0.0}, natural={"amplitude": 0.5}),
    "image": lambda: ImageOrbit((6, 6), {"angle": 0.2}, amplitude=0.3, smoothness=1.5),
    "two_sided": lambda: SampledOrbit(Rotation(), -0.2, 0.4),
    "kernel": kernel,
    "composed": lambda: ComposedOrbit(JitterOrbit(2, 0.2), SampledOrbit(Rotation(), -0.2, 0.2)),
    "module": Module,
}


@pytest.fixture(params=MAKERS)
def module(request) -> nn.Module:
    return MAKERS[request.param]()


def scalar(module: nn.Module) -> torch.Tensor:
    """Something smooth that depends on all that is learned, through what the module makes of it."""
    total = torch.zeros((), dtype=torch.float64)
    for each in module.modules():
        if isinstance(each, Bounds):
            total = total + (each.half_width.double() ** 2 * torch.arange(1.0, 1 + len(each.names))).sum()
            total = total + (each.middle.double() - 0.3).square().sum()
        elif isinstance(each, Widths):
            total = total + (each.values.double() ** 2).sum() + each.values.double().prod()
        elif isinstance(each, ImageOrbit):
            total = total + each.raw_amplitude.exp() ** 2 * each.raw_smoothness.exp()
        elif isinstance(each, gpytorch.kernels.RBFKernel):
            total = total + each.lengthscale.double().log().square().sum()
        elif isinstance(each, ScaleKernel):
            total = total + each.outputscale.double().sqrt().sum()
        elif isinstance(each, Module):
            total = total + each.weight.double().pow(3).sum()
    return total


def gradient_of(module: nn.Module, coordinates: Coordinates, point: np.ndarray) -> np.ndarray:
    return coordinates.evaluate(lambda: scalar(module), point).gradient


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_there_and_back(module, precision):
    module.to(precision)
    coordinates = Coordinates([module])
    tolerance = {"rtol": 1e-12} if precision == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    generator = np.random.default_rng(0)
    start = coordinates.point()
    assert len(coordinates) == len(start) > 0
    for _ in range(5):
        point = coordinates.box.clip(start * generator.uniform(0.5, 1.5, len(start)))
        coordinates.assign(point)
        np.testing.assert_allclose(coordinates.point(), point, **tolerance)
    assert all(parameter.dtype == precision for parameter in coordinates.parameters)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_the_gradient_is_a_difference_of_the_objective(module, precision):
    module.to(precision)
    coordinates = Coordinates([module])
    point = coordinates.point()
    found = gradient_of(module, coordinates, point)
    step = 1e-6 if precision == torch.float64 else 1e-2
    for i in range(len(point)):
        ends = []
        for sign in (1, -1):
            other = point.copy()
            other[i] += sign * step
            coordinates.assign(other)
            ends.append(scalar(module).item())
        rough = {"rel": 1e-5, "abs": 1e-7} if precision == torch.float64 else {"rel": 2e-2, "abs": 2e-3}
        assert found[i] == pytest.approx((ends[0] - ends[1]) / (2 * step), **rough)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("limit", [None, 1.0])
def test_a_width_at_its_least_is_exactly_zero_and_just_above_it_has_a_slope(limit, precision):
    limits = {} if limit is None else {"a": limit}
    module = Bounds(("a",), {"a": 0.3}, limits=limits, natural={"a": 0.25}).to(precision)
    coordinates = Coordinates([module])
    assert coordinates.point() == pytest.approx([(0.3 / 0.25) ** 2], rel=1e-5)
    np.testing.assert_array_equal(coordinates.is_width, [True])
    coordinates.assign(coordinates.box.lower)
    assert module.intervals() == {"a": (0.0, 0.0)}
    assert coordinates.point().tolist() == [0.0]
    # a search evaluates just above, where the slope of width² by v = (width / natural)² is natural²
    coordinates.assign(coordinates.box.lower, above_zero=True)
    assert module.half_width.item() == pytest.approx(0.25 * LEAST**0.5, rel=1e-4)
    assert gradient_of(module, coordinates, coordinates.box.lower) == pytest.approx([0.25**2], rel=1e-3)
    # and it can leave zero again
    coordinates.assign(np.array([RETRIED]))
    assert module.half_width.item() == pytest.approx(0.25 * RETRIED**0.5, rel=1e-5)


def test_bounds_of_the_box():
    limited = Coordinates([Bounds(("a",), {"a": 0.3}, limits={"a": 1.0}, natural={"a": 0.25})])
    limited.assign(limited.box.upper)
    assert limited.point() == pytest.approx(limited.box.upper)
    assert 0.99 < limited.box.upper[0] * 0.25**2 < 1.0
    free = Coordinates([Bounds(("a",), {"a": 0.3})])
    assert free.box.upper.tolist() == pytest.approx([1e6])
    least = Coordinates([kernel()])
    least.assign(least.box.lower)
    assert all(parameter.isfinite().all() for parameter in least.parameters)
    noise = nn.Parameter(torch.tensor([-3.0]))
    holder = nn.ParameterList([noise])
    floored = Coordinates([holder], {noise: -9.0})
    assert (floored.box.lower.tolist(), floored.box.upper.tolist()) == ([-9.0], [np.inf])


def test_every_parameter_is_there_once_and_what_is_not_learned_is_not():
    orbit, base = MAKERS["composed"](), kernel()
    once = Coordinates([orbit, base])
    again = Coordinates([orbit, base, orbit, nn.ModuleList([base])])
    assert len(once) == len(again) == 1 + 2 + 1 + 3
    np.testing.assert_array_equal(once.point(), again.point())
    fixed = Module()
    assert len(Coordinates([fixed])) == 2
    assert len(Coordinates([ImageOrbit((4, 4), {"angle": 0.2, "shear": 0.1}, learnable=["angle"])])) == 1
    assert len(Coordinates([])) == 0
    assert Coordinates([]).is_width.shape == (0,)


def test_a_parameter_that_the_objective_does_not_use_has_no_slope():
    module = Module()
    coordinates = Coordinates([module])
    other = nn.Parameter(torch.zeros((), dtype=torch.float64))
    found = coordinates.evaluate(lambda: other + 3, coordinates.point())
    assert (found.value, found.gradient.tolist()) == (3.0, [0.0, 0.0])


def test_constraints_of_each_dimension_keep_their_own_floors():
    floors = torch.tensor([[0.01, 0.1, 1.0]])
    base = RBFKernel(ard_num_dims=3, lengthscale_constraint=GreaterThan(floors)).double()
    base.lengthscale = torch.tensor([[2.0, 3.0, 4.0]])
    coordinates = Coordinates([base])
    np.testing.assert_allclose(coordinates.point(), np.log([2.0, 3.0, 4.0]), rtol=1e-6)
    np.testing.assert_allclose(coordinates.box.lower, np.log([0.01, 0.1, 1.0]), atol=1e-5)
