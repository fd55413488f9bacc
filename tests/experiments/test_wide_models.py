"""The cells of the experiment: kernels as named, dear ones small, nothing twice."""

import torch

from orbitwise.experiments.wide_networks import CONVOLUTIONS, MAIN, POOLED, Cell, Model, cells
from orbitwise.kernels import WideConvolutionKernel, WideNetworkKernel


def test_kernels_are_those_named():
    dense = Model("dense", "erf", 3, residual=True)
    assert dense.name == "dense residual erf 3"
    base = dense.kernel(5).base_kernel
    assert isinstance(base, WideNetworkKernel)
    assert (base.depth, base.activation, base.residual) == (3, "erf", True)
    plain, pooled = (Model(kind, "relu", 2).kernel(5).base_kernel for kind in ("convolutional", "pooled"))
    assert isinstance(plain, WideConvolutionKernel)
    assert isinstance(pooled, WideConvolutionKernel)
    assert (plain.pooling, plain.padding) == (False, "zero")
    assert (pooled.pooling, pooled.padding) == (True, "circular")
    x = torch.rand(3, 25, dtype=torch.float64)
    assert Model("pooled", "relu", 2).kernel(5)(x).to_dense().shape == (3, 3)


def test_cells_cover_the_table_once():
    found = cells([10, 50], 8, 4)
    names = [cell.name for cell in found]
    assert len(set(names)) == len(names)
    for model in MAIN:
        for rows in (10, 50):
            assert {Cell(model, rows, orbit, 8) for orbit in ("none", "learned")} <= set(found)
    for model in CONVOLUTIONS:
        assert {Cell(model, rows, "none", 8) for rows in (10, 50)} <= set(found)
    assert Cell(CONVOLUTIONS[0], 10, "learned", 8) in found
    assert [cell for cell in found if cell.model == POOLED] == [
        Cell(POOLED, rows, "none", 4) for rows in (10, 50)
    ]
