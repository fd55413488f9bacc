"""Fixed feature maps: in parts, through derivatives, never changed, and checked before they are used."""

import copy

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import OneHotEncoder
from torch import Tensor, nn

from orbitwise.functionals import DirectionalDerivative, FeatureMap, FiniteDifference, OrbitAverage, features
from orbitwise.functionals.features import FixedFeatures
from orbitwise.orbits import ImageOrbit

SHAPE = (1, 6, 6)


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Conv2d(1, 3, 3), nn.GELU(), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(48, 5)).to(dtype)


def rows(count: int = 7) -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).uniform(size=(count, 36)))


def by_hand(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return copy.deepcopy(module).eval()(x.reshape(-1, *SHAPE))


def test_a_module_is_used_as_it_is_evaluated_and_never_changed():
    module = network()
    before = copy.deepcopy(module.state_dict())
    x = rows()
    found = FixedFeatures.of(module, x, SHAPE)(x)
    torch.testing.assert_close(found, by_hand(module, x))
    assert module.training
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_parts_make_no_difference(monkeypatch: pytest.MonkeyPatch):
    x, module = rows(11), network()
    whole = FixedFeatures.of(module, x, SHAPE)(x)
    sizes = []
    module[0].register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    monkeypatch.setattr(features, "NUMBERS_AT_ONCE", 4 * 36)
    torch.testing.assert_close(FixedFeatures.of(module, x, SHAPE)(x), whole)
    assert sizes[-3:] == [4, 4, 3]
    assert max(sizes) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_module_works_in_its_own_precision(dtype):
    x, module = rows(), network(dtype=dtype)
    found = FixedFeatures.of(module, x, SHAPE)(x)
    assert found.dtype == torch.float64
    expected = by_hand(module, x.to(dtype)).double()
    torch.testing.assert_close(found, expected, rtol=1e-5 if dtype == torch.float32 else 0.1, atol=0.02)


def test_ranges_learn_through_a_module_in_parts(monkeypatch: pytest.MonkeyPatch):
    """The gradient by the range of an angle is that of differences, whatever the size of the parts."""
    monkeypatch.setattr(features, "NUMBERS_AT_ONCE", 5 * 36)
    x = rows()
    orbit = ImageOrbit(SHAPE, {"angle": 0.4}).freeze(4, torch.Generator().manual_seed(0))
    functional = OrbitAverage(orbit) @ FeatureMap(FixedFeatures.of(network(), x, SHAPE))
    raw = orbit.source.bounds.raw_half

    def total() -> Tensor:
        return functional.atoms(x).points.square().sum()

    (slope,) = torch.autograd.grad(total(), raw)
    place, step = int(slope.abs().argmax()), 1e-5
    values = []
    with torch.no_grad():
        for sign in (1, -1):
            raw[place] += sign * step
            values.append(float(total()))
            raw[place] -= sign * step
    assert abs(float(slope[place])) > 1e-3
    assert float(slope[place]) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5)


def test_slopes_reach_through_a_module_also_under_no_grad():
    x, direction = rows(3), torch.zeros(36, dtype=torch.float64)
    direction[14] = 1.0
    functional = FeatureMap(FixedFeatures.of(network(), x, SHAPE))
    with torch.no_grad():
        slopes = (DirectionalDerivative(direction) @ functional).atoms(x)
    difference = (FiniteDifference(direction, 1e-5) @ functional).atoms(x)
    expected = (difference.weights[..., None] * difference.points).sum(1)
    assert slopes.tangents is not None
    torch.testing.assert_close(slopes.tangents[:, 0], expected, rtol=1e-6, atol=1e-9)
    assert bool(expected.abs().max() > 1e-3)


def test_equal_rows_are_remembered_until_told_otherwise():
    x, calls = rows(), []

    def counted(array: np.ndarray) -> np.ndarray:
        calls.append(len(array))
        return array[:, :3]

    found = FixedFeatures.of(counted, x)
    calls.clear()
    found.remember()
    for _ in range(3):
        torch.testing.assert_close(found(x.clone()), x[:, :3])
    assert calls == [7]
    torch.testing.assert_close(found(x + 1), x[:, :3] + 1)
    found.forget()
    found(x)
    assert calls == [7, 7, 7]


