import math

import pytest
import torch

from orbitwise.functionals import Evaluation
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse import certificate as automatic
from orbitwise.inference.sparse.certificate import Budget, Certificate, Stage, learn, warm_up
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.kernels.bases import default_kernel
from orbitwise.likelihoods import Gaussian
from orbitwise.process import Process
from tests.inference.sparse_problems import exact_evidence


def model_of(count=150, bound="tight", learns=False, wiggles=3.0):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 1, generator=generator, dtype=torch.float64) * 4
    noise = 0.1 * torch.randn(count, 1, generator=generator, dtype=torch.float64)
    y = torch.sin(wiggles * x) + noise
    process = Process(None, default_kernel(x, True)).double()
    model = SparseModel(
        process, Observations(Evaluation(), x, y), Gaussian(0.05), bound, learns_inducing=learns
    )
    return model, generator


@pytest.mark.parametrize("bound", ["titsias", "tight", "cg"])
def test_it_finds_out_how_many_are_enough(bound):
    model, generator = model_of(bound=bound)
    outcome = learn(model, 0.01, Budget(), generator)
    certificate = outcome.certificate
    assert certificate.stopped == "gap"
    assert certificate.is_met
    assert certificate.num_inducing == model.num_inducing < 70
    truth = exact_evidence(model.process, model.observations, model.noise).item()
    assert certificate.lower - 1e-6 <= truth <= certificate.upper + 1e-6
    assert certificate.gap <= 0.01 * 150
    counts = [stage.num_inducing for stage in certificate.history]
    assert counts == sorted(counts)
    assert len(outcome.history) == certificate.history[-1].iterations


def test_hyperparameters_are_those_of_the_exact_evidence():
    sparse, generator = model_of(wiggles=8.0)
    learn(sparse, 0.01, Budget(), generator)
    full, other = model_of(wiggles=8.0)
    warm_up(full, 200, other)  # all 150 rows: exact evidence
    at_sparse = exact_evidence(sparse.process, sparse.observations, sparse.noise).item()
    at_exact = exact_evidence(full.process, full.observations, full.noise).item()
    assert at_sparse == pytest.approx(at_exact, abs=0.01 * 150)


def test_a_budget_of_inducing_variables_ends_it_honestly():
    model, generator = model_of(wiggles=12.0)
    outcome = learn(model, 1e-6, Budget(max_inducing=12, max_iterations=30), generator, moves=False)
    assert outcome.certificate.stopped == "max_inducing"
    assert not outcome.certificate.is_met
    assert outcome.certificate.num_inducing == 12
    assert "not met" in str(outcome.certificate)
    truth = exact_evidence(model.process, model.observations, model.noise).item()
    # the exact evidence is rounded too
    assert outcome.certificate.lower <= truth + 1e-9 * abs(truth)
    assert truth - 1e-9 * abs(truth) <= outcome.certificate.upper


def test_points_move_where_there_are_too_few():
    ends = []
    for moves in (False, True):
        model, generator = model_of(wiggles=12.0)
        budget = Budget(max_inducing=12, max_iterations=40)
        ends.append(learn(model, 1e-4, budget, generator, moves=moves).certificate.lower)
    assert ends[1] > ends[0] + 1


@pytest.mark.parametrize("moment", [0, 3, 15])
def test_a_time_limit_ends_it_honestly(moment, monkeypatch):
    """A second passes with every evaluation, in the warm-up too: none begins after the last one."""
    seconds = 0.0

    def slow(compute):
        def evaluate(*arguments):
            nonlocal seconds
            seconds += 1
            return compute(*arguments)

        return evaluate

    monkeypatch.setattr(SparseModel, "forward", slow(SparseModel.forward))
    monkeypatch.setattr(automatic.exact, "evidence", slow(automatic.exact.evidence))
    model, generator = model_of()
    budget = Budget(max_seconds=moment + 0.5, clock=lambda: seconds)
    outcome = learn(model, 1e-12, budget, generator)
    assert outcome.certificate.stopped == "time_limit"
    assert outcome.certificate.lower <= outcome.certificate.upper
    assert not outcome.converged
    # each of the two optimisers has to evaluate once where it starts
    assert moment < seconds <= moment + 3
    assert outcome.certificate.history[-1].seconds == seconds


def test_a_tolerance_that_cannot_be_met_ends_with_all_rows():
    model, generator = model_of(count=30)
    outcome = learn(model, 1e-300, Budget(max_iterations=20), generator)
    assert outcome.certificate.stopped in ("complete", "gain", "gap")
    assert outcome.certificate.num_inducing <= 30


@pytest.mark.parametrize("learns", [False, True])
def test_a_given_number_is_kept(learns):
    model, generator = model_of(learns=learns)
    outcome = learn(model, 0.01, Budget(max_iterations=30), generator, num_inducing=9)
    assert outcome.certificate.stopped == "fixed"
    assert outcome.certificate.num_inducing == 9
    assert outcome.history == sorted(outcome.history)


def test_without_iterations_nothing_is_learned():
    model, generator = model_of()
    before = [parameter.clone() for parameter in model.process.parameters()]
    learn(model, 0.01, Budget(max_iterations=0), generator)
    for mine, theirs in zip(before, model.process.parameters(), strict=True):
        assert bool((mine == theirs).all())


def test_an_interruption_keeps_the_best_so_far():
    model, generator = model_of()

    def interrupt(step, bound):
        if step == 1:
            raise KeyboardInterrupt

    outcome = learn(model, 0.01, Budget(), generator, callback=interrupt)
    assert outcome.certificate.stopped == "interrupted"
    assert outcome.certificate.lower <= outcome.certificate.upper


def test_certificates_shift_and_speak():
    stages = [Stage(4, -10.0, -2.0, 0.1, 3)]
    certificate = Certificate(-10.0, -2.0, 4, 100, 0.1, "gap", stages)
    assert certificate.gap == 8.0
    assert certificate.is_met
    moved = certificate.shifted(5.0)
    assert (moved.lower, moved.upper, moved.gap) == pytest.approx((-5.0, 3.0, 8.0), rel=1e-12)
    assert moved.history[0].lower == pytest.approx(-5.0, rel=1e-12)
    assert moved.lower <= -5.0 < 3.0 <= moved.upper
    assert "-10.0 ≤ log p(y) ≤ -2.0 with 4 inducing variables" in str(certificate)


def test_a_certificate_does_not_contradict_itself():
    with pytest.raises(ValueError, match=r"lower end -2\.0 is above the upper one -10\.0"):
        Certificate(-2.0, -10.0, 4, 100, 0.1, "gap")
    with pytest.raises(ValueError, match="lower end"):
        Certificate(-3.0, -2.0, 4, 100, 0.1, "gap", [Stage(4, 1.0, 0.0, 0.1, 3)])
    unknown = Certificate(math.nan, math.nan, 4, 100, 0.1, "fixed")
    assert math.isnan(unknown.gap)
    far = Certificate(-1.0, -1.0, 4, 100, 0.1, "gap").shifted(1e17)
    assert far.lower < 1e17 < far.upper
