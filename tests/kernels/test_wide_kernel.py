"""Variances of wide networks: constraints, priors, networks without biases, and what is refused."""

import copy

import pytest
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.priors import LogNormalPrior

from orbitwise.kernels import WideConvolutionKernel, WideNetworkKernel
from orbitwise.kernels.wide_networks import WideKernel, affine
from tests.storage.round_trip import again


def test_variances_are_set_and_learned_on_a_logarithmic_scale():
    kernel = WideNetworkKernel(2, weight_variance=1.5, bias_variance=0.3)
    assert kernel.weight_variance.item() == pytest.approx(1.5)
    assert kernel.raw_bias_variance.exp().item() == pytest.approx(0.3)
    kernel.weight_variance = 4.0
    kernel.initialize(bias_variance=torch.tensor(2.0))
    assert (kernel.weight_variance.item(), kernel.bias_variance.item()) == pytest.approx((4.0, 2.0))
    assert {name for name, _ in kernel.named_parameters()} == {"raw_weight_variance", "raw_bias_variance"}


def test_batches_of_variances():
    kernel = WideNetworkKernel(2, batch_shape=torch.Size([2, 3]), weight_variance=1.5)
    assert kernel.weight_variance.shape == (2, 3, 1, 1)
    kernel.weight_variance = torch.arange(1.0, 7.0)
    assert torch.allclose(kernel.weight_variance.flatten(), torch.arange(1.0, 7.0))


def test_priors_and_constraints_are_those_given():
    prior = LogNormalPrior(0.0, 1.0)
    kernel = WideNetworkKernel(weight_variance_prior=prior, bias_variance_constraint=Interval(0.0, 1.0))
    ((name, _, found, closure, _),) = list(kernel.named_priors())
    assert (name, found) == ("weight_variance_prior", prior)
    assert torch.equal(closure(kernel), kernel.weight_variance)
    assert isinstance(kernel.raw_bias_variance_constraint, Interval)
    twin = copy.deepcopy(kernel)
    twin.weight_variance = 7.0
    assert kernel.weight_variance.item() == pytest.approx(2.0)


def test_no_biases():
    kernel = WideNetworkKernel(2, bias_variance=0.0)
    assert not kernel.has_bias
    assert kernel.bias_variance.item() == 0
    with pytest.raises(ValueError, match="has no biases"):
        kernel.bias_variance = 1.0
    with pytest.raises(ValueError, match="nothing to learn"):
        WideNetworkKernel(bias_variance=0.0, bias_variance_prior=LogNormalPrior(0.0, 1.0))


@pytest.mark.parametrize("make", [WideNetworkKernel, lambda **k: WideConvolutionKernel((4, 4), **k)])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 0}, "at least 1, not 0"),
        ({"depth": True}, "at least 1, not True"),
        ({"activation": "tanh"}, "one of 'erf', 'relu', not 'tanh'"),
        ({"weight_variance": 0.0}, "weight_variance must be positive"),
        ({"bias_variance": -1.0}, "bias_variance must be finite and not negative"),
        ({"weight_variance": float("nan")}, "weight_variance must be positive"),
        ({"depth": 1, "residual": True}, "at least one block"),
    ],
)
def test_settings_that_make_no_sense(make: type[WideKernel], settings: dict[str, object], message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        make(**settings)


@pytest.mark.parametrize(
    "kernel",
    [
        WideNetworkKernel(3, "erf", 1.3, 0.0, active_dims=(1, 0, 3)),
        WideNetworkKernel(2, bias_variance=3.0, residual=True, bias_variance_constraint=Interval(2.5, 4.0)),
        ScaleKernel(WideConvolutionKernel((2, 2, 1), 2, 1, weight_variance_prior=LogNormalPrior(0.3, 1.0))),
        WideConvolutionKernel((2, 2), 2, 1, "erf", 1.2, 0.4, "circular", True, True),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_kernels_come_back_from_a_file(kernel: Kernel):
    kernel = kernel.double()
    x = torch.linspace(-1, 2, 12, dtype=torch.float64).reshape(3, 4).sin()
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter += 0.1
        back = again(kernel)
        assert torch.equal(back(x).to_dense(), kernel(x).to_dense())
    assert str(back) == str(kernel)
    assert [str(each) for _, each in back.named_constraints()] == [
        str(each) for _, each in kernel.named_constraints()
    ]
    assert len(list(back.named_priors())) == len(list(kernel.named_priors()))


def test_affine_layers_overwrite_only_what_needs_no_gradient():
    values, weight, bias = torch.ones(3), torch.tensor(2.0), torch.tensor(0.5)
    assert affine(values, weight, bias) is values
    assert torch.equal(values, torch.full((3,), 2.5))
    learned = torch.tensor(2.0, requires_grad=True)
    values = torch.ones(3)
    result = affine(values, learned, bias)
    assert torch.equal(values, torch.ones(3))
    result.sum().backward()
    assert learned.grad.item() == 3
    assert affine(torch.ones(3), torch.ones(2, 1), bias).shape == (2, 3)
