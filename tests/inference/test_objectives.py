import pickle

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.estimators.engines import FitSettings
from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.functionals.averages import freeze_functional
from orbitwise.inference.exact import ExactEvidence
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.inference.stochastic.objectives import StochasticBound
from orbitwise.inference.stochastic.trainer import StochasticTrainer
from orbitwise.likelihoods import Gaussian
from orbitwise.orbits import SampledOrbit
from orbitwise.process import Process
from orbitwise.transforms import Rotation


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 2, generator=generator, dtype=torch.float64)
    process = Process(None, ScaleKernel(RBFKernel())).double()
    functional = OrbitAverage(SampledOrbit(Rotation(), -0.3, 0.3, num_samples=4)).double()
    model = LatentModel(process, functional, Gaussian(0.1))
    return model, Observations(Evaluation(), x, torch.sin(x[:, :1])), generator


def frozen(model, generator):
    return model.at(freeze_functional(model.functional, 4, generator))


def test_a_collapsed_bound_is_below_the_evidence(problem):
    model, rows, generator = problem
    fixed = frozen(model, generator)
    evidence = ExactEvidence(fixed, (rows,))().item()
    sparse = SparseModel(model.process, rows.through(fixed.functional), model.likelihood)
    sparse.place_inducing(rows.x[:4])
    assert sparse().item() < evidence


def test_a_stochastic_objective_repeats_its_draws(problem):
    model, rows, generator = problem
    objective = StochasticBound(StochasticTrainer(model, rows, rows.x[:4], generator, batch_size=4))
    assert objective().item() == objective().item()


def test_everything_learnable_is_learned(problem):
    model, rows, generator = problem
    before = [parameter.detach().clone() for parameter in model.learned]
    objective = ExactEvidence(frozen(model, generator), (rows,))
    training = FitSettings(generator, max_iterations=5).maximize(objective, model)
    assert training.value > -1e9
    assert len(before) == 5
    assert all(not torch.equal(a, b) for a, b in zip(before, model.learned, strict=True))


def test_objectives_can_be_pickled(problem):
    model, rows, generator = problem
    objective = ExactEvidence(frozen(model, generator), (rows,))
    again = pickle.loads(pickle.dumps(objective))
    assert again().item() == pytest.approx(objective().item())
