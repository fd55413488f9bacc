"""Factors of unbiased reductions: by hand and by exhaustion over all subsets. Draws are in statistics/."""

import itertools

import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from orbitwise.functionals import (
    Atoms,
    DirectionalDerivative,
    Evaluation,
    OrbitAverage,
    OrbitSum,
    average_minus_value,
)
from orbitwise.orbits import FiniteOrbit, Group, SampledOrbit
from orbitwise.process import Process, group_sums, pair_factors, reduce_quadratic, unbiased_variance
from orbitwise.process import process as module
from orbitwise.transforms import Translation, cyclic_shifts
from tests.contracts.annotations import unchecked

POPULATION = 5


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix() -> Tensor:
    """r(x_a, x_b) for every pair of the population, nothing special about it but its symmetry."""
    r = seeded(POPULATION, POPULATION)
    return r + r.T


def subset(*groups: tuple[int, ...]) -> Atoms:
    """One row that drew these elements of the population, with weights that make it a mean."""
    chosen = [element for group in groups for element in group]
    draw = torch.tensor([number + 1 for number, group in enumerate(groups) for _ in group])
    points = torch.tensor(chosen, dtype=torch.float64).reshape(1, -1, 1)
    weights = torch.full((1, len(chosen)), 1 / len(chosen), dtype=torch.float64)
    return Atoms(points, weights, None, torch.zeros_like(draw), draw, (Group(1, POPULATION),) * len(groups))


def form(atoms: Atoms, method: str = "halves") -> float:
    chosen = atoms.points[0, :, 0].long()
    return float(reduce_quadratic(atoms, matrix()[chosen][:, chosen][None], method))


def subsets(size: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(POPULATION), size))


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_one_group_of_a_finite_population_is_exact_on_average_over_all_subsets(size: int):
    """LIM-A eq. 8: the same subset in both sums."""
    estimates = [form(subset(chosen)) for chosen in subsets(size)]
    assert sum(estimates) / len(estimates) == pytest.approx(float(matrix().mean()), abs=1e-12)
    naive = [float(matrix()[list(chosen)][:, list(chosen)].mean()) for chosen in subsets(size)]
    biased = abs(sum(naive) / len(naive) - float(matrix().mean()))
    assert biased > 0.02 if size < POPULATION else biased < 1e-12


@pytest.mark.parametrize("method", ["halves", "all_pairs"])
@pytest.mark.parametrize("size", [2, 3])
def test_independent_halves_without_replacement_are_exact_on_average(size: int, method: str):
    pairs = list(itertools.product(subsets(size), repeat=2))
    estimates = [form(subset(*pair), method) for pair in pairs]
    assert sum(estimates) / len(pairs) == pytest.approx(float(matrix().mean()), abs=1e-12)


def test_one_draw_split_into_halves_is_not():
    """METHOD 4: halves of one draw without replacement are not independent."""
    orders = list(itertools.permutations(range(POPULATION), 4))
    estimates = [form(subset(order[:2], order[2:])) for order in orders]
    assert abs(sum(estimates) / len(orders) - float(matrix().mean())) > 0.1


@pytest.mark.parametrize("size", [2, 3, 4])
def test_factors_are_those_of_lim_a_eq_8_and_12(size: int):
    """For sums, weights P/S in place of 1/S: P(P-1)/(S(S-1)) off the diagonal and P/S on it."""
    for chosen in subsets(size):
        total = subset(chosen).scale(float(POPULATION))
        r = matrix()[list(chosen)][:, list(chosen)]
        off, on = POPULATION * (POPULATION - 1) / (size * (size - 1)), POPULATION / size
        eq_8 = sum(float(r[i, j]) * (on if i == j else off) for i in range(size) for j in range(size))
        correction = POPULATION * (size - POPULATION) / (size * (size - 1))
        eq_12 = off * float(r.sum()) + correction * float(r.diagonal().sum())
        assert form(total) == pytest.approx(eq_8, abs=1e-10)
        assert eq_12 == pytest.approx(eq_8, abs=1e-10)


