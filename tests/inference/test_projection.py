"""Rows on inducing variables: dense formulas, groups of draws, inducing rows of f, estimated processes."""

from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.means import LinearMean
from torch import Tensor, nn

from orbitwise.functionals import (
    DirectionalDerivative,
    Evaluation,
    Functional,
    Gradient,
    OrbitAverage,
    average_minus_value,
)
from orbitwise.inference.sparse.inducing import (
    EstimatedProcess,
    Estimates,
    RowsNotFiniteError,
    check_finite,
    inducing_factor,
    inducing_rows,
    lower_rows,
    project,
)
from orbitwise.inference.sparse.posterior import SparsePosterior, Whitened, projected_moments
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.process import Process
from orbitwise.transforms import Translation, coordinate_permutations

SIZE, ROWS, OUTPUTS = 5, 7, 2


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Z = seeded(ROWS, 3), seeded(SIZE, 3, seed=1)


@pytest.fixture
def process() -> Process:
    return Process(None, ScaleKernel(RBFKernel())).double().requires_grad_(False)


def gaussian(shared: bool = True) -> Whitened:
    root = seeded(SIZE, SIZE, seed=2) if shared else seeded(OUTPUTS, SIZE, SIZE, seed=2)
    return Whitened(root @ root.mT + torch.eye(SIZE), seeded(SIZE, OUTPUTS, seed=3))


def permutations(num_samples: int | None = None, num_groups: int = 2) -> OrbitAverage:
    return OrbitAverage(
        FiniteOrbit(coordinate_permutations(3), num_samples=num_samples, num_groups=num_groups)
    )


def shifts(num_samples: int = 6, num_groups: int = 2) -> OrbitAverage:
    return OrbitAverage(
        SampledOrbit(Translation(3), -0.5, 0.5, num_samples=num_samples, num_groups=num_groups)
    )


EXACT = [Evaluation(), permutations(), DirectionalDerivative(torch.ones(3).double()), Gradient([0, 2])]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("functional", EXACT, ids=lambda each: type(each).__name__)
def test_exact_rows_have_the_moments_of_the_dense_formulas(process, functional, shared):
    """μ = k_fu K_uu⁻¹ L m and σ² = k_ff - k_fu K_uu⁻¹(K_uu - L S Lᵀ)K_uu⁻¹ k_uf (LIM eq. 11)."""
    q, rows = gaussian(shared), functional.atoms(X)
    lower = inducing_factor(process, Z)
    moments = projected_moments(project(process, Z, lower, rows), q)
    cross = process.covariance(rows, Evaluation().atoms(Z))
    weights = cross @ torch.linalg.inv(lower @ lower.T)
    torch.testing.assert_close(moments.mean, weights @ lower @ q.mean)
    covariance = lower @ torch.linalg.inv(q.precision) @ lower.T
    spread = torch.einsum("nu,...uw,nw->...n", weights, covariance, weights)
    spread = spread[:, None].expand(-1, OUTPUTS) if shared else spread.T
    torch.testing.assert_close(moments.spread, spread)
    torch.testing.assert_close(moments.mean_square, moments.mean.square() + spread)
    residual = process.covariance(rows).diagonal() - (weights * cross).sum(-1)
    torch.testing.assert_close(moments.residual, residual)


@pytest.mark.parametrize(
    ("functional", "method", "groups"),
    [(shifts(), "halves", 2), (shifts(), "all_pairs", 6), (permutations(4, 1), "halves", 4)],
    ids=["halves", "all pairs", "a subset"],
)
def test_groups_add_up_and_never_meet_themselves(process, functional, method, groups):
    rows = functional.atoms(X, torch.Generator().manual_seed(0))
    projection = project(process, Z, inducing_factor(process, Z), rows, method)
    assert projection.columns.shape == (ROWS, groups, SIZE)
    frozen = project(process, Z, inducing_factor(process, Z), rows.frozen())
    torch.testing.assert_close(projection.total, frozen.total)
    assert (projection.residual - frozen.residual).abs().max() > 1e-4, "squares are another matter"
    if groups == 2:
        # Σ_gh c_gh a_gᵀa_h = 4 a_Aᵀa_B for shares of one half
        first, second = projection.columns.unbind(1)
        assert torch.equal(projection.factors, torch.tensor([[0.0, 2.0], [2.0, 0.0]]).double())
        torch.testing.assert_close(projection.quadratic(projection.columns), 4 * (first * second).sum(-1))


