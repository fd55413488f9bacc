"""Named parameters: names, values and moving entries of parameters of kernels, orbits and plain modules."""

import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan
from gpytorch.kernels import AdditiveKernel, RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior, NormalPrior
from torch import nn

from orbitwise.inference.optimise.hyperparameters import NamedParameter, parts_of
from orbitwise.orbits.orbit import Bounds, Widths


def test_gpytorch_parameters_go_by_their_constrained_values():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, lengthscale_constraint=Interval(0.1, 5.0))).double()
    kernel.base_kernel.lengthscale = torch.tensor([[0.5, 2.0]], dtype=torch.float64)
    scale, length = parts_of(kernel, {})
    assert scale.coordinate_names == ["outputscale"]
    assert length.coordinate_names == ["base_kernel.lengthscale[0]", "base_kernel.lengthscale[1]"]
    torch.testing.assert_close(length.value(), kernel.base_kernel.lengthscale.detach())
    low, high = length.range()
    torch.testing.assert_close(low, torch.full((1, 2), 0.1).double())
    torch.testing.assert_close(high, torch.full((1, 2), 5.0).double())


def test_slopes_are_derivatives_of_values():
    kernel = RBFKernel(lengthscale_constraint=GreaterThan(0.2)).double()
    (part,) = parts_of(kernel, {})
    z = torch.tensor([0.7], dtype=torch.float64)
    value, slope = part.value_and_slope(z)
    ends = [part.value(z + step).item() for step in (1e-6, -1e-6)]
    assert slope.item() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-8)
    assert value.item() == pytest.approx(0.2 + torch.log1p(z.exp()).item())
    assert not slope.requires_grad
    free = z.clone().requires_grad_()
    (bend,) = torch.autograd.grad(part.value_and_slope(free)[1].sum(), free)
    # the second derivative of softplus is σ(1 - σ)
    assert bend.item() == pytest.approx((torch.sigmoid(z) * torch.sigmoid(-z)).item())


def test_only_moving_bounds_of_an_orbit_count():
    bounds = Bounds(
        ["angle", "shift", "shear"], {"angle": 0.3, "shear": 0.2}, two_sided=["shear"], limits={"angle": 3.0}
    )
    half, centre = parts_of({"orbit": bounds}, {})
    assert half.coordinate_names == ["orbit.half_width[angle]", "orbit.half_width[shear]"]
    assert centre.coordinate_names == ["orbit.centre[shear]"]
    torch.testing.assert_close(half.value(), torch.tensor([0.3, 0.2]).double(), rtol=1e-6, atol=0)
    low, high = half.range()
    assert low.tolist() == [0.0, 0.0]
    assert high[0].item() == pytest.approx(3.0)
    assert torch.isinf(high[1])
    raw = half.raw_at(torch.tensor([0.5, -1.0]).double())
    assert raw[1] == bounds.raw_half[1]
    assert (raw[0].item(), raw[2].item()) == (0.5, -1.0)


def test_widths_are_read_too():
    widths = Widths({"strength": 0.4, "off": 0.0})
    (part,) = parts_of(widths, {})
    assert part.coordinate_names == ["width[strength]"]
    assert part.value().tolist() == pytest.approx([0.4])


def test_tied_parameters_are_one_part_with_several_owners():
    shared = RBFKernel()
    (part,) = parts_of(AdditiveKernel(shared, shared), {})
    assert part.size == 1
    one, other = RBFKernel(), RBFKernel()
    other.raw_lengthscale = one.raw_lengthscale
    (part,) = parts_of({"one": one, "other": other}, {})
    assert len(part.owners) == 2
    part.put(torch.ones(1, 1))
    assert one.lengthscale.item() == other.lengthscale.item()


def test_a_reading_gives_a_plain_parameter_its_meaning():
    module = nn.Module()
    module.raw = nn.Parameter(torch.tensor(0.5))
    (part,) = parts_of(module, {"raw": NamedParameter("noise", torch.exp)})
    assert part.name == "noise"
    assert part.value().item() == pytest.approx(1.6487, rel=1e-4)
    with pytest.raises(ValueError, match="names 'row', which is not a parameter; parameters are raw"):
        parts_of(module, {"row": NamedParameter("noise")})


def test_parameters_that_are_not_learned_are_left_out():
    kernel = ScaleKernel(RBFKernel())
    kernel.raw_outputscale.requires_grad_(False)
    assert [part.name for part in parts_of(kernel, {})] == ["base_kernel.lengthscale"]


def test_registered_priors_are_found_wherever_they_were_registered():
    kernel = ScaleKernel(RBFKernel(lengthscale_prior=GammaPrior(2.0, 3.0)))
    scale, length = parts_of(kernel, {})
    assert scale.registered is None
    assert isinstance(length.registered, GammaPrior)
    kernel = ScaleKernel(RBFKernel())
    kernel.register_prior("far", NormalPrior(0.0, 1.0), lambda module: module.base_kernel.lengthscale)
    assert isinstance(parts_of(kernel, {})[1].registered, NormalPrior)


def test_priors_of_something_else_are_refused():
    kernel = RBFKernel()
    kernel.register_prior("square", NormalPrior(0.0, 1.0), lambda module: module.lengthscale**2)
    with pytest.raises(ValueError, match="prior square is not a prior of lengthscale itself"):
        parts_of(kernel, {})
    kernel = RBFKernel(lengthscale_prior=GammaPrior(2.0, 3.0))
    kernel.register_prior("again", NormalPrior(0.0, 1.0), lambda module: module.lengthscale)
    with pytest.raises(ValueError, match="several registered priors"):
        parts_of(kernel, {})


def test_names_must_differ():
    with pytest.raises(ValueError, match="Several parameters are called lengthscale: name the modules"):
        parts_of([RBFKernel(), RBFKernel()], {})


@pytest.mark.parametrize(
    "constraint",
    [GreaterThan(0.2), GreaterThan(0.2, transform=torch.exp, inv_transform=torch.log), LessThan(3.0)],
)
def test_slopes_in_closed_form_are_those_of_differences(constraint):
    (part,) = parts_of(RBFKernel(lengthscale_constraint=constraint).double(), {})
    assert (part.slope is None) == isinstance(constraint, LessThan)
    for z in (-3.0, 0.4, 5.0):
        point = torch.tensor([z], dtype=torch.float64)
        _, slope = part.value_and_slope(point)
        ends = [part.value(point + step).item() for step in (1e-5, -1e-5)]
        assert slope.item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)
