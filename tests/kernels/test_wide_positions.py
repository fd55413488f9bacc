"""Box filters and shifts of positions equal slow loops."""

import itertools

import pytest
import torch

from orbitwise.kernels.wide_networks import Layers, shifts


@pytest.mark.parametrize("padding", ["circular", "zero"])
@pytest.mark.parametrize(("size", "height", "width"), [(1, 3, 2), (3, 4, 5), (5, 5, 6)])
def test_a_convolution_is_a_mean_over_the_filter(padding: str, size: int, height: int, width: int):
    values = torch.randn(height, width, 2, dtype=torch.float64)
    weight, bias = (torch.tensor(v, dtype=torch.float64) for v in (1.3, 0.2))
    found = Layers(1, "relu", size, padding, False).convolve(values, weight, bias)
    half = range(-(size // 2), size // 2 + 1)
    for p, q in itertools.product(range(height), range(width)):
        total = torch.zeros(2, dtype=torch.float64)
        for a, b in itertools.product(half, half):
            if padding == "circular":
                total += values[(p + a) % height, (q + b) % width]
            elif 0 <= p + a < height and 0 <= q + b < width:
                total += values[p + a, q + b]
        assert torch.allclose(found[p, q], 0.2 + 1.3 * total / size**2)


@pytest.mark.parametrize("padding", ["circular", "zero"])
def test_gradients_of_a_convolution(padding: str):
    values = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (1.3, 0.2))
    layers = Layers(1, "relu", 3, padding, False)
    assert torch.autograd.gradcheck(layers.convolve, (values, weight, bias))


@pytest.mark.parametrize("padding", ["circular", "zero"])
def test_shifts_meet_every_pair_of_positions_once(padding: str):
    height, width = 3, 4
    places = torch.arange(height * width).reshape(height, width)
    met = []
    for shift in shifts(height, width, padding, pooling=True):
        both = (shift.left(places).flatten().tolist(), shift.right(places).flatten().tolist())
        met += list(zip(*both, strict=True))
    assert sorted(met) == list(itertools.product(range(12), range(12)))
    (only,) = shifts(height, width, padding, pooling=False)
    assert torch.equal(only.left(places), places)
    assert torch.equal(only.right(places), places)


def test_variances_are_covariances_of_an_image_with_itself():
    pixels = torch.rand(4, 4, 3, dtype=torch.float64)
    weight, bias = (torch.tensor(v, dtype=torch.float64) for v in (1.3, 0.2))
    for residual, activation in itertools.product((False, True), ("relu", "erf")):
        layers = Layers(3, activation, 3, "zero", residual)
        variances = layers.variances(pixels.square(), weight, bias)
        assert len(variances) == 3
        moments = layers.moments(pixels.square(), variances, variances, weight, bias)
        again = Layers(4, activation, 3, "zero", False)
        expected = again.convolve(moments, weight, bias)
        deeper = Layers(4, activation, 3, "zero", residual).variances(pixels.square(), weight, bias)[-1]
        assert torch.allclose(expected + (variances[-1] if residual else 0), deeper, rtol=1e-12)
