"""Columns wound around a circle."""

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel

from orbitwise.functionals import Gradient, Wrap
from orbitwise.process import Process
from tests.contracts.functional_contract import Case, FunctionalContract


class TestWrap(FunctionalContract):
    @pytest.fixture
    def case(self) -> Case:
        def by_hand(g, x):
            angle = 2 * math.pi * x[1] / 1.7
            circle = 1.7 / (2 * math.pi) * torch.stack([angle.cos(), angle.sin()])
            return g(torch.cat([x[:1], circle, x[2:]]))

        return Case(Wrap(1.7, 1), (3,), by_hand, width_of_g=4)


def test_f_repeats_itself_under_any_kernel():
    x = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None]
    process, wrap = Process(None, MaternKernel(nu=0.5).double()), Wrap(0.8)
    with torch.no_grad():
        here, there = wrap.atoms(x), wrap.atoms(x + 3 * 0.8)
        torch.testing.assert_close(process.covariance(here, there), process.covariance(here))


def test_an_rbf_around_a_circle_is_the_periodic_kernel():
    x = torch.linspace(0, 3, 9, dtype=torch.float64)[:, None]
    rbf, periodic = RBFKernel().double(), PeriodicKernel().double()
    rbf.lengthscale, periodic.period_length = torch.tensor(0.6).double(), torch.tensor(1.3).double()
    # |φ(x) - φ(y)|² = (p/π)² sin²(π τ/p), so exp(-|…|²/2ℓ²) = exp(-2 sin²/λ) with λ = (2πℓ/p)²
    periodic.lengthscale = (2 * math.pi * rbf.lengthscale.detach() / 1.3) ** 2
    with torch.no_grad():
        wrapped = Process(None, rbf).covariance(Wrap(1.3).atoms(x))
        torch.testing.assert_close(wrapped, periodic(x).to_dense())


def test_the_period_is_learned_and_slopes_pass_through():
    wrap = Wrap(2.0)
    process = Process(None, RBFKernel().double())
    x = torch.linspace(0, 1, 4, dtype=torch.float64)[:, None]
    process.covariance(wrap.atoms(x)).sum().backward()
    assert wrap.log_period.grad is not None
    assert wrap.log_period.grad.abs().item() > 0
    assert not Wrap(2.0, learnable=False).log_period.requires_grad
    assert (Gradient() @ wrap).atoms(x).num_rows == 4
    assert repr(wrap) == "Wrap(period=2, column=0)"


def test_bad_arguments():
    with pytest.raises(ValueError, match="period of Wrap must be positive"):
        Wrap(0.0)
    with pytest.raises(ValueError, match="counted from 0"):
        Wrap(1.0, -1)
    with pytest.raises(ValueError, match="turns column 2, but the inputs have width 2"):
        Wrap(1.0, 2).atoms(torch.zeros(3, 2))
