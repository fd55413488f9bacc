"""The fast path equals the general path: values and gradients."""

import pytest
import torch

from orbitwise.functionals import DirectionalDerivative, Evaluation, Functional, OrbitAverage
from orbitwise.kernels import BASES, parse
from orbitwise.orbits import FiniteOrbit, MirrorOrbit
from orbitwise.process import Process
from orbitwise.process.double_sums import PointPairs, gram, value_covariance
from orbitwise.transforms import coordinate_permutations

X = torch.rand(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ROOT = torch.randn(9, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
WEIGHTS = ROOT + ROOT.T
TEXTS = [
    *(name for name in BASES if name != "cosine"),
    "2*rbf[0]*periodic[1](period=0.7) + rq(alpha=0.5) + 0.3",
    "(rbf + linear(centre=0.3))*(periodic[0] + matern52)",
    "rbf(lengthscale=(0.5, 2))",
]


@pytest.mark.parametrize("text", TEXTS)
def test_gram_matrices_are_gpytorchs(text: str):
    kernel = parse(text, 2)
    with torch.no_grad():
        torch.testing.assert_close(gram(kernel, PointPairs(X, X)), kernel(X).to_dense(), rtol=1e-7, atol=1e-9)
        expected = kernel(X, X[:4]).to_dense()
        torch.testing.assert_close(gram(kernel, PointPairs(X, X[:4])), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "functional",
    [
        Evaluation(),
        OrbitAverage(FiniteOrbit(coordinate_permutations(2))),
        OrbitAverage(MirrorOrbit((0.2, 0.7), is_odd=True)),
        OrbitAverage(MirrorOrbit(0.4, (1,))),
    ],
    ids=["plain", "swap", "odd", "mirror"],
)
def test_covariance_and_its_gradient_are_those_of_the_process(text: str, functional: Functional):
    kernel = parse(text, 2)
    functional = functional.double()
    parameters = [each for each in (*kernel.parameters(), *functional.parameters()) if each.requires_grad]
    fast = value_covariance(kernel, functional.atoms(X))
    general = Process(None, kernel).covariance(functional.atoms(X))
    torch.testing.assert_close(fast, general, rtol=1e-7, atol=1e-9)
    left, right = (
        torch.autograd.grad((each * WEIGHTS).sum(), parameters, allow_unused=True) for each in (fast, general)
    )
    for one, other in zip(left, right, strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_derivatives_are_refused():
    with pytest.raises(ValueError, match="rows of values only"):
        value_covariance(parse("rbf", 2), DirectionalDerivative(torch.tensor([1.0, 0.0])).double().atoms(X))


@pytest.mark.parametrize("is_odd", [False, True])
def test_one_side_of_a_mirror_is_enough_for_stationary_kernels(is_odd: bool):
    kernel = parse("rbf[0]*periodic[1] + rq + matern32", 2)
    assert kernel.is_stationary
    rows = OrbitAverage(MirrorOrbit(0.4, (1,), is_odd)).double().atoms(X)
    with torch.no_grad():
        torch.testing.assert_close(value_covariance(kernel, rows, True), value_covariance(kernel, rows))
    assert not parse("rbf + linear", 2).is_stationary
