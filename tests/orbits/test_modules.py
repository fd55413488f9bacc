import math

import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import nn

from orbitwise.functionals import OrbitAverage
from orbitwise.orbits import JitterOrbit, ModuleOrbit
from orbitwise.process.unbiased import unbiased_variance
from tests.contracts.annotations import unchecked
from tests.contracts.learnable_contract import assert_gradients_reach_what_is_learned
from tests.contracts.orbit_contract import OrbitContract, inputs, seeded


class Blur(nn.Module):
    """A user's module: x + W(x)·noise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), 0.3, dtype=torch.float64))

    def forward(self, x, noise):
        return x[:, None] + self.scale.to(x) * noise * (1 + x[:, None].square())


class Antithetic(nn.Module):
    """A user's module that draws by itself, in pairs that depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.8, dtype=torch.float64))

    def forward(self, x, num_samples, generator):
        half = torch.randn(
            len(x), (num_samples + 1) // 2, x.shape[-1], generator=generator, dtype=torch.float64
        ).to(x)
        noise = torch.cat([half, -half], 1)[:, :num_samples]
        return x[:, None] + self.scale.to(x) * noise


class Fixed(nn.Module):
    """Returns what it is told to."""

    def __init__(self, value) -> None:
        super().__init__()
        self.value = value

    def forward(self, *inputs):
        return self.value


class TestModuleOrbit(OrbitContract):
    fits_any_width = True

    @pytest.fixture(params=["draws", "frozen draws"])
    def case(self, request):
        orbit = ModuleOrbit(Antithetic(), num_samples=4)
        return (orbit if request.param == "draws" else orbit.freeze(3, seeded())), 2


class TestModuleWithNoise(OrbitContract):
    @pytest.fixture(params=["noise", "uniform", "sobol", "frozen"])
    def case(self, request):
        return {
            "noise": lambda: ModuleOrbit(Blur(3), 3, num_samples=4),
            "uniform": lambda: ModuleOrbit(Blur(3), 3, "uniform", num_samples=4),
            "sobol": lambda: ModuleOrbit(Blur(3), 3, num_samples=4, draws="sobol"),
            "frozen": lambda: ModuleOrbit(Blur(3), 3).freeze(5, seeded()),
        }[request.param](), 3

    def test_a_transform_that_does_not_fit_the_width(self, case):
        with pytest.raises(RuntimeError, match="size of tensor"):
            case[0].points(torch.zeros(2, 4))


@pytest.mark.parametrize(
    "orbit", [ModuleOrbit(Blur(2), 2), ModuleOrbit(Antithetic())], ids=["noise", "draws"]
)
def test_gradients_reach_the_parameters_of_the_module(orbit):
    assert_gradients_reach_what_is_learned(orbit.freeze(4, seeded()), inputs(2))
    drawn = orbit.points(inputs(2), seeded())
    drawn.points.square().sum().backward()
    assert (orbit.module.scale.grad.abs() > 0).all()


def test_noise_of_a_module_is_that_of_an_orbit():
    class Plain(nn.Module):
        def forward(self, x, noise):
            return x[:, None] + 0.2 * noise

    same = JitterOrbit(3, 0.2, num_samples=4).points(inputs(3), seeded()).points
    torch.testing.assert_close(
        ModuleOrbit(Plain(), 3, num_samples=4).points(inputs(3), seeded()).points, same
    )


@torch.no_grad()
def test_dependent_samples_of_a_call_do_not_bias():
    rows, kernel = 4000, RBFKernel().double()
    kernel.lengthscale = 1.0
    x = torch.zeros(rows, 1, dtype=torch.float64)
    atoms = OrbitAverage(ModuleOrbit(Antithetic(), num_samples=4)).atoms(x, seeded())
    estimates = unbiased_variance(kernel, atoms)
    truth = (1 / (1 + 2 * 0.64)) ** 0.5
    assert abs(estimates.mean() - truth) < 4 * estimates.std() / math.sqrt(rows)
    assert not any(group.independent for group in atoms.groups)


def test_frozen_draws_depend_on_the_row_only():
    frozen = ModuleOrbit(Antithetic()).freeze(4, seeded())
    shift = frozen.points(inputs(2)).points - inputs(2)[:, None]
    torch.testing.assert_close(shift, shift[:1].expand(3, 4, 2))
    assert len(shift[0].unique(dim=0)) == 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("num_noise", [2, None])
def test_nan_is_refused_by_the_name_of_the_module(bad: float, num_noise):
    value = torch.zeros(3, 4 if num_noise else 2, 2)
    value[1, 1, 0] = bad
    with pytest.raises(ValueError, match="module Fixed moved inputs to NaN or infinity"):
        ModuleOrbit(Fixed(value), num_noise, num_samples=4).points(inputs(2), seeded())


@pytest.mark.parametrize("value", [torch.zeros(3, 2), torch.zeros(3, 3, 2), torch.zeros(2, 4, 2), [1.0]])
def test_a_module_that_returns_something_else(value):
    with pytest.raises(ValueError, match=r"module Fixed must return moved inputs \[3, 4, d\].*returned"):
        ModuleOrbit(Fixed(value), 2, num_samples=4).points(inputs(2), seeded())


def test_it_says_which_module():
    assert repr(ModuleOrbit(Blur(2), 2, num_samples=4)) == "ModuleOrbit(Blur, num_samples=4)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModuleOrbit(Blur(2), 0), "num_noise must be at least 1, not 0"),
        (lambda: ModuleOrbit(Blur(2), 2, "gamma"), "'uniform' or 'normal'"),
        (lambda: ModuleOrbit(Antithetic(), draws="sobol"), "takes no Sobol noise"),
        (lambda: ModuleOrbit(Antithetic(), num_groups=1), "num_groups of 2 or more"),
        (lambda: ModuleOrbit(Blur(2), 2, num_samples=1), "num_samples=1"),
    ],
)
def test_bad_arguments(make, message: str):
    with unchecked(), pytest.raises(ValueError, match=message):
        make()


def test_only_modules():
    with unchecked(), pytest.raises(TypeError, match=r"torch\.nn\.Module, not function"):
        ModuleOrbit(lambda x, noise: x)
