"""Lines about a centre, against a slow loop."""

import pytest
import torch
from gpytorch.kernels import LinearKernel

from orbitwise.kernels import CentredLinearKernel


def made(dtype: torch.dtype) -> CentredLinearKernel:
    kernel = CentredLinearKernel(ard_num_dims=2).to(dtype)
    kernel.variance = 0.7
    kernel.initialize(centre=torch.tensor([[0.5, -2.0]], dtype=dtype))
    return kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_product_of_distances_from_the_centre(dtype: torch.dtype):
    x, y = (
        torch.randn(5, 2, dtype=dtype),
        torch.randn(3, 2, dtype=dtype),
    )
    kernel = made(dtype)
    centre = torch.tensor([0.5, -2.0], dtype=dtype)
    slow = torch.tensor([[0.7 * float((a - centre) @ (b - centre)) for b in y] for a in x], dtype=dtype)
    with torch.no_grad():
        torch.testing.assert_close(kernel(x, y).to_dense(), slow)
        torch.testing.assert_close(kernel(x, diag=True), kernel(x).to_dense().diagonal())
    assert kernel(x, y).to_dense().dtype == dtype


def test_with_the_centre_at_the_origin_it_is_gpytorchs():
    x = torch.randn(6, 3, dtype=torch.float64)
    ours, theirs = CentredLinearKernel().double(), LinearKernel().double()
    ours.variance, theirs.variance = 1.3, 1.3
    with torch.no_grad():
        torch.testing.assert_close(ours(x).to_dense(), theirs(x).to_dense())
    assert not ours.is_stationary


def test_the_centre_is_learned():
    x = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    kernel = CentredLinearKernel().double()
    kernel(x).to_dense().sum().backward()
    assert kernel.centre.grad is not None
    assert float(kernel.centre.grad.abs().sum()) > 0
