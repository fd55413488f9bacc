import math

import numpy as np
import pytest
import torch
from torch import Tensor

from orbitwise.functionals import Difference, neighbour_graph
from tests.contracts.annotations import unchecked
from tests.contracts.functional_contract import Waves, apply


def points(count: int = 12, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def slow_edges(x: Tensor, num_neighbours: int) -> list[list[int]]:
    distance = torch.cdist(x, x).fill_diagonal_(math.inf)
    nearest = [set(row.argsort()[:num_neighbours].tolist()) for row in distance]
    count = len(x)
    return [[i, j] for i in range(count) for j in range(i + 1, count) if j in nearest[i] or i in nearest[j]]


@pytest.mark.parametrize("num_neighbours", [1, 3, 11])
def test_edges_equal_the_slow_loop(num_neighbours: int):
    x = points()
    graph = neighbour_graph(x, num_neighbours)
    assert graph.edges.tolist() == slow_edges(x, num_neighbours)
    assert torch.equal(graph.pairs, torch.stack([x[graph.edges[:, 0]], x[graph.edges[:, 1]]], 1))
    assert graph.weights.tolist() == [1.0] * len(graph.edges)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighting", ["binary", "heat"])
def test_differences_make_the_quadratic_form_of_the_laplacian(weighting: str, dtype: torch.dtype):
    x, g = points(dtype=dtype), Waves.random(2)
    graph = neighbour_graph(x, 3, weighting)
    f = torch.stack([g(row) for row in x]).to(dtype)
    differences = apply(Difference().atoms(graph.pairs), g).to(dtype)
    laplacian = graph.laplacian()
    assert laplacian.is_sparse
    assert laplacian.dtype == graph.weights.dtype == dtype
    form = f @ (laplacian @ f)
    assert form > 0.1
    torch.testing.assert_close(
        (graph.weights * differences.square()).sum(),
        form,
        rtol=1e-4 if dtype == torch.float32 else 1e-12,
        atol=0,
    )
    dense = laplacian.to_dense()
    assert torch.equal(dense, dense.T)
    assert dense.sum(0).abs().max() < 1e-5
    assert torch.linalg.eigvalsh(dense.double()).min() > -1e-6


def test_heat_weights():
    x = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    graph = neighbour_graph(x, 1, "heat", width=2.0)
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    assert graph.weights.tolist() == pytest.approx([math.exp(-1 / 8), math.exp(-4 / 8)])
    # the mean distance of joined points, 1.5, without a width
    default = neighbour_graph(x, 1, "heat")
    assert default.weights.tolist() == pytest.approx(np.exp([-0.5 / 1.5**2, -2 / 1.5**2]).tolist())


def test_copies_are_neighbours_of_each_other_and_never_of_themselves():
    x = points(4).repeat(3, 1)
    for weighting in ("binary", "heat"):
        graph = neighbour_graph(x, 2, weighting)
        assert (graph.edges[:, 0] < graph.edges[:, 1]).all()
        assert (graph.edges[:, 0] % 4 == graph.edges[:, 1] % 4).all()
        assert len(graph.edges) == 12
        assert graph.weights.tolist() == [1.0] * 12
        differences = apply(Difference().atoms(graph.pairs), Waves.random(2))
        assert differences.abs().max() == 0
    assert neighbour_graph(x, 3).edges.shape[0] > 12


def test_gradients_reach_the_points():
    x = points().requires_grad_()
    graph = neighbour_graph(x, 2, "heat", width=1.0)
    graph.pairs.sum().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("num_neighbours", [0, -1, 12, 20])
def test_there_are_only_so_many_others(num_neighbours: int):
    with pytest.raises(ValueError, match=f"Each of 12 points has 11 others.*not {num_neighbours}"):
        neighbour_graph(points(), num_neighbours)


def test_clear_errors():
    with unchecked(), pytest.raises(ValueError, match="weighting must be 'binary' or 'heat', not 'cold'"):
        neighbour_graph(points(), 2, "cold")
    for width in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match="width must be positive and finite"):
            neighbour_graph(points(), 2, "heat", width)
    broken = points()
    broken[3, 1] = math.nan
    with pytest.raises(ValueError, match="takes finite points"):
        neighbour_graph(broken, 2)
    with unchecked(), pytest.raises(ValueError, match=r"neighbour_graph takes a floating-point tensor"):
        neighbour_graph(points().long(), 2)
