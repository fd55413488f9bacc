"""A stochastic run that is cut short goes on from its last state, bit for bit, whatever moves in it."""

from pathlib import Path

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.optimise.checkpoints import Slots, State
from orbitwise.inference.stochastic.trainer import StochasticTrainer
from orbitwise.inference.stochastic.trainer_state import BLOCKS, Rates, RunState, misfit
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


def trainer_of(kind: str) -> StochasticTrainer:
    data = torch.Generator().manual_seed(1)
    x = torch.randn(40, 2, generator=data, dtype=torch.float64)
    y = x.sum(1, keepdim=True).sin()
    is_binary = kind == "recognition"
    likelihood = Bernoulli() if is_binary else Gaussian(0.1)
    generator = torch.Generator().manual_seed(2)
    process = Process(None, ScaleKernel(RBFKernel()).double())
    functional = OrbitAverage(JitterOrbit(2, 0.3, num_samples=4)).double()
    targets = (y > 0).double() if is_binary else y
    model, rows = LatentModel(process, functional, likelihood), Observations(Evaluation(), x, targets)
    return StochasticTrainer(model, rows, x[:5], generator, 16, **KINDS[kind])


def trained(kind: str, path: Path | None, kill_at: int | None = None) -> StochasticTrainer:
    """Two runs with other inducing points in between, as estimators do."""
    trainer = trainer_of(kind)
    slots = None if path is None else Slots(path)
    seen = 0

    def callback(step: int, bound: float) -> None:
        nonlocal seen
        seen += 1
        if seen == kill_at:
            raise KilledError

    trainer.run(30, warm_up=10, callback=callback, slots=slots)
    trainer.replace_inducing(trainer.observations.x[:9])
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
    learned = zip(found.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in learned)
    assert torch.equal(found.inducing, whole.inducing)
    assert torch.equal(found.q.mean, whole.q.mean)
    assert torch.equal(found.generator.get_state(), whole.generator.get_state())


def with_tensor(name: str, value: torch.Tensor):
    return lambda state: State({**state.tensors, name: value}, state.numbers)


STRANGE = {
    "missing": lambda state: State({k: v for k, v in state.tensors.items() if k != "order"}, state.numbers),
    "more": with_tensor("else", torch.zeros(1)),
    "shape": with_tensor("now.precision", torch.zeros(3)),
    "type": with_tensor("memory.seen", torch.zeros(40)),
    "nan": with_tensor("memory.residual", torch.full((40,), float("nan"), dtype=torch.float64)),
    "rows": with_tensor("order", torch.tensor([40])),
    "random": with_tensor("generator", torch.zeros(5056, dtype=torch.uint8)),
    "notes": with_tensor("notes", torch.zeros(2, 99, dtype=torch.float64)),
    "many notes": with_tensor("notes", torch.zeros(BLOCKS + 1, 3, dtype=torch.float64)),
    "history": with_tensor("smoothed", torch.zeros(1, dtype=torch.float64)),
}
NUMBERS = {
    "step": "3",
    "age": -1,
    "failures": 1e300,
    "first": 10**6,
    "factor": 0.0,
    "best_bound": float("nan"),
    "best": None,
    "moved": 1,
    "reasons": [1],
    "back_offs": True,
    "settled_at": -1,
}
STRANGE |= {
    name: lambda state, name=name, value=value: State(state.tensors, {**state.numbers, name: value})
    for name, value in NUMBERS.items()
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run that was killed."""
    path = tmp_path_factory.mktemp("killed") / "fit"
    with pytest.raises(KilledError):
        trained("natural", path, 28)
    return path


def test_a_state_is_doubted_before_anything_of_it_is_used(killed: Path):
    slots = Slots(killed)
    slots.begin()
    state = slots.recall()
    assert state is not None
    trainer = trainer_of("natural")
    parts = trainer, trainer._descent(), RunState(trainer.snapshot())
    assert misfit(*parts, state) == ""
    for kind, change in STRANGE.items():
        assert misfit(*parts, change(state)), kind


def test_a_run_whose_state_is_strange_starts_anew(killed: Path, monkeypatch: pytest.MonkeyPatch):
    recall = Slots.recall

    def strange(self: Slots) -> State | None:
        state = recall(self)
        return None if state is None else STRANGE["nan"](state)

    monkeypatch.setattr(Slots, "recall", strange)
    with pytest.warns(UserWarning, match="starts from the beginning: memory.residual is not finite"):
        found = trained("natural", killed)
    assert found.history.bound == trained("natural", None).history.bound


@pytest.mark.parametrize(
    ("kind", "q"), [("recognition", {"precision", "shift"}), ("adam", {"q.mean", "q.raw"})]
)
def test_a_snapshot_brings_everything_back(kind: str, q: set[str]):
    trainer = trainer_of(kind)
    trainer.run(3)
    before = trainer.snapshot()
    trainer.run(3)
    with torch.no_grad():
        trainer.inducing.fill_(float("nan"))
    trainer.return_to(before)
    after = trainer.snapshot()
    assert {"inducing"} | q < before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
