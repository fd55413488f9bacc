"""Stochastic steps whose batches are shared by several processes are those of one process."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.functionals.averages import evenly_drawn
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.optimise.checkpoints import Slots
from orbitwise.inference.processes import ALONE, ProcessFailedError
from orbitwise.inference.sparse.held_rows import condition
from orbitwise.inference.sparse.inducing import EstimatedProcess, Estimates
from orbitwise.inference.stochastic import trainer as module
from orbitwise.inference.stochastic.trainer import Rates, StochasticTrainer
from orbitwise.inference.stochastic.unbiased_bound import unbiased_bound
from orbitwise.likelihoods import Bernoulli, Gaussian, StudentT
from orbitwise.orbits import FiniteOrbit, ImageOrbit
from orbitwise.process import Process
from orbitwise.transforms import block_permutations
from tests.inference.several import in_processes

COUNT = 45


class Estimated(EstimatedProcess):
    """A process whose covariances with inducing variables are estimated by noisy inputs."""

    def __init__(self):
        super().__init__()
        self.kernel = ScaleKernel(RBFKernel()).double()

    def inducing_covariance(self, inducing):
        return self.kernel(inducing).to_dense()

    def estimates(self, x, inducing, generator):
        noise = 0.1 * torch.randn(2, *x.shape, generator=generator, dtype=x.dtype)
        cross = torch.stack([self.kernel(x + each, inducing).to_dense() / 2 for each in noise], dim=1)
        return Estimates(cross, self.kernel(x, diag=True))


def drawn():
    return evenly_drawn(OrbitAverage(ImageOrbit((3, 3))), 4)


def drawn_at_random():
    return OrbitAverage(ImageOrbit((3, 3), num_samples=4))


CASES = {
    "a learned orbit": {"outputs": 2},
    "weights": {"is_weighted": True, "rates": Rates(inducing=0.01)},
    "tilts": {"likelihood": Bernoulli},
    "a network": {"likelihood": Bernoulli, "tilt": "recognition"},
    "Adam": {
        "q_update": "adam",
        "method": "all_pairs",
        "functional": lambda: OrbitAverage(ImageOrbit((3, 3), num_samples=4)),
    },
    "heavy tails": {"likelihood": StudentT, "functional": Evaluation},
    "elements": {"functional": lambda: OrbitAverage(FiniteOrbit(block_permutations(3, 3), num_samples=2))},
    "estimates": {"functional": Evaluation, "process": Estimated},
}


def made(
    processes, outputs=1, is_weighted=False, likelihood=Gaussian, functional=drawn, process=None, **options
):
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(COUNT, 9, generator=generator, dtype=torch.float64)
    targets = torch.randn(COUNT, outputs, generator=generator, dtype=torch.float64) + x[:, 4:5]
    targets = targets.sign() if likelihood is Bernoulli else targets
    weight = 1.0 + torch.arange(COUNT, dtype=torch.float64) % 3 if is_weighted else None
    prior = Process(None, ScaleKernel(RBFKernel())).double() if process is None else process()
    model = LatentModel(prior, functional().double(), likelihood().double())
    observations = Observations(Evaluation(), x, targets, weight, processes=processes)
    return StochasticTrainer(model, observations, x[:7].clone(), generator, batch_size=10, **options)


def stepped(processes, num_steps=20, **case):
    trainer = made(processes, **case)
    trainer.run(num_steps, warm_up=3)
    bound = trainer.estimate(2)
    memory = [trainer.memory.residual, trainer.memory.square.flatten()]
    learned = [each.flatten() for each in trainer.snapshot().values()]
    return torch.cat([torch.tensor([*trainer.history.bound, *bound]), *memory, *learned])


USUAL = ("a learned orbit", "tilts", "heavy tails")
OTHERS = [(name, 2) for name in CASES if name not in USUAL]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, 2) for name in USUAL),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [("a learned orbit", 3), *OTHERS]),
    ],
)
def test_steps_are_those_of_one_process(name, size):
    expected = stepped(ALONE, **CASES[name])
    found = in_processes(size, lambda each: stepped(each, **CASES[name]))
    torch.testing.assert_close(found[0], expected, rtol=1e-8, atol=1e-10)
    assert all(torch.equal(each, found[0]) for each in found)


def test_a_batch_smaller_than_the_number_of_processes():
    expected = stepped(ALONE, num_steps=4)

    def few(processes):
        trainer = made(processes)
        trainer.batches.size = 2
        trainer.run(4)
        return torch.tensor(trainer.history.bound)

    found = in_processes(3, few)
    torch.testing.assert_close(found[0], few(ALONE), rtol=1e-8, atol=1e-10)
    assert len(expected) > 4


def test_a_run_resumes_in_all_processes_from_what_the_first_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SNAPSHOT_EVERY", 5)

    def run(processes, folder, ends_at=None):
        trainer = made(processes)
        slots = Slots(folder / "state") if processes.is_first else None

        def end(step, bound):
            if step == ends_at:
                raise OSError("killed")

        trainer.run(20, warm_up=3, callback=end, slots=slots)
        return torch.tensor(trainer.history.bound)

    whole = in_processes(2, lambda each: run(each, tmp_path / "whole"))
    with pytest.raises(OSError, match="killed"):
        in_processes(2, lambda each: run(each, tmp_path / "broken", ends_at=12))
    resumed = in_processes(2, lambda each: run(each, tmp_path / "broken"))
    assert torch.equal(resumed[0], whole[0])
    assert torch.equal(resumed[1], whole[0])


def test_rows_that_are_not_finite_are_named_by_all_processes():
    def work(processes):
        trainer = made(processes)
        trainer.observations.x[-1] = torch.nan
        try:
            trainer.run(10)
        except (ValueError, ProcessFailedError) as error:
            return str(error)
        return ""

    assert all("returned NaN or infinite points" in told for told in in_processes(2, work))


def test_the_bound_of_all_rows_is_that_of_one_process():
    def work(processes):
        trainer = made(processes, outputs=2)
        model, rows = trainer.model, trainer.observations
        frozen = model.at(trainer._fixed)
        found = condition(frozen, rows, trainer.inducing_rows())
        generator = torch.Generator().manual_seed(1)
        bound = unbiased_bound(found.posterior, model, rows, found.rows.residual(), None, generator, 2)
        return torch.tensor([*bound, trainer._collapsed_bound()])

    with torch.no_grad():
        expected = work(ALONE)
    assert all(torch.allclose(found, expected, rtol=1e-9) for found in in_processes(2, work))
