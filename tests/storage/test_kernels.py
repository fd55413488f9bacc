"""Kernels, constraints, priors and means come back: values, gradients to learn, and hyperpriors."""

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from gpytorch.priors import (
    GammaPrior,
    HalfCauchyPrior,
    HalfNormalPrior,
    LogNormalPrior,
    NormalPrior,
    SmoothedBoxPrior,
    UniformPrior,
)

from orbitwise import InvariantGPRegressor, load, save
from orbitwise.functionals import OrbitAverage
from orbitwise.inference.optimise.training import log_prior
from orbitwise.kernels import CentredLinearKernel, ScaledColumnsKernel
from orbitwise.kernels.bases import LinearTrend, default_kernel, log_positive
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import FunctionalKernel
from orbitwise.storage import StorageError
from orbitwise.storage.recipes import name_of
from orbitwise.transforms import negation
from tests.storage.round_trip import again

X = torch.linspace(-1, 2, 12, dtype=torch.float64).reshape(4, 3).sin()

KERNELS = {
    "rbf": lambda: RBFKernel(),
    "separate": lambda: RBFKernel(ard_num_dims=3, lengthscale_constraint=log_positive()),
    "active": lambda: ScaleKernel(RBFKernel(active_dims=(2, 0))),
    "active scale": lambda: ScaleKernel(RBFKernel(), active_dims=(1,)),
    "default": lambda: default_kernel(X, True),
    "matern": lambda: MaternKernel(nu=1.5, lengthscale_prior=GammaPrior(3.0, 6.0)),
    "piecewise": lambda: PiecewisePolynomialKernel(q=1),
    "scaled columns": lambda: ScaleKernel(ScaledColumnsKernel(RBFKernel(), X[0].abs())),
    "rational": lambda: RQKernel(alpha_constraint=GreaterThan(0.3), lengthscale_constraint=Interval(0.1, 7)),
    "periodic": lambda: PeriodicKernel(ard_num_dims=3, period_length_prior=NormalPrior(1.0, 0.3)),
    "cosine": lambda: CosineKernel(period_length_constraint=LessThan(9.0)),
    "linear": lambda: LinearKernel(variance_prior=LogNormalPrior(0.1, 0.7)),
    "centred": lambda: CentredLinearKernel(ard_num_dims=3),
    "polynomial": lambda: PolynomialKernel(power=2, offset_prior=HalfCauchyPrior(0.4)),
    "constant": lambda: ConstantKernel(constant_prior=HalfNormalPrior(2.0)),
    "mixture": lambda: SpectralMixtureKernel(num_mixtures=2, ard_num_dims=3),
    "sum": lambda: AdditiveKernel(RBFKernel(active_dims=(0,)), ScaleKernel(LinearKernel())),
    "product": lambda: ProductKernel(RBFKernel(), ScaleKernel(PeriodicKernel())),
    "algebra": lambda: RBFKernel() * LinearKernel() + ConstantKernel() + RBFKernel(),
    "uniform": lambda: ScaleKernel(RBFKernel(), outputscale_prior=UniformPrior(0.0, 5.0)),
    "invariant": lambda: FunctionalKernel(RBFKernel(), OrbitAverage(FiniteOrbit(negation(3))), True),
}  # fmt: skip


