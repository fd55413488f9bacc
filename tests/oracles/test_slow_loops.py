"""Covariances of every pair of functionals, against slow double loops over explicit kernel calls."""

import itertools

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from orbitwise.functionals import Block
from orbitwise.process import Process
from tests.oracles import slow_loops

NAMES = list(slow_loops.kinds())
PAIRS = list(itertools.combinations_with_replacement(NAMES, 2))
# What float32 keeps is set by the weights: those of a second difference are 1/step² = 11.
SINGLE = {"second difference": 1e-5}


def oracle(is_ard: bool) -> slow_loops.RadialBasis:
    return slow_loops.RadialBasis(1.75, np.array([0.9, 1.4, 2.1] if is_ard else [1.3, 1.3, 1.3]))


def process(is_ard: bool, dtype: torch.dtype, one_sided: bool | str = "auto") -> Process:
    kernel = ScaleKernel(RBFKernel(ard_num_dims=3 if is_ard else None)).to(dtype)
    kernel.outputscale = oracle(is_ard).scale
    kernel.base_kernel.lengthscale = torch.tensor(
        oracle(is_ard).lengthscale[: 3 if is_ard else 1], dtype=dtype
    )
    return Process(None, kernel, one_sided)


def inputs(kind: slow_loops.Kind, seed: int) -> Tensor:
    x = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x if kind.is_pair else x[:, 0]


def lowered(name: str, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Block, list[slow_loops.Row]]:
    """A block of rows, and the same rows written out."""
    kind = slow_loops.kinds(dtype)[name]
    x = inputs(kind, seed)
    return kind.functional.atoms(x.to(dtype)), [row for each in x.numpy() for row in kind.rows(each)]


@pytest.mark.parametrize("is_ard", [False, True], ids=["isotropic", "ard"])
@pytest.mark.parametrize(("left", "right"), PAIRS)
@torch.no_grad()
def test_every_pair_of_functionals_agrees_with_the_loop(left: str, right: str, is_ard: bool):
    (a, rows), (b, columns) = lowered(left, 1), lowered(right, 1 if left == right else 2)
    fast, slow = process(is_ard, torch.float64), slow_loops.covariance(oracle(is_ard), rows, columns)
    torch.testing.assert_close(fast.covariance(a, b), slow, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(fast.covariance(b, a), slow.T, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_single_precision_agrees_with_the_loop_to_two_millionths_of_the_scale(name: str):
    block, rows = lowered(name, 1, torch.float32)
    fast, slow = (
        process(False, torch.float32).covariance(block),
        slow_loops.covariance(oracle(False), rows, rows),
    )
    assert fast.dtype == torch.float32
    assert (fast - slow).abs().max() < SINGLE.get(name, 2e-6) * max(1.0, float(slow.abs().max()))


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_diagonal_agrees_with_the_loop(name: str):
    block, rows = lowered(name, 1)
    slow = torch.cat([slow_loops.covariance(oracle(True), [row], [row])[0] for row in rows])
    torch.testing.assert_close(process(True, torch.float64).variance(block), slow, rtol=1e-8, atol=1e-8)


@torch.no_grad()
def test_single_atoms_agree_with_the_loop():
    block, rows = lowered("value minus slope", 1)
    terms = [[(1.0, point, tangent)] for row in rows for _, point, tangent in row]
    slow = slow_loops.covariance(oracle(True), terms, terms).reshape(2, 2, 2, 2)
    fast = process(True, torch.float64).atom_covariance(block, block)
    torch.testing.assert_close(fast, slow, rtol=1e-8, atol=1e-8)
