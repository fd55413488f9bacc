import pickle

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.estimators.engines import ExactObjective, Problem, StochasticObjective
from orbitwise.functionals import OrbitAverage
from orbitwise.functionals.averages import freeze_functional
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
    return Problem(process, functional, Gaussian(0.1), x, torch.sin(x[:, :1]), generator)


def frozen(problem):
    return freeze_functional(problem.functional, 4, problem.generator)


def test_a_collapsed_bound_is_below_the_evidence(problem):
    functional = frozen(problem)
    evidence = ExactObjective(problem, functional)().item()
    model = problem.sparse_model(functional)
    model.place_inducing(problem.x[:4])
    assert model().item() < evidence


def test_a_stochastic_objective_repeats_its_draws(problem):
    trainer = StochasticTrainer(
        problem.process,
        problem.functional,
        problem.likelihood,
        problem.x,
        problem.targets,
        problem.x[:4],
        problem.generator,
        batch_size=4,
    )
    objective = StochasticObjective(trainer)
    assert objective().item() == objective().item()


def test_everything_learnable_is_learned(problem):
    objective = ExactObjective(problem, frozen(problem))
    before = [parameter.detach().clone() for parameter in problem.parameters]
    training = problem.maximize(objective, 5)
    assert training.value > objective.problem.targets.new_tensor(-1e9)
    assert len(before) == 5
    assert all(not torch.equal(a, b) for a, b in zip(before, problem.parameters, strict=True))


def test_objectives_can_be_pickled(problem):
    objective = ExactObjective(problem, frozen(problem))
    again = pickle.loads(pickle.dumps(objective))
    assert again().item() == pytest.approx(objective().item())
