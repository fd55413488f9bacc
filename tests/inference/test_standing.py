"""A stochastic run that is cut short goes on from its last state, bit for bit, whatever moves in it."""

from pathlib import Path

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.functionals import OrbitAverage
from orbitwise.inference.checkpoint import Slots
from orbitwise.inference.schedule import Rates
from orbitwise.inference.stochastic import StochasticTrainer
from orbitwise.likelihoods import Bernoulli, Gaussian
from orbitwise.orbits import JitterOrbit
from orbitwise.process import Process


class KilledError(Exception):
    pass


KINDS = {
    "natural": {},
    "adam": {"q_update": "adam"},
    "moving": {"rates": Rates(inducing=0.02)},
    "recognition": {"tilt": "recognition"},
}


def trained(kind: str, path: Path | None, kill_at: int | None = None) -> StochasticTrainer:
    """Two runs with other inducing points in between, as estimators do."""
    data = torch.Generator().manual_seed(1)
    x = torch.randn(40, 2, generator=data, dtype=torch.float64)
    y = x.sum(1, keepdim=True).sin()
    is_binary = kind == "recognition"
    likelihood = Bernoulli() if is_binary else Gaussian(0.1)
    generator = torch.Generator().manual_seed(2)
    process = Process(None, ScaleKernel(RBFKernel()).double())
    functional = OrbitAverage(JitterOrbit(2, 0.3, num_samples=4)).double()
    targets = (y > 0).double() if is_binary else y
    trainer = StochasticTrainer(
        process, functional, likelihood, x, targets, x[:5], generator, 16, **KINDS[kind]
    )
    slots = None if path is None else Slots(path)
    seen = 0

    def callback(step: int, bound: float) -> None:
        nonlocal seen
        seen += 1
        if seen == kill_at:
            raise KilledError

    trainer.run(30, warm_up=10, callback=callback, slots=slots)
    trainer.replace_inducing(x[:9])
    trainer.run(30, warm_up=10, callback=callback, slots=slots)
    return trainer


@pytest.mark.parametrize(
    ("kind", "kill_at"),
    [("natural", 5), ("natural", 28), ("natural", 45), ("adam", 28), ("moving", 58), ("recognition", 58)],
)
def test_it_goes_on_bit_for_bit(tmp_path: Path, kind: str, kill_at: int):
    whole = trained(kind, None)
    with pytest.raises(KilledError):
        trained(kind, tmp_path / "fit", kill_at)
    found = trained(kind, tmp_path / "fit")
    assert found.history.bound == whole.history.bound
    assert found.history.smoothed == whole.history.smoothed
    for one, other in ((found.process, whole.process), (found.functional, whole.functional)):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert torch.equal(found.inducing, whole.inducing)
    assert torch.equal(found.q.mean, whole.q.mean)
    assert torch.equal(found.generator.get_state(), whole.generator.get_state())
