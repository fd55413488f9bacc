import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.functionals import Evaluation
from orbitwise.inference import exact
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse import nystrom
from orbitwise.inference.sparse.bounds import collapsed_bound, gather_totals
from orbitwise.inference.sparse.inducing import inducing_factor
from orbitwise.process import Process
from tests.inference.sparse_problems import random_problem


def test_all_rows_as_inducing_points_give_the_exact_posterior():
    process, rows, noise, _ = random_problem(1, 30, smooth=False)
    process.requires_grad_(False)
    noise = noise.detach()
    truth = exact.condition(process, rows.atoms(), rows.targets, noise.expand(30))
    queries = Evaluation().atoms(rows.x[:9] + 0.2)
    for kind in ("nystrom", "dtc"):
        found = nystrom.condition(process, rows, noise, rows.x, kind).row_moments(queries)
        torch.testing.assert_close(found.mean, truth.row_moments(queries).mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.variance, truth.row_moments(queries).variance, rtol=1e-3, atol=1e-5)


def test_negative_variance_and_overconfidence():
    # The reason why these are baselines: few inducing points, little noise.
    x = torch.linspace(0, 4, 40, dtype=torch.float64)[:, None]
    process = Process(None, ScaleKernel(RBFKernel())).double().requires_grad_(False)
    process.kernel.base_kernel.lengthscale = 0.3
    rows = Observations(Evaluation(), x, torch.sin(3 * x))
    noise = torch.tensor(0.01, dtype=torch.float64)
    points = x[::10]
    queries = Evaluation().atoms(torch.linspace(0, 5, 60, dtype=torch.float64)[:, None])
    found = {
        kind: nystrom.condition(process, rows, noise, points, kind).row_moments(queries).variance
        for kind in ("nystrom", "sor", "dtc")
    }
    truth = exact.condition(process, rows.atoms(), rows.targets, noise.expand(40)).row_moments(queries)
    assert found["nystrom"].min() < 0
    assert bool((found["sor"] <= found["dtc"] + 1e-9).all())
    assert found["sor"][-1] < 0.1 * truth.variance[-1]
    assert bool((found["dtc"] >= 0).all())


def test_the_pseudo_evidence_lacks_the_trace_term():
    process, rows, noise, _ = random_problem(3, 25)
    with torch.no_grad():
        totals = gather_totals(process, rows, rows.x[:4], inducing_factor(process, rows.x[:4]), noise)
        pseudo = nystrom.pseudo_evidence(totals, noise)
        torch.testing.assert_close(
            pseudo - 0.5 * totals.trace / noise, collapsed_bound(totals, noise, tight=False)
        )
