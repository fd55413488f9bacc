"""Maximisation: known optima, restarts, regions where the objective fails, interruptions, hyperpriors."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior, NormalPrior
from torch import nn

from orbitwise.inference import log_prior, maximize
from orbitwise.inference.optimise.training import TIME_IS_OVER, Training


def parameter(*values: float, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=dtype))


def seed(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def test_a_quadratic_is_maximised():
    a, b = parameter(3.0, -2.0), parameter(10.0)
    result = maximize(lambda: 7 - (a - 1).square().sum() - 100 * (b + 4).square().sum() - a[0] * b[0], [a, b])
    # stationary: -2(a₀-1) - b = 0, -2(a₁-1) = 0, -200(b+4) - a₀ = 0
    expected = np.linalg.solve([[2, 0, 1], [0, 2, 0], [1, 0, 200]], [2, 2, -800])
    np.testing.assert_allclose([*a.tolist(), *b.tolist()], expected, rtol=1e-5)
    assert result.converged
    assert result.starts == [result.value]


def test_rosenbrocks_valley_is_followed_to_its_end():
    p = parameter(-1.2, 1.0)
    result = maximize(lambda: -((1 - p[0]) ** 2) - 100 * (p[1] - p[0] ** 2) ** 2, [p])
    assert result.converged
    torch.testing.assert_close(p.detach(), torch.ones(2, dtype=torch.float64), atol=1e-3, rtol=0)
    assert result.value == pytest.approx(0, abs=1e-6)
    assert len(result.history) > 10
    assert all(later >= earlier for earlier, later in zip(result.history, result.history[1:], strict=False))
    assert result.history[-1] == result.value


def test_iterations_are_limited_and_then_not_called_converged():
    p = parameter(-1.2, 1.0)
    seen = []
    result = maximize(
        lambda: -((1 - p[0]) ** 2) - 100 * (p[1] - p[0] ** 2) ** 2,
        [p],
        max_iterations=4,
        callback=lambda *step: seen.append(step),
    )
    assert not result.converged
    assert seen == [(i + 1, value) for i, value in enumerate(result.history)]
    assert len(seen) == 4


def two_hills(p: nn.Parameter):
    # a low hill near 2, a high one near -2
    return lambda: (-((p.square() - 4) ** 2) - p).sum()


def test_without_restarts_the_nearest_hill_is_climbed():
    p = parameter(1.5)
    maximize(two_hills(p), [p])
    assert p.item() == pytest.approx(2, abs=0.1)


def test_restarts_choose_the_best_start():
    p = parameter(1.5)
    result = maximize(two_hills(p), [p], num_restarts=5, spread=3.0, generator=seed(0))
    assert len(result.starts) == 6
    assert result.value == max(result.starts) > result.starts[0] + 3
    assert p.item() == pytest.approx(-2, abs=0.1)
    assert result.value == pytest.approx(two_hills(p)().item())
    assert result.history[-1] == result.value, "the history is that of the best start"


def test_restarts_that_find_nothing_better_leave_the_first_start():
    p = parameter(-1.5)
    result = maximize(two_hills(p), [p], num_restarts=3, spread=3.0, generator=seed(1))
    assert p.item() == pytest.approx(-2, abs=0.1)
    assert result.value == pytest.approx(max(result.starts))


def test_seeds_make_restarts_reproducible():
    def starts(number: int) -> list[float]:
        p = parameter(0.3, 1.0)
        return maximize(lambda: p.sin().sum() - 0.01 * p.square().sum(), [p], 5, 4, 4.0, seed(number)).starts

    assert starts(0) == starts(0)
    assert starts(0)[0] == starts(1)[0]
    assert starts(0)[1:] != starts(1)[1:]


@pytest.mark.parametrize("how", ["nan", "infinite", "value error", "not positive definite", "gradient"])
def test_steps_into_a_region_where_the_objective_fails_are_backed_off(how):
    p = parameter(0.1)
    failures = []

    def objective() -> torch.Tensor:
        value = (100 * p - 50 * p.square() / 0.9).sum()
        if p.item() <= 1:
            return value
        failures.append(p.item())
        if how == "value error":
            raise ValueError("beyond 1")
        if how == "not positive definite":
            return torch.linalg.cholesky(-torch.eye(2, dtype=torch.float64) * p).sum()
        if how == "gradient":
            return value + (p - p.detach()).abs().pow(0.5).sum()
        return value * (torch.nan if how == "nan" else torch.inf)

    result = maximize(objective, [p])
    assert failures, "the first step is meant to fail"
    assert result.converged
    assert p.item() == pytest.approx(0.9)
    assert result.value == pytest.approx(45)


def test_a_start_that_fails_is_passed_over_for_one_that_works():
    p = parameter(0.0)
    result = maximize(
        lambda: -((p - 3) ** 2).sum() / (0.0 if abs(p.item()) < 0.01 else 1.0), [p], 5, 3, 1.0, seed(0)
    )
    assert result.starts[0] == -math.inf
    assert p.item() == pytest.approx(3, abs=1e-4)


def test_when_every_start_fails_the_reason_is_told():
    p = parameter(0.0)

    def objective() -> torch.Tensor:
        raise ValueError("freeze the orbit first")

    with pytest.raises(ValueError, match=r"any start: freeze the orbit first"):
        maximize(objective, [p], num_restarts=1)
    with pytest.raises(ValueError, match=r"any start: it is nan there"):
        maximize(lambda: p.sum() * torch.nan, [p])
    assert p.item() == 0.0


def test_mistakes_in_the_objective_are_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        maximize(lambda: 1 / 0, [parameter(0.0)])


def interrupting(p: nn.Parameter, after: int):
    visits: list[tuple[float, list[float]]] = []

    def objective() -> torch.Tensor:
        if len(visits) == after:
            raise KeyboardInterrupt
        value = -((1 - p[0]) ** 2) - 100 * (p[1] - p[0] ** 2) ** 2
        visits.append((value.item(), p.tolist()))
        return value

    return objective, visits


def test_an_interruption_keeps_the_best_point_so_far():
    p = parameter(-1.2, 1.0)
    objective, visits = interrupting(p, after=9)
    result = maximize(objective, [p], num_restarts=3, generator=seed(0))
    best = max(visits)
    assert best[0] > visits[0][0]
    assert (result.value, p.tolist()) == best
    assert not result.converged
    assert result.message == "interrupted"
    assert len(result.starts) == 1, "no further start"


def test_an_interruption_before_anything_was_found_is_passed_on():
    p = parameter(-1.2, 1.0)
    objective, _ = interrupting(p, after=0)
    with pytest.raises(KeyboardInterrupt):
        maximize(objective, [p])
    assert p.tolist() == [-1.2, 1.0]


def test_an_interruption_in_a_restart_keeps_the_better_first_start():
    p = parameter(-1.5)
    calls = 0

    def objective() -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 30:
            raise KeyboardInterrupt
        return two_hills(p)()

    result = maximize(objective, [p], num_restarts=50, spread=3.0, generator=seed(0))
    assert 1 < len(result.starts) < 51
    assert p.item() == pytest.approx(-2, abs=0.1)


def test_parameters_that_need_no_gradient_stay():
    p, fixed = parameter(3.0), nn.Parameter(torch.tensor(2.0), requires_grad=False)
    maximize(lambda: -(p - fixed).square().sum(), [p, fixed])
    assert fixed.item() == 2.0
    assert p.item() == pytest.approx(2.0)


def test_parameters_that_the_objective_does_not_use_stay():
    p, unused = parameter(3.0), parameter(5.0)
    maximize(lambda: -p.square().sum(), [p, unused])
    assert unused.item() == 5.0


def test_single_precision_is_maximised_too():
    p = parameter(3.0, dtype=torch.float32)
    maximize(lambda: -(p - 1).square().sum(), [p])
    assert p.dtype == torch.float32
    assert p.item() == pytest.approx(1.0, abs=1e-4)


def test_nothing_to_learn_and_no_iterations_give_the_value_as_it_is():
    p = parameter(3.0)
    result = maximize(lambda: -p.square().sum(), [p], max_iterations=0)
    assert (result.value, result.converged, p.item()) == (-9.0, False, 3.0)
    assert maximize(lambda: torch.tensor(2.0), []).converged


@pytest.mark.parametrize("counts", [{"max_iterations": -1}, {"num_restarts": -1}])
def test_negative_counts_are_refused(counts):
    with pytest.raises(ValueError, match="at least 0"):
        maximize(lambda: torch.tensor(0.0), [parameter(0.0)], **counts)


def test_hyperpriors_of_all_modules_are_counted():
    kernel = ScaleKernel(
        RBFKernel(lengthscale_prior=GammaPrior(3.0, 6.0)), outputscale_prior=GammaPrior(2.0, 1.0)
    )
    other = RBFKernel(ard_num_dims=2, lengthscale_prior=NormalPrior(1.0, 0.5))
    kernel.base_kernel.lengthscale, kernel.outputscale = 0.7, 1.5
    other.lengthscale = torch.tensor([[0.5, 2.0]])
    gamma, normal = torch.distributions.Gamma, torch.distributions.Normal
    expected = gamma(3.0, 6.0).log_prob(torch.tensor(0.7)) + gamma(2.0, 1.0).log_prob(torch.tensor(1.5))
    expected = expected + normal(1.0, 0.5).log_prob(torch.tensor([0.5, 2.0])).sum()
    assert log_prior(kernel, other).item() == pytest.approx(expected.item(), rel=1e-5)
    assert log_prior(RBFKernel()) == 0.0


def test_a_hyperprior_is_what_is_found_where_the_data_say_nothing():
    kernel = RBFKernel(lengthscale_prior=GammaPrior(3.0, 4.0)).double()
    maximize(lambda: log_prior(kernel) + 0 * kernel.lengthscale.sum(), list(kernel.parameters()))
    assert kernel.lengthscale.item() == pytest.approx((3 - 1) / 4, rel=1e-4)


@pytest.mark.parametrize("allowed", [0, 1, 5, 12])
def test_no_evaluation_begins_when_time_is_over(allowed):
    p = parameter(-1.2, 1.0)
    values: list[float] = []

    def objective():
        value = -((1 - p[0]) ** 2) - 100 * (p[1] - p[0] ** 2) ** 2
        values.append(value.item())
        return value

    found = maximize(objective, [p], num_restarts=3, is_over=lambda: len(values) >= allowed)
    assert len(values) == max(1, allowed), "within line searches too, and no restart"
    assert found.message == TIME_IS_OVER
    assert not found.converged
    assert found.value == max(values) == pytest.approx(objective().item())


def test_time_that_is_over_between_starts_ends_the_restarts():
    p = parameter(-1.2, 1.0)
    over = False

    def objective():
        nonlocal over
        value = -(p - 1).square().sum()
        over = value.item() > -1e-12
        return value

    found = maximize(objective, [p], num_restarts=3, is_over=lambda: over)
    assert len(found.starts) == 1
    assert found.message == TIME_IS_OVER


def test_it_has_settled_where_iterations_gain_next_to_nothing():
    climbing = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert Training(5.0, True, "", climbing).has_settled
    assert not Training(5.0, False, "", climbing).has_settled
    assert Training(5.0, False, "", [*climbing, 5.001, 5.002, 5.003, 5.003, 5.003]).has_settled
    assert not Training(5.0, False, "", [5.0, 5.0]).has_settled, "a limit of two iterations shows nothing"


@pytest.mark.parametrize(("slope", "converges"), [(1e-3, True), (10.0, False)])
def test_a_line_search_that_meets_rounding_has_converged(slope, converges):
    """The value never rises, as where rounding hides what is left to gain; the slope says how much it is."""
    p = parameter(0.0)
    found = maximize(lambda: slope * (p - p.detach()).sum() - p.detach().abs().sum() * slope, [p])
    assert found.message.startswith("ABNORMAL")
    assert found.converged is converges
