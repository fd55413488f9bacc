"""Kernels from expressions: values where they were asked for, and amplitudes without redundancy."""

import pytest
import torch
from gpytorch.kernels import AdditiveKernel, ProductKernel, ScaleKernel

from orbitwise.kernels.spelling import Term, build, parse_expression

X = torch.linspace(0, 3, 12, dtype=torch.float64).reshape(6, 2).sin()


def amplitudes(text: str) -> int:
    """How many hyperparameters scale a part of the kernel: the learned directions that only scale."""
    kernel = build(parse_expression(text), 2)
    names = ("raw_outputscale", "raw_variance", "raw_constant")
    return sum(name.endswith(names) and each.requires_grad for name, each in kernel.named_parameters())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("rbf", 1),
        ("rbf*rq", 1),
        ("linear", 1),
        ("linear(variance=2)*linear(variance=3)", 1),
        ("linear*rbf", 1),
        ("linear*linear", 1),
        ("constant*rbf", 1),
        ("rbf + rq", 2),
        ("(rbf + rq)*periodic", 2),
        ("(rbf + rq)*(periodic + rq)", 3),
        ("rbf*periodic + rq + linear", 3),
    ],
)
def test_amplitudes_are_neither_missing_nor_redundant(text: str, count: int):
    assert amplitudes(text) == count


def test_the_parts_are_those_of_gpytorch():
    kernel = build(parse_expression("rbf*periodic + rq"))
    assert isinstance(kernel, AdditiveKernel)
    assert isinstance(kernel.kernels[0], ScaleKernel)
    assert isinstance(kernel.kernels[0].base_kernel, ProductKernel)


def test_values_and_amplitudes_are_set():
    kernel = build(parse_expression("3*rbf(lengthscale=2) + 0.5*linear(centre=(1, 2))"), 2)
    squared = torch.cdist(X, X).square()
    centre = torch.tensor([1.0, 2.0], dtype=torch.float64)
    expected = 3 * torch.exp(-squared / 8) + 0.5 * (X - centre) @ (X - centre).T
    with torch.no_grad():
        torch.testing.assert_close(kernel(X).to_dense(), expected)


def test_a_mixture_shares_the_amplitude_among_its_components():
    kernel = build(Term("sm", None, 4), 2)
    with torch.no_grad():
        assert kernel(X).to_dense().diagonal().tolist() == pytest.approx([1.0] * 6)


def test_separate_lengthscales():
    one, two = (build(parse_expression(text), 2) for text in ("rbf(ard)", "rbf[1](lengthscale=2)"))
    assert one.base_kernel.ard_num_dims == 2
    assert two.base_kernel.ard_num_dims is None
    assert build(parse_expression("rbf"), 2, separate_lengthscales=True).base_kernel.ard_num_dims == 2


def test_what_cannot_be_built_is_said():
    with pytest.raises(ValueError, match="must know the number of columns"):
        build(Term("rbf", is_ard=True))
    with pytest.raises(ValueError, match="3 numbers for lengthscale, but has 2"):
        build(parse_expression("rbf(lengthscale=(1, 2, 3))"), 2)
