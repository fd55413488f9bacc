"""Wide convolutional networks equal random ones with many channels and slow loops over pairs of positions."""

import itertools
import math

import numpy as np
import pytest
import torch

from orbitwise.estimators import InvariantGPClassifier
from orbitwise.functionals import OrbitAverage
from orbitwise.kernels import WideConvolutionKernel, WideNetworkKernel
from orbitwise.kernels import wide_networks as wide_convolution
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process
from orbitwise.transforms import negation
from tests.kernels.finite_networks import FiniteNetwork

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

CASES = list(itertools.product(["relu", "erf"], ["zero", "circular"], [False, True], [False, True]))


def images(count: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Rows of pixels."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, math.prod(shape), generator=generator, dtype=torch.float64)


def slow(kernel: WideConvolutionKernel, x: torch.Tensor, y: torch.Tensor) -> float:
    """The kernel of two images by a loop over all pairs of positions of both."""
    channels, height, width = kernel.image_shape
    places = list(itertools.product(range(height), range(width)))
    half = kernel.filter_size // 2
    weight, bias = kernel.weight_variance.item(), kernel.bias_variance.item()
    pictures = torch.stack([x, y]).reshape(2, channels, height, width).numpy()

    def taps(p: int, q: int) -> list[tuple[int, int] | None]:
        found = []
        for a, b in itertools.product(range(-half, half + 1), repeat=2):
            row, column = p + a, q + b
            if kernel.padding == "circular":
                found.append((row % height, column % width))
            else:
                found.append((row, column) if 0 <= row < height and 0 <= column < width else None)
        return found

    def convolve(old: dict) -> dict:
        new = {}
        for key in itertools.product((0, 1), places, (0, 1), places):
            i, p, j, q = key
            pairs = zip(taps(*p), taps(*q), strict=True)
            total = sum(old[i, s, j, t] for s, t in pairs if s is not None and t is not None)
            new[key] = bias + weight * total / kernel.filter_size**2
        return new

    def moment(old: dict) -> dict:
        new = {}
        for (i, p, j, q), value in old.items():
            k, m = old[i, p, i, p], old[j, q, j, q]
            if kernel.activation == "relu":
                theta = math.acos(max(-1.0, min(1.0, value / math.sqrt(k * m))))
                new[i, p, j, q] = (
                    math.sqrt(k * m) / (2 * math.pi)
                    * (math.sin(theta) + (math.pi - theta) * math.cos(theta))
                )  # fmt: skip
            else:
                new[i, p, j, q] = 2 / math.pi * math.asin(2 * value / math.sqrt((1 + 2 * k) * (1 + 2 * m)))
        return new

    keys = itertools.product((0, 1), places, (0, 1), places)
    pixels = {
        (i, p, j, q): float(pictures[i, :, p[0], p[1]] @ pictures[j, :, q[0], q[1]]) / channels
        for i, p, j, q in keys
    }
    inner = convolve(pixels)
    for _ in range(kernel.depth - 1):
        block = convolve(moment(inner))
        inner = {key: block[key] + inner[key] for key in block} if kernel.residual else block
    last = moment(inner)
    pairs = itertools.product(places, places) if kernel.pooling else zip(places, places, strict=True)
    values = [last[0, p, 1, q] for p, q in pairs]
    return bias + weight * sum(values) / len(values)


@pytest.mark.parametrize(("activation", "padding", "pooling", "residual"), CASES)
def test_slow_loops_over_all_positions(activation: str, padding: str, pooling: bool, residual: bool):
    kernel = WideConvolutionKernel(
        (2, 3, 4), 3, 3, activation, 1.4, 0.3, padding, pooling, residual
    ).double()  # fmt: skip
    x, y = images(2, 2, 3, 4), images(3, 2, 3, 4, seed=1)
    with torch.no_grad():
        gram, own = kernel(x, y).to_dense(), kernel(x, y[:2], diag=True)
    assert gram[1, 2].item() == pytest.approx(slow(kernel, x[1], y[2]), rel=1e-10)
    assert torch.allclose(own, gram[:, :2].diagonal(), rtol=1e-12)


@pytest.mark.parametrize(
    ("activation", "padding", "pooling", "residual"),
    [("relu", "zero", False, False), ("relu", "circular", True, False), ("erf", "zero", True, False),
     ("relu", "zero", False, True)],
)  # fmt: skip
def test_random_networks_with_many_channels(activation: str, padding: str, pooling: bool, residual: bool):
    variances, depth = (1.5, 0.2), 2
    kernel = WideConvolutionKernel(
        (3, 3), depth, 3, activation, *variances, padding=padding, pooling=pooling, residual=residual
    )
    x = images(3, 3, 3)
    with torch.no_grad():
        expected = kernel.double()(x).to_dense()
    network = FiniteNetwork(depth, activation, residual, *variances, 3, padding, pooling)
    pictures = x.reshape(3, 1, 3, 3)
    mean, error = network.estimate(pictures)
    assert ((mean - expected) / error).abs().max() < 4
    assert ((mean - 1.05 * expected) / error).abs().max() > 4


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("pooling", [False, True])
def test_images_of_one_pixel_are_rows_of_a_dense_network(residual: bool, pooling: bool):
    x = images(4, 7)
    dense = WideNetworkKernel(3, "erf", residual=residual).double()
    kernel = WideConvolutionKernel((7, 1, 1), 3, 1, "erf", residual=residual, pooling=pooling).double()
    with torch.no_grad():
        assert torch.allclose(kernel(x).to_dense(), dense(x).to_dense(), rtol=1e-12)


def test_pooling_with_circular_padding_is_invariant_to_translations():
    x, y = images(2, 4, 5), images(2, 4, 5, seed=1)
    moved = x.reshape(2, 4, 5).roll((1, 2), (1, 2)).reshape(2, -1)
    values = {}
    for pooling, padding in itertools.product((True, False), ("circular", "zero")):
        kernel = WideConvolutionKernel((4, 5), 2, padding=padding, pooling=pooling).double()
        with torch.no_grad():
            values[pooling, padding] = (kernel(moved, y).to_dense() - kernel(x, y).to_dense()).abs().max()
    assert values.pop((True, "circular")) < 1e-12
    assert all(value > 1e-4 for value in values.values())


@pytest.mark.parametrize("pooling", [False, True])
def test_tiles_do_not_matter(monkeypatch: pytest.MonkeyPatch, pooling: bool):
    kernel = WideConvolutionKernel((3, 3), 2, padding="circular", pooling=pooling).double()
    x, y = images(4, 3, 3), images(3, 3, 3, seed=1)
    grams, slopes = [], []
    for entries in (1, 9 * 3, 2**20):
        monkeypatch.setitem(wide_convolution.ENTRIES_AT_ONCE, "cpu", entries)
        whole = torch.cat([kernel(x).to_dense(), kernel(x, y).to_dense(), kernel(x, diag=True)[:, None]], 1)
        slopes.append(
            torch.stack(torch.autograd.grad((whole * whole.detach().cos()).sum(), [*kernel.parameters()]))
        )
        grams.append(whole.detach())
    assert torch.allclose(grams[0][:, :4], grams[0][:, :4].T, rtol=1e-12)
    assert all(torch.allclose(gram, grams[0], rtol=1e-12) for gram in grams)
    assert all(torch.allclose(slope, slopes[0], rtol=1e-11) for slope in slopes)
    assert torch.allclose(grams[0][:, -1], grams[0][:, :4].diagonal(), rtol=1e-12)


@pytest.mark.parametrize(("pooling", "activation"), [(False, "relu"), (True, "erf")])
def test_gradients_and_positive_definiteness(pooling: bool, activation: str):
    settings = {"activation": activation, "pooling": pooling, "residual": True, "padding": "circular"}
    kernel = WideConvolutionKernel((3, 3), 2, **settings).double()
    x, y = images(2, 3, 3).requires_grad_(), images(2, 3, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: kernel(a, b).to_dense(), (x, y))
    # copies have gradients of their own, which are half of those of one input at both places
    probe = torch.tensor([[0.3, -1.0], [0.7, 0.2]], dtype=torch.float64)
    both = torch.autograd.grad((kernel(x).to_dense() * (probe + probe.T)).sum(), x)[0]
    first = torch.autograd.grad((kernel(x, x.detach().clone()).to_dense() * (probe + probe.T)).sum(), x)[0]
    assert torch.allclose(both, 2 * first, rtol=1e-10)
    # in the direction of a variance, with inputs that coincide
    value = kernel(x).to_dense().sum()
    slopes = torch.autograd.grad(value, [kernel.raw_weight_variance, kernel.raw_bias_variance])
    with torch.no_grad():
        for raw, slope in zip((kernel.raw_weight_variance, kernel.raw_bias_variance), slopes, strict=True):
            raw += 1e-6
            assert (kernel(x).to_dense().sum() - value).item() / 1e-6 == pytest.approx(slope.item(), rel=1e-4)
            raw -= 1e-6
        gram = kernel(torch.cat([images(20, 3, 3), torch.zeros(1, 9), images(2, 3, 3)])).to_dense()
    assert torch.linalg.eigvalsh(gram)[0] > -1e-12 * gram.diagonal().max()


def test_single_precision_blank_images_and_batches():
    x = torch.cat([images(3, 4, 4), torch.zeros(1, 16, dtype=torch.float64)])
    kernel = WideConvolutionKernel((4, 4), 3, bias_variance=0.0).double()
    single = x.float().requires_grad_()
    gram = kernel(single).to_dense()
    slopes = torch.autograd.grad(gram.sum(), [single, *kernel.parameters()])
    assert gram.dtype == torch.float32
    assert all(bool(part.isfinite().all()) for part in (gram, *slopes))
    with torch.no_grad():
        double = kernel(x).to_dense()
        assert torch.allclose(gram.double(), double, rtol=1e-5)
        batch = WideConvolutionKernel((4, 4), 3, bias_variance=0.0, batch_shape=torch.Size([2])).double()
        batch.weight_variance = torch.tensor([2.0, 1.0])
        both = batch(torch.stack([x, x])).to_dense()
        assert torch.allclose(both[0], double, rtol=1e-7)
        assert torch.allclose(both[1], double / 2**4, rtol=1e-7)
        assert torch.allclose(batch(torch.stack([x, x]), diag=True), both.diagonal(dim1=-1, dim2=-2))


def test_an_orbit_average_is_a_double_sum():
    x, kernel = images(3, 3, 3), WideConvolutionKernel((3, 3), 2).double()
    with torch.no_grad():
        atoms = OrbitAverage(FiniteOrbit(negation(9))).atoms(x)
        gram = Process(None, kernel).covariance(atoms)
        slow_sum = sum(kernel(a * x, b * x).to_dense() / 4 for a in (1, -1) for b in (1, -1))
    assert torch.allclose(gram, slow_sum, rtol=1e-12)


def test_a_classifier_learns_its_variances():
    pictures = np.random.default_rng(0).uniform(size=(20, 16))
    labels = pictures[:, 0] > pictures[:, 5]
    model = InvariantGPClassifier(WideConvolutionKernel((4, 4)), max_iterations=3).fit(pictures, labels)
    assert model.kernel_.weight_variance.item() != pytest.approx(2.0, abs=1e-4)
    assert set(model.predict(pictures)) <= {False, True}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_shape": (4,)}, "must be \\(height, width\\) or"),
        ({"image_shape": (4, 0)}, "must be \\(height, width\\) or"),
        ({"filter_size": 2}, "odd whole number, not 2"),
        ({"filter_size": 5}, "does not fit"),
        ({"padding": "same"}, "'circular' or 'zero', not 'same'"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        WideConvolutionKernel(**{"image_shape": (4, 4), **settings})


def test_rows_of_other_images():
    with pytest.raises(ValueError, match="rows of 16 pixels, not of 9: give the image_shape"):
        WideConvolutionKernel((4, 4))(images(2, 3, 3)).to_dense()
