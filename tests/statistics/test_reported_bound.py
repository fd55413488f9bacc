"""The evidence that sparse fits report is unbiased: z-scores over seeds against an average over 4,096 nodes.

The bound of the frozen rows that chose q would fail here: it is that of another model.
"""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from orbitwise import InvariantGPClassifier, InvariantGPRegressor
from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.functionals.averages import freeze_functional
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.held_rows import condition
from orbitwise.inference.sparse.inducing import inducing_factor, project
from orbitwise.inference.stochastic import unbiased_bound
from orbitwise.inference.stochastic.variational import projected_terms
from orbitwise.likelihoods import Bernoulli, Dirichlet, Gaussian, Likelihood
from orbitwise.likelihoods.dirichlet import one_hot
from orbitwise.orbits import SampledOrbit
from orbitwise.process import Process
from orbitwise.transforms import Translation
from tests.contracts.annotations import unchecked

# Bounds and their errors are tested here, not learning.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ROWS, SEEDS, NODES = 24, 20, 4096


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Z = seeded(ROWS, 2), seeded(8, 2, seed=1)
Y = X.sin().sum(1, keepdim=True)
CASES: dict[str, tuple[Likelihood, Tensor]] = {
    "Gaussian": (Gaussian(0.02), torch.cat([Y, -Y.cos()], 1)),
    "Bernoulli": (Bernoulli(), Y.sign()),
    "Dirichlet": (Dirichlet(), one_hot((Y[:, 0] > 0).long(), 2).double()),
}


def shifts() -> SampledOrbit:
    """Moves all of whose averages are known to many digits from few thousand nodes."""
    return SampledOrbit(Translation(2), -0.9, 0.7, num_samples=4, learnable=False).double()


def assert_standard(scores: list[float]) -> None:
    """Mean 0 and deviation 1, within what 20 scores can tell."""
    assert abs(np.mean(scores)) < 0.8
    assert 0.6 < np.std(scores) < 1.5


@pytest.fixture(scope="module")
def truth():
    """The projection of the integral, which is the same for every q."""
    process = Process(None, ScaleKernel(RBFKernel())).double().requires_grad_(False)
    functional = OrbitAverage(shifts())
    nodes = freeze_functional(functional, NODES, torch.Generator().manual_seed(1))
    with torch.no_grad(), unchecked():
        lower = inducing_factor(process, Z)
        parts = [project(process, Z, lower, nodes.atoms(row)) for row in X.split(1)]
    columns = [
        torch.cat(each) for each in zip(*((p.columns, p.variance, p.offset) for p in parts), strict=True)
    ]
    return process, functional, parts[0]._replace(columns=columns[0], variance=columns[1], offset=columns[2])


@pytest.mark.parametrize(("likelihood", "targets"), CASES.values(), ids=CASES)
def test_polished_bounds_are_those_of_the_integral(truth, likelihood, targets, monkeypatch):
    monkeypatch.setattr(unbiased_bound, "DRAWS", 16)
    process, functional, projection = truth
    scores, old = [], []
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        frozen = freeze_functional(functional, 4, generator)
        with unchecked():
            model, rows = LatentModel(process, functional, likelihood), Observations(Evaluation(), X, targets)
            found = condition(model.at(frozen), rows, Z, generator)
            residual = found.rows.projected.residual
            mean, error = unbiased_bound.unbiased_bound(
                found.posterior, model, rows, residual, found.tilt, generator
            )
            other = found.bound()
        q = found.posterior.q
        with torch.no_grad():
            right = projected_terms(likelihood, q, projection, targets).data - q.divergence()
        scores.append((mean - float(right)) / error)
        old.append((float(other) - float(right)) / error)
    assert_standard(scores)
    assert np.sqrt(np.mean(np.square(old))) > 10, "the frozen model has another bound"


LINE = seeded(40, 1, seed=2)
WAVE = (LINE * 2).sin()[:, 0]
WAVE = (WAVE - WAVE.mean()) / WAVE.std(correction=0)


@pytest.mark.parametrize("inference", ["collapsed", "variational"])
@pytest.mark.parametrize("kind", [InvariantGPRegressor, InvariantGPClassifier])
def test_estimators_report_the_bound_of_the_integral(kind, inference, monkeypatch):
    """In one dimension Gauss's nodes give the integral to many digits."""
    monkeypatch.setattr(unbiased_bound, "DRAWS", 4)
    is_regressor, scores = kind is InvariantGPRegressor, []
    y = WAVE.numpy() if is_regressor else (WAVE.numpy() > 0).astype(int)
    orbit = SampledOrbit(Translation(1), -0.9, 0.7, num_samples=4, learnable=False)
    given = {} if is_regressor else {"likelihood": "one_hot", "noise": "evidence"}
    settings = {"num_inducing": 12, "num_steps": 9, "max_iterations": 3, "inference": inference, **given}
    for seed in range(SEEDS):
        with unchecked():
            model = kind(invariance=orbit, random_state=seed, **settings).fit(LINE.numpy(), y)
        posterior = model.posterior_
        nodes = OrbitAverage(model.orbit_.freeze(64, rule="gauss"))
        targets = WAVE[:, None] if is_regressor else model.model_.observations[0].targets
        with torch.no_grad():
            rows = nodes.atoms(LINE)
            projection = project(posterior.process, posterior.inducing, posterior.lower, rows)
            data = projected_terms(Gaussian(float(model.noise_)), posterior.q, projection, targets).data
            right = float(data - posterior.q.divergence())
        scores.append((model.log_evidence_ - right) / model.log_evidence_error_)
    assert_standard(scores)