def test_all_elements_of_a_population_need_no_correction():
    assert form(subset(tuple(range(POPULATION)))) == pytest.approx(float(matrix().mean()), abs=1e-12)
    everything = FiniteOrbit(cyclic_shifts(3), num_samples=3, num_groups=1)
    rows = OrbitAverage(everything).atoms(seeded(4, 3), torch.Generator().manual_seed(0))
    exact = OrbitAverage(FiniteOrbit(cyclic_shifts(3))).atoms(seeded(4, 3))
    kernel = RBFKernel(ard_num_dims=3).double()
    kernel.lengthscale = torch.tensor([[0.5, 1.0, 2.0]])
    torch.testing.assert_close(unbiased_variance(kernel, rows), Process(None, kernel).variance(exact))


def density(*sizes: int) -> Atoms:
    """One row of independent draws in groups of these sizes."""
    draw = torch.cat([torch.full((size,), number + 1) for number, size in enumerate(sizes)])
    count = len(draw)
    return Atoms(
        seeded(1, count, 2),
        torch.full((1, count), 1 / count, dtype=torch.float64),
        None,
        torch.zeros_like(draw),
        draw,
        (Group(1),) * len(sizes),
    )


def test_halves_use_pairs_of_different_groups_only():
    factors = pair_factors(density(2, 2))
    expected = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2], [2, 2, 0, 0], [2, 2, 0, 0]], dtype=torch.float64)
    assert torch.equal(factors.matrix(), expected)
    assert not factors.has_diagonal


def test_three_groups_average_over_ordered_pairs_of_groups():
    factors = pair_factors(density(1, 1, 1)).matrix()
    assert torch.equal(factors, 1.5 * (1 - torch.eye(3, dtype=torch.float64)))


def test_all_pairs_leave_out_only_a_draw_with_itself():
    """LIM eq. 21: 1/(S(S-1)) Σ_{s≠t}, with weights 1/S already there."""
    for atoms, method in ((density(4), "halves"), (density(2, 2), "all_pairs")):
        factors = pair_factors(atoms, method)
        torch.testing.assert_close(factors.matrix(), 4 / 3 * (1 - torch.eye(4, dtype=torch.float64)))
        assert factors.has_diagonal


def test_mixed_rows_keep_their_exact_pairs():
    """METHOD 4: drawn-exact and exact-exact pairs stay as they are."""
    orbit = SampledOrbit(Translation(2), -0.5, 0.5, num_samples=3, num_groups=1)
    atoms = average_minus_value(orbit).atoms(seeded(2, 2), torch.Generator().manual_seed(0))
    factors = pair_factors(atoms).matrix()
    expected = torch.ones(4, 4, dtype=torch.float64)
    expected[:3, :3] = 1.5 * (1 - torch.eye(3))
    torch.testing.assert_close(factors, expected)


def test_independent_families_meet_freely():
    rows = OrbitAverage(SampledOrbit(Translation(2), -0.5, 0.5, num_samples=2))
    atoms = (rows + rows).atoms(seeded(2, 2), torch.Generator().manual_seed(0))
    factors = pair_factors(atoms).matrix()
    expected = torch.ones(4, 4, dtype=torch.float64)
    expected[:2, :2] = expected[2:, 2:] = torch.tensor([[0.0, 2], [2, 0]])
    assert torch.equal(factors, expected)


def test_with_nothing_drawn_it_is_plain_algebra():
    v = torch.tensor([1.0, -0.5], dtype=torch.float64)
    atoms = (Evaluation() - 2 * DirectionalDerivative(v)).atoms(seeded(4, 2))
    kernel = RBFKernel().double()
    for method in ("halves", "all_pairs"):
        assert bool((pair_factors(atoms, method).matrix() == 1).all())
        torch.testing.assert_close(
            unbiased_variance(kernel, atoms, method), Process(None, kernel).variance(atoms)
        )
    values = seeded(4, 2, 3)
    sums = group_sums(atoms, values)
    assert sums.shape == (4, 1, 3)
    torch.testing.assert_close(sums[:, 0], (values * atoms.weights[..., None]).sum(1))


