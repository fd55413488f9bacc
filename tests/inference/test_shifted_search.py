"""The search with leading eigenvectors taken out finds what the plain search finds, in fewer steps."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from orbitwise.functionals import DirectionalDerivatives, Evaluation, Gradient
from orbitwise.functionals.functional import Gradients
from orbitwise.inference.risk.machines import Invariances, find_leading, fold, linear_slopes, slices
from orbitwise.process import Process
from orbitwise.process.gradients import GradientOperator

STRENGTHS = [1e-2, 1.0, 1e2]


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = torch.nn.functional.normalize(seeded(30, 10) - seeded(30, 10).mean(0), dim=0)
WIDE = 2.5
"""Three times the median distance: the slopes of linear functions stand far above the others."""


def process_of(width: float = WIDE) -> Process:
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = 2.0, width
    return Process(None, kernel.requires_grad_(False))


def gradients(x: Tensor = X) -> Gradients:
    block = Gradient().atoms(x)
    assert isinstance(block, Gradients)
    return block


def unformed(width: float = WIDE) -> Invariances:
    return Invariances.of_operator(GradientOperator(process_of(width).kernel, gradients()), X, X)


def prior(width: float = WIDE) -> Tensor:
    return process_of(width).covariance(Evaluation().atoms(X))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("width", [1.2, WIDE])
def test_deflation_leaves_the_folded_kernel_as_it_is(width: float, weighted: bool):
    weights = seeded(300, seed=1).exp() if weighted else None
    with_it = unformed(width)
    without = replace(with_it, leading=None)
    held = Invariances.of_rows(process_of(width), gradients(), X, X)
    exact = fold(prior(width), held, STRENGTHS, weights).matrices
    for inner in (with_it, without):
        found = fold(prior(width), inner, STRENGTHS, weights, tolerance=1e-10, max_iterations=2000)
        assert found.converged
        torch.testing.assert_close(found.matrices, exact, rtol=0, atol=1e-7)


def test_deflation_saves_steps():
    steps = [
        fold(prior(), inner, STRENGTHS, tolerance=1e-6).iterations
        for inner in (unformed(), replace(unformed(), leading=None))
    ]
    assert steps[0] < 0.75 * steps[1]


def test_leading_vectors_are_eigenvectors_of_the_largest_values():
    gram = process_of().covariance(gradients())
    cross = process_of().covariance(gradients(), Evaluation().atoms(X))
    found = find_leading(unformed(), 1e-6, 0.01)
    assert found is not None
    assert len(found.values) >= 10
    torch.testing.assert_close(gram @ found.vectors, found.vectors * found.values, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.shadows, cross.mT @ found.vectors, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        found.vectors.mT @ found.vectors, torch.eye(len(found.values)).double(), rtol=0, atol=1e-10
    )
    largest = torch.linalg.eigvalsh(gram).flip(0)
    torch.testing.assert_close(found.values.flip(0), largest[: len(found.values)], rtol=1e-6, atol=0)
    assert (found.vectors.mT @ found.without(seeded(300, 2, seed=3))).abs().max() < 1e-12


def test_vectors_that_are_no_eigenvectors_are_not_taken_out():
    """A guess that no round improves: a product that ever gives back other vectors."""
    inner = unformed()
    turns = iter(range(100))

    def restless(v: Tensor) -> tuple[Tensor, Tensor]:
        image, shadow = inner.product(v)
        return image + seeded(*image.shape, seed=next(turns)), shadow

    found = find_leading(replace(inner, product=restless), 1e-6, 0.01)
    assert found is not None
    assert found.vectors.shape == (300, 0)
    assert find_leading(replace(inner, leading=None), 1e-6, 0.01) is None


def test_a_rank_deficient_guess_does_no_harm():
    """Weights and points at which some functions of the guess have the same slopes."""
    inner = unformed()
    guess = inner.leading
    assert guess is not None
    doubled = replace(inner, leading=lambda: torch.cat([guess(), guess()], dim=1))
    found, plain = (fold(prior(), each, STRENGTHS, tolerance=1e-10).matrices for each in (doubled, inner))
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-7)


def test_slopes_of_linear_and_square_functions():
    directions = seeded(4, 10, seed=2)
    block = DirectionalDerivatives(directions).atoms(X)
    assert isinstance(block, Gradients)
    functions: list[Callable[[Tensor], Tensor]] = [
        *(lambda x, j=j: x[..., j] for j in range(10)),
        lambda x: x.square().sum(-1) / 2,
    ]
    step = 1e-6
    for column, function in zip(linear_slopes(block).mT, functions, strict=True):
        moved = step * directions
        expected = (function(X[:, None] + moved) - function(X[:, None] - moved)) / (2 * step)
        torch.testing.assert_close(column, expected.flatten(), rtol=0, atol=1e-8)


def test_only_whole_gradients_are_deflated():
    block = Gradient([0, 2]).atoms(X)
    assert isinstance(block, Gradients)
    assert Invariances.of_operator(GradientOperator(process_of().kernel, block), X, X).leading is None
    assert unformed().leading is not None


def test_slices_make_up_the_whole():
    assert [(part.start, part.stop) for part in slices(7, 3)] == [(0, 3), (3, 6), (6, 7)]
    assert slices(2, 0) == [slice(0, 1), slice(1, 2)]
    assert slices(0, 3) == []