def test_a_module_under_derivatives_is_not_answered_from_memory():
    x = rows(3)
    found = FixedFeatures.of(network(), x, SHAPE)
    found.remember()
    found(x)
    _, slopes = torch.func.jvp(found, (x,), (torch.ones_like(x),))
    assert bool(slopes.abs().max() > 1e-3)
    assert found(x.clone().requires_grad_()).requires_grad


def test_functions_take_arrays_or_tensors():
    x = rows()
    for function in (np.tanh, torch.tanh, lambda values: values.tanh()):
        torch.testing.assert_close(FixedFeatures.of(function, x)(x), x.tanh())


def test_functions_may_work_in_the_array_that_they_are_given():
    x = rows()
    kept = x.clone()

    def halved(array: np.ndarray) -> np.ndarray:
        array /= 2
        return array

    torch.testing.assert_close(FixedFeatures.of(halved, x)(x), kept / 2)
    torch.testing.assert_close(x, kept)


def test_what_is_taken_off_is_added_again_and_channels_are_where_they_were():
    x, seen = rows(), []

    def seeing(array: np.ndarray) -> np.ndarray:
        seen.append(array)
        return array.reshape(len(array), -1)

    found = FixedFeatures.of(seeing, x, (3, 2, 6), channels_last=True, background=-2.0)(x)
    assert seen[-1].shape == (7, 2, 6, 3)
    torch.testing.assert_close(found.reshape(7, 2, 6, 3).movedim(-1, 1).reshape(7, 36), x - 2)


def test_a_transformer_may_give_sparse_features():
    x = torch.tensor([[0.0], [1.0], [2.0], [1.0]], dtype=torch.float64)
    encoder = OneHotEncoder().fit(x.numpy())
    torch.testing.assert_close(FixedFeatures.of(encoder, x)(x), torch.eye(3).double()[[0, 1, 2, 1]])


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (
            lambda a: a / a.std(),
            ValueError,
            "different features for a row alone than for the same row among others",
        ),
        (lambda a: a + np.random.default_rng().normal(), ValueError, "draw nothing at random"),
        (
            lambda a: a.reshape(-1, 6, 6),
            ValueError,
            r"\[4, e\], but gave an array of shape \(4, 6, 6\): make",
        ),
        (lambda a: a[:2], ValueError, r"shape \(2, 36\)"),
        (lambda a: a * np.nan, ValueError, "NaN or infinite"),
        (lambda a: a[:, :0], ValueError, r"shape \(4, 0\)"),
        (lambda a: [None] * len(a), ValueError, "array of numbers"),
        (lambda a: a * 1j, ValueError, "array of numbers"),
        (lambda a: a.no_such_thing, ValueError, r"failed on inputs of shape \(4, 36\) \(AttributeError"),
        (nn.Unflatten(1, SHAPE), ValueError, "end the network with torch.nn.Flatten"),
        (nn.Conv2d(1, 2, 3), ValueError, "begin the network with torch.nn.Unflatten"),
        (nn.LazyLinear(2), ValueError, "call it once on inputs first"),
        (nn.Flatten, TypeError, "the class Flatten, not an instance of it"),
        (PCA, TypeError, "the class PCA"),
    ],
)
def test_what_cannot_be_features_is_refused(source, error, message):
    with pytest.raises(error, match=message):
        FixedFeatures.of(source, rows())


def test_functions_have_no_derivatives():
    x = rows()
    found = FixedFeatures.of(np.tanh, x)
    with pytest.raises(ValueError, match="has no derivatives"):
        found(x.requires_grad_())
    with pytest.raises(ValueError, match="has no derivatives"):
        torch.func.jvp(found, (rows(),), (torch.ones(7, 36).double(),))


def test_operations_are_those_of_the_network():
    x = rows()
    # a multiplication and an addition for each weight, four times over
    assert FixedFeatures.of(nn.Linear(36, 5).double(), x).operations == 4 * 2 * 36 * 5
    assert FixedFeatures.of(np.tanh, x).operations == 0
