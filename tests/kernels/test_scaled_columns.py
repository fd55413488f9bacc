"""Kernels of scaled columns are kernels with lengthscales in proportion to the units."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from orbitwise import InvariantGPRegressor
from orbitwise.functionals import Gradient
from orbitwise.kernels import ScaledColumnsKernel
from orbitwise.kernels.bases import log_positive
from orbitwise.process import Process
from orbitwise.process.process import is_rotation_invariant

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
UNITS = torch.tensor([0.01, 1.0, 300.0], dtype=torch.float64)


def pair(smoothness: float | None = None) -> tuple[ScaleKernel, ScaleKernel]:
    """A kernel of scaled columns, and the same with lengthscales of its own."""
    options = {"lengthscale_constraint": log_positive()}
    one, several = (
        RBFKernel(ard_num_dims=width, **options)
        if smoothness is None
        else MaternKernel(smoothness, ard_num_dims=width, **options)
        for width in (None, 3)
    )
    one, several = one.double(), several.double()
    one.lengthscale, several.lengthscale = 1.7 * UNITS[1], 1.7 * UNITS
    return ScaleKernel(ScaledColumnsKernel(one, UNITS)).double(), ScaleKernel(several).double()


@pytest.mark.parametrize("smoothness", [None, 2.5])
def test_covariances_are_those_of_lengthscales_per_column(smoothness: float | None):
    scaled, separate = pair(smoothness)
    x = UNITS * X
    torch.testing.assert_close(scaled(x).to_dense(), separate(x).to_dense())
    torch.testing.assert_close(scaled(x, diag=True), separate(x, diag=True))
    rows, other = (Gradient().atoms(part) for part in (x, x[:4]))
    torch.testing.assert_close(
        Process(None, scaled).covariance(rows, other), Process(None, separate).covariance(rows, other)
    )


def test_one_lengthscale_is_learned():
    x = (UNITS * X).numpy()
    model = InvariantGPRegressor(kernel=pair()[0]).fit(x, X[:, 0].sin().numpy())
    base = model.kernel_.base_kernel
    assert base.base_kernel.lengthscale.shape == (1, 1)
    assert torch.equal(base.units, UNITS)
    torch.testing.assert_close(base.lengthscale, base.base_kernel.lengthscale * UNITS)


def test_it_is_not_taken_for_rotation_invariant():
    assert not is_rotation_invariant(pair()[0])


def test_columns_are_not_chosen_twice():
    with pytest.raises(ValueError, match="leave out active_dims"):
        ScaledColumnsKernel(RBFKernel(active_dims=(0, 1)), UNITS)
    with pytest.raises(AttributeError, match="base_kernel"):
        pair()[0].base_kernel.lengthscale = UNITS