def test_exact_atoms_beside_drawn_ones_are_a_group_of_their_own(process):
    rows = average_minus_value(shifts().orbit).atoms(X, torch.Generator().manual_seed(0))
    projection = project(process, Z, inducing_factor(process, Z), rows)
    assert projection.columns.shape[1] == 3
    assert projection.factors[0].tolist() == [1.0, 1.0, 1.0]


def test_a_prior_mean_is_part_of_every_moment():
    trend = LinearMean(3).double()
    with torch.no_grad():
        trend.weights.copy_(torch.tensor([[1.0], [-2.0], [0.5]]))
        trend.bias.fill_(0.3)
    kernel = ScaleKernel(RBFKernel()).double()
    with_mean, without = (Process(mean, kernel).requires_grad_(False) for mean in (trend, None))
    rows, q, lower = permutations().atoms(X), gaussian(), inducing_factor(with_mean, Z)
    moments = projected_moments(project(with_mean, Z, lower, rows), q)
    plain = projected_moments(project(without, Z, lower, rows), q)
    # the average of a linear trend over permutations is its value at the mean coordinate
    offset = (X.mean(1) * (1 - 2 + 0.5) + 0.3)[:, None]
    torch.testing.assert_close(moments.mean, plain.mean + offset)
    torch.testing.assert_close(moments.mean_square, moments.mean.square() + plain.spread)


