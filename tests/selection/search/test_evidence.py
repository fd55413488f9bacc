"""The fast path equals the library's: values and gradients."""

import pytest
import torch

from orbitwise.functionals import Evaluation, Functional, OrbitAverage
from orbitwise.inference import exact
from orbitwise.kernels import BASES, parse
from orbitwise.orbits import FiniteOrbit, MirrorOrbit
from orbitwise.process import Process
from orbitwise.selection.search.evidence import Pairs, covariance, gram, log_density
from orbitwise.transforms import coordinate_permutations

X = torch.rand(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
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
        torch.testing.assert_close(gram(kernel, Pairs(X, X)), kernel(X).to_dense(), rtol=1e-7, atol=1e-9)
        expected = kernel(X, X[:4]).to_dense()
        torch.testing.assert_close(gram(kernel, Pairs(X, X[:4])), expected, rtol=1e-7, atol=1e-9)


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
def test_evidence_and_its_gradient_are_those_of_exact_inference(text: str, functional: Functional):
    kernel = parse(text, 2)
    functional = functional.double()
    parameters = [each for each in (*kernel.parameters(), *functional.parameters()) if each.requires_grad]
    rows = functional.atoms(X)
    fast = log_density(covariance(kernel, rows) + 0.1 * torch.eye(9, dtype=torch.float64), Y)
    process = Process(None, kernel)
    noise = torch.full((9,), 0.1, dtype=torch.float64)
    general = exact.evidence(process, [functional.atoms(X)], Y[:, None], noise).value
    assert fast.item() == pytest.approx(general.item(), rel=1e-9)
    left, right = (torch.autograd.grad(each, parameters, allow_unused=True) for each in (fast, general))
    for one, other in zip(left, right, strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_the_density_by_differences():
    root = torch.randn(4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    matrix = (root @ root.T + torch.eye(4)).requires_grad_()
    assert torch.autograd.gradcheck(lambda each: log_density((each + each.mT) / 2, Y[:4]), (matrix,))


@pytest.mark.parametrize("is_odd", [False, True])
def test_one_side_of_a_mirror_is_enough_for_stationary_kernels(is_odd: bool):
    kernel = parse("rbf[0]*periodic[1] + rq + matern32", 2)
    assert kernel.is_stationary
    rows = OrbitAverage(MirrorOrbit(0.4, (1,), is_odd)).double().atoms(X)
    with torch.no_grad():
        torch.testing.assert_close(covariance(kernel, rows, True), covariance(kernel, rows))
    assert not parse("rbf + linear", 2).is_stationary
