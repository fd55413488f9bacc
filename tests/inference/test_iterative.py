import pytest
import torch

from orbitwise.functionals import Evaluation
from orbitwise.inference import exact
from orbitwise.inference.sparse import iterative
from tests.inference.sparse_problems import random_problem


@pytest.fixture(params=[{}, {"weighted": True, "outputs": 2, "mean": True}, {"invariant": True}], ids=str)
def pair(request):
    process, rows, noise, generator = random_problem(1, 80, **request.param)
    process.requires_grad_(False)
    noise = noise.detach()
    truth = exact.condition(process, rows.atoms(), rows.targets, noise / rows.weights())
    queries = torch.randn(13, 2, generator=generator, dtype=torch.float64)
    return process, rows, noise, truth, rows.functional.atoms(queries)


def test_it_equals_the_exact_posterior(pair):
    process, rows, noise, truth, queries = pair
    found = iterative.condition(process, rows, noise, rows.x[:10], tolerance=1e-10)
    mine, theirs = found.row_moments(queries), truth.row_moments(queries)
    torch.testing.assert_close(mine.mean, theirs.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine.variance, theirs.variance, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.covariance(queries), truth.covariance(queries), rtol=1e-3, atol=1e-4)


def test_few_steps_leave_the_rest_to_the_inducing_variables(pair):
    process, rows, noise, truth, queries = pair
    errors = []
    for steps in (0, 2, 6, 40):
        found = iterative.condition(process, rows, noise, rows.x[:10], "sparse", 1e-12, steps)
        errors.append((found.row_mean(queries) - truth.row_mean(queries)).abs().max().item())
    assert errors[-1] < 1e-5 < errors[0]


def test_sparse_variances_are_those_of_the_inducing_variables(pair):
    process, rows, noise, _, queries = pair
    found = iterative.condition(process, rows, noise, rows.x[:10], "sparse")
    torch.testing.assert_close(
        found.row_moments(queries).variance, found.sparse.row_moments(queries).variance[:, 0]
    )
    with pytest.raises(ValueError, match="variance='exact'"):
        found._solved(torch.ones(80, 1, dtype=torch.float64))


def test_draws_follow_the_posterior():
    process, rows, noise, generator = random_problem(1, 40)
    process.requires_grad_(False)
    found = iterative.condition(process, rows, noise.detach(), rows.x[:10], tolerance=1e-8)
    queries = Evaluation().atoms(rows.x[:3] + 0.3)
    draws = found.sample(queries, 4000, generator)[:, 0]
    moments = found.row_moments(queries)
    torch.testing.assert_close(draws.mean(1), moments.mean[:, 0], rtol=0, atol=0.08)
    torch.testing.assert_close(draws.var(1), moments.variance, rtol=0.15, atol=0.02)