class Counting(Kernel):
    """An RBF kernel of its own type, which counts the pairs that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = 0

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: object) -> Tensor:
        if diag:
            self.pairs += x1.shape[-2]
            return torch.exp(-0.5 * (x1 - x2).square().sum(-1))
        self.pairs += x1.shape[-2] * x2.shape[-2]
        return torch.exp(-0.5 * (x1[..., :, None, :] - x2[..., None, :, :]).square().sum(-1))


def test_inducing_variables_in_g_save_evaluations():
    """LIM 4.3: Ñ P² + Ñ M P + M² evaluations with u in g, against Ñ P² + (Ñ M + M²) P² with u in f."""
    process, functional, elements = Process(None, Counting()), permutations(), 6
    rows = functional.atoms(X)
    counts = []
    for inducing in (Z, functional.atoms(Z)):
        process.kernel.pairs = 0
        project(process, inducing, inducing_factor(process, inducing), rows)
        counts.append(process.kernel.pairs)
    diagonal = ROWS * elements**2
    assert counts[0] == diagonal + ROWS * SIZE * elements + SIZE**2
    assert counts[1] == diagonal + (ROWS * SIZE + SIZE**2) * elements**2


def test_inducing_rows_of_f_at_the_data_explain_f(process):
    rows = permutations().atoms(X)
    lower = inducing_factor(process, rows)
    projection = project(process, rows, lower, rows)
    assert projection.residual.abs().max() < 1e-9
    torch.testing.assert_close(projection.total @ projection.total.T, process.covariance(rows))


def test_drawn_inducing_rows_are_refused(process):
    drawn = shifts().atoms(Z, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="change with every draw"):
        inducing_factor(process, drawn)


def test_float32_rows_agree_with_double_ones(process):
    """Kernel products in single precision, solves in double: 2·10⁻⁵ of a prior standard deviation here."""
    q, lower = gaussian(), inducing_factor(process, Z)
    both = []
    for dtype in (torch.float64, torch.float32):
        projection = project(process, Z.to(dtype), lower, permutations().atoms(X.to(dtype)))
        assert projection.columns.dtype == torch.float64
        both.append(projected_moments(projection, q))
    for double, single in zip(*both, strict=True):
        torch.testing.assert_close(single, double, atol=2e-5, rtol=0)
    assert inducing_rows(permutations().atoms(Z), torch.float32).points.dtype == torch.float32


class Shifted(EstimatedProcess):
    """f(x) = ∫ g(x + α) dα by its covariances alone, k_g an RBF kernel: no orbit, no atoms."""

    def __init__(self, num_groups: int = 2) -> None:
        super().__init__()
        self.width = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.num_groups = num_groups

    def inducing_covariance(self, inducing: Tensor) -> Tensor:
        return torch.exp(-0.5 * torch.cdist(inducing, inducing).square())

    def estimates(self, x: Tensor, inducing: Tensor, generator: torch.Generator | None) -> Estimates:
        noise = 2 * torch.rand(self.num_groups, 3, *x.shape, generator=generator, dtype=x.dtype) - 1
        moved = x + self.width * noise
        cross = torch.exp(-0.5 * torch.cdist(moved, inducing).square()).mean(1)
        first, second = moved[0].transpose(0, 1), moved[-1].transpose(0, 1)
        variance = torch.exp(-0.5 * torch.cdist(first, second).square()).mean((-1, -2))
        return Estimates(cross.transpose(0, 1) / self.num_groups, variance)


def test_a_process_of_estimates_projects_as_the_orbit_it_imitates():
    """The same draws as estimates of covariances and as atoms of an orbit: the same projection."""
    kernel = RBFKernel().double()
    kernel.lengthscale = 1.0
    orbit = SampledOrbit(Translation(3), -0.5, 0.5, num_samples=6).double()
    process = Process(None, kernel).requires_grad_(False)
    estimated = Shifted()
    assert [name for name, _ in estimated.named_parameters()] == ["width"]
    noise = 2 * torch.rand(2, 3, ROWS, 3, generator=torch.Generator().manual_seed(0), dtype=X.dtype) - 1
    points = (X + 0.5 * noise).permute(2, 0, 1, 3).flatten(1, 2)
    atoms = replace(OrbitAverage(orbit).atoms(X), points=points)
    with torch.no_grad():
        lower = inducing_factor(estimated, Z)
        torch.testing.assert_close(lower, inducing_factor(process, Z))
        rows = lower_rows(estimated, Evaluation(), Z, X, torch.Generator().manual_seed(0))
        mine, theirs = project(estimated, Z, lower, rows), project(process, Z, lower, atoms)
    for each, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(each, other)


def test_estimates_need_two_groups_or_none_drawn(process):
    lower = inducing_factor(process, Z)
    rows = Shifted(1).estimates(X, Z, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="at least two independent groups"):
        project(process, Z, lower, rows)
    exact = Evaluation().atoms(X)
    cross = process.covariance(exact, Evaluation().atoms(Z))[:, None, :]
    known = Estimates(cross, process.variance(exact), is_exact=True)
    for each, other in zip(project(process, Z, lower, known), project(process, Z, lower, exact), strict=True):
        torch.testing.assert_close(each, other)
    assert not known.is_drawn


def test_what_an_estimated_process_cannot_do():
    with pytest.raises(TypeError, match="inducing_covariance"):
        EstimatedProcess()
    estimated = Shifted()
    with pytest.raises(ValueError, match="inducing variables are points"):
        inducing_factor(estimated, Evaluation().atoms(Z))
    with pytest.raises(ValueError, match="project its own estimates"):
        project(estimated, Z, torch.eye(SIZE).double(), Evaluation().atoms(X))
    posterior = SparsePosterior(estimated, Z, Whitened.prior(SIZE, 1, shared=True))
    with pytest.raises(ValueError, match="not their covariances"):
        posterior.covariance(Evaluation().atoms(X))


def test_a_posterior_takes_estimates_as_drawn_once(process):
    """Variances by all pairs of groups are those of the sums over the groups, and never negative."""
    estimated = Shifted()
    with torch.no_grad():
        posterior = SparsePosterior(estimated, Z, Whitened.prior(SIZE, 2, shared=True))
        seeded = torch.Generator().manual_seed
        moments = posterior.moments(Evaluation(), X, seeded(0))
        rows = estimated.estimates(X, Z, seeded(0))
        columns = torch.linalg.solve(posterior.lower, rows.cross.sum(1).mT)
    expected = torch.maximum(rows.variance, columns.square().sum(0))
    torch.testing.assert_close(moments.variance, expected[:, None].expand(-1, 2))
    torch.testing.assert_close(posterior.mean(Evaluation(), X, seeded(0)), moments.mean)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_named(bad):
    x = X.clone()
    x[3, 1] = bad
    functional: Functional = permutations()
    with pytest.raises(RowsNotFiniteError, match="1 of 7 inputs, the first of them row 3"):
        check_finite(functional.atoms(x))
    check_finite(functional.atoms(X))
    estimates = Shifted().estimates(x, Z, torch.Generator().manual_seed(0))
    with pytest.raises(RowsNotFiniteError, match=r"NaN or infinite points, weights or estimates"):
        check_finite(estimates._replace(variance=x[:, 1]))