def test_group_sums_split_a_row_by_groups():
    orbit = SampledOrbit(Translation(2), -0.5, 0.5, num_samples=4, num_groups=2)
    atoms = average_minus_value(orbit).atoms(seeded(3, 2), torch.Generator().manual_seed(0))
    values = seeded(3, 5, 2)
    exact, first, second = group_sums(atoms, values).unbind(1)
    torch.testing.assert_close(exact, -values[:, 4])
    torch.testing.assert_close(first, values[:, :2].mean(1) / 2)
    torch.testing.assert_close(second, values[:, 2:4].mean(1) / 2)


def test_pairs_without_a_factor_are_not_evaluated(monkeypatch: pytest.MonkeyPatch):
    sizes, evaluate = [], module.jet

    def counted(*arguments, **options):
        found = evaluate(*arguments, **options)
        sizes.append(found.value.numel())
        return found

    monkeypatch.setattr(module, "jet", counted)
    orbit = SampledOrbit(Translation(2), -0.5, 0.5, num_samples=8, num_groups=2)
    atoms = average_minus_value(orbit).atoms(seeded(3, 2), torch.Generator().manual_seed(0))
    unbiased_variance(RBFKernel().double(), atoms)
    # exact-exact, exact-first, exact-second, first-second
    assert sorted(sizes) == [3 * 1, 3 * 4, 3 * 4, 3 * 16]


def test_variances_of_derivatives_of_drawn_averages():
    v = torch.tensor([1.0, -0.5], dtype=torch.float64)
    orbit = SampledOrbit(Translation(2), -0.5, 0.5, num_samples=4)
    atoms = (DirectionalDerivative(v) @ OrbitAverage(orbit)).atoms(
        seeded(3, 2), torch.Generator().manual_seed(0)
    )
    kernel = RBFKernel().double()
    unreduced = Process(None, kernel).atom_covariance(atoms, atoms).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    torch.testing.assert_close(unbiased_variance(kernel, atoms), reduce_quadratic(atoms, unreduced))


def test_batches_of_rows_and_kernels():
    orbit = SampledOrbit(Translation(2), -0.5, 0.5, num_samples=4)
    atoms = OrbitAverage(orbit).atoms(seeded(6, 2), torch.Generator().manual_seed(0))
    kernel = RBFKernel(batch_shape=torch.Size([2])).double()
    kernel.lengthscale = torch.tensor([0.5, 1.5]).reshape(2, 1, 1)
    estimates = unbiased_variance(kernel, atoms)
    assert estimates.shape == (2, 6)
    for number in range(2):
        torch.testing.assert_close(estimates[number], unbiased_variance(kernel[number], atoms))
    batched = unbiased_variance(kernel[0], atoms.batched(torch.Size([3])))
    torch.testing.assert_close(batched, estimates[0].reshape(3, 2))


def test_a_sum_is_its_size_times_an_average():
    orbit = FiniteOrbit(cyclic_shifts(4), num_samples=2, num_groups=1)
    kernel, x = RBFKernel().double(), seeded(3, 4)
    mean, total = (
        unbiased_variance(kernel, kind(orbit).atoms(x, torch.Generator().manual_seed(0)))
        for kind in (OrbitAverage, OrbitSum)
    )
    torch.testing.assert_close(total, 16 * mean)


def test_clear_errors():
    with unchecked(), pytest.raises(ValueError, match="'halves' or 'all_pairs', not 'thirds'"):
        pair_factors(density(2, 2), "thirds")
    with pytest.raises(ValueError, match="at least two draws"):
        pair_factors(density(1))
    mixed = Atoms(
        *(getattr(density(2, 2), name) for name in ("points", "weights", "tangents", "order", "draw")),
        (Group(1, 5), Group(1)),
    )
    with pytest.raises(ValueError, match="drawn in the same way"):
        pair_factors(mixed, "all_pairs")