def made(name: str) -> Kernel:
    """The kernel with parameters as they might have been learned, the first of them held fixed."""
    kernel = KERNELS[name]().double()
    with torch.no_grad():
        for number, parameter in enumerate(kernel.parameters()):
            parameter += (
                0.1 * (number + 1) * torch.arange(1, parameter.numel() + 1).reshape(parameter.shape).cos()
            )
    next(iter(kernel.parameters())).requires_grad_(False)
    return kernel


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_come_back(name: str):
    kernel = made(name)
    back = again(kernel)
    assert type(back) is type(kernel)
    with torch.no_grad():
        assert torch.equal(kernel(X, X[:2]).to_dense(), back(X, X[:2]).to_dense())
        assert torch.equal(kernel(X).to_dense(), back(X).to_dense())
    flags = [[p.requires_grad for p in each.parameters()] for each in (kernel, back)]
    assert flags[0] == flags[1]
    assert kernel.state_dict().keys() == back.state_dict().keys()
    bounds = [[list(map(str, each)) for each in one.constraints()] for one in (kernel, back)]
    assert bounds[0] == bounds[1]
    assert len(list(kernel.named_priors())) == len(list(back.named_priors()))
    process = [gpytorch.module.Module() for _ in range(2)]
    for module, one in zip(process, (kernel, back), strict=True):
        module.kernel = one
    with torch.no_grad():
        assert float(log_prior(process[0])) == float(log_prior(process[1]))


def test_kernels_shared_by_a_sum_stay_shared():
    kernel = RBFKernel()
    back = again(AdditiveKernel(kernel, ScaleKernel(kernel)))
    assert back.kernels[0] is back.kernels[1].base_kernel


@pytest.mark.parametrize(
    "constraint",
    [
        Positive(),
        log_positive(0.5),
        Interval(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 3.0])),
        GreaterThan(1e-4, transform=None, inv_transform=None),
        LessThan(2.0),
    ],
)
def test_constraints_come_back(constraint: Interval):
    back = again(constraint.double())
    raw = torch.tensor([-0.3, 0.7], dtype=torch.float64)
    assert torch.equal(constraint.transform(raw), back.transform(raw))
    value = constraint.transform(raw)
    assert torch.equal(constraint.inverse_transform(value), back.inverse_transform(value))


@pytest.mark.parametrize(
    "mean", [ZeroMean(), ConstantMean().double(), LinearTrend(X)], ids=lambda mean: type(mean).__name__
)
def test_means_come_back(mean: gpytorch.means.Mean):
    with torch.no_grad():
        for parameter in mean.parameters():
            parameter += 0.3
        assert torch.equal(mean(X), again(mean)(X))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Positive(transform=torch.square, inv_transform=torch.sqrt), "custom transform"),
        (
            RBFKernel(lengthscale_prior=NormalPrior(0.0, 1.0, transform=torch.exp)),
            "a custom transform",
        ),
        (RBFKernel(lengthscale_prior=SmoothedBoxPrior(0.1, 1.0)), "SmoothedBoxPrior, which cannot be stored"),
        (ConstantMean(constant_prior=NormalPrior(0.0, 1.0)), "mean with priors"),
        (LinearMean(2), "LinearMean, which cannot be stored"),
    ],
)
def test_what_is_not_known_is_refused(value: object, message: str):
    with pytest.raises(StorageError, match=message):
        again(value)


def test_a_prior_that_was_added_by_hand_is_refused():
    kernel = RQKernel()
    kernel.register_prior("alpha_prior", GammaPrior(1.0, 1.0), lambda m: m.alpha)
    with pytest.raises(StorageError, match="the prior alpha_prior cannot be stored; give priors to the"):
        again(kernel)


def test_functions_have_names():
    assert [name_of(each) for each in (torch.exp, torch.nn.Softplus(), None, torch.nn.Softplus(2.0))] == [
        "exp", "softplus", None, "?",
    ]  # fmt: skip


def test_columns_that_do_not_matter_may_have_any_lengthscale(tmp_path):
    x = np.random.default_rng(0).normal(size=(9, 2))
    kernel = RBFKernel(ard_num_dims=2, lengthscale_constraint=log_positive()).double()
    kernel.raw_lengthscale.data = torch.tensor([[0.0, 709.7]], dtype=torch.float64)
    model = InvariantGPRegressor(kernel, max_iterations=0).fit(x, x[:, 0])
    file = tmp_path / "wide.orbitwise"
    save(model, file)
    np.testing.assert_array_equal(load(file).predict(x), model.predict(x))
