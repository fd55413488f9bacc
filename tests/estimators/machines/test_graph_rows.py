import pytest
import torch
from gpytorch.kernels import RBFKernel

from orbitwise.estimators.machines.task import laplacian_rows
from orbitwise.functionals import Evaluation
from orbitwise.functionals.graphs import neighbour_graph
from orbitwise.process import Process

GENERATOR = torch.Generator().manual_seed(0)
POINTS = torch.randn(14, 2, generator=GENERATOR, dtype=torch.float64)
X = POINTS[[3, 5, 9]]
PROCESS = Process(None, RBFKernel().double().requires_grad_(False))


def laplacian_of(normalized: bool) -> torch.Tensor:
    """By a loop over the edges."""
    graph = neighbour_graph(POINTS, 3, "heat")
    found = torch.zeros(14, 14, dtype=torch.float64)
    for (i, j), weight in zip(graph.edges.tolist(), graph.weights.tolist(), strict=True):
        found[i, i] += weight
        found[j, j] += weight
        found[i, j] -= weight
        found[j, i] -= weight
    if normalized:
        root = found.diagonal().rsqrt()
        found = root[:, None] * found * root
    return found


@pytest.mark.parametrize("normalized", [False, True])
def test_the_root_is_one_of_the_laplacian(normalized: bool):
    rows = laplacian_rows(POINTS, 3, "heat", normalized)
    assert rows.graph is not None
    root = rows.graph.root
    torch.testing.assert_close(root.mT @ root, laplacian_of(normalized), rtol=0, atol=1e-12)
    assert torch.equal(rows.weights, torch.ones(14, dtype=torch.float64))
    assert rows.graph.num_neighbours == 3


@pytest.mark.parametrize("normalized", [False, True])
def test_the_folded_kernel_is_the_inverse_of_a_sum_of_penalties(normalized: bool):
    """The penalty fᵀ(K⁻¹ + 2νL)f / 2 of values at all points has the covariance (K⁻¹ + 2νL)⁻¹."""
    rows = laplacian_rows(POINTS, 3, "heat", normalized)
    gram = PROCESS.covariance(Evaluation().atoms(POINTS))
    strengths = [0.1, 10.0]
    found = rows.fold(PROCESS, X, strengths).matrices
    for strength, matrix in zip(strengths, found, strict=True):
        whole = torch.linalg.inv(torch.linalg.inv(gram) + 2 * strength * laplacian_of(normalized))
        torch.testing.assert_close(matrix, whole[[3, 5, 9]][:, [3, 5, 9]], rtol=0, atol=1e-6)


def test_coefficients_continue_the_folded_kernel_to_new_points():
    rows = laplacian_rows(POINTS, 3, "heat", True)
    labels = torch.randn(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    more = rows.coefficients(PROCESS, X, 2.0, labels)
    points, all_points = Evaluation().atoms(X), Evaluation().atoms(POINTS)
    found = PROCESS.covariance(points) @ labels + PROCESS.covariance(points, all_points) @ more
    torch.testing.assert_close(found, rows.fold(PROCESS, X, [2.0]).matrices[0] @ labels, rtol=0, atol=1e-9)
    assert [block.num_rows for block in rows.blocks] == [14]


def test_few_points():
    for count in (1, 2):
        graph = laplacian_rows(POINTS[:count], 3, "heat", True).graph
        assert graph is not None
        assert graph.root.shape == (count, count)
        assert count == 2 or graph.root.item() == 0
    with pytest.raises(ValueError, match="weighting must be 'binary' or 'heat', not 'cosine'"):
        laplacian_rows(POINTS, 3, "cosine", True)
