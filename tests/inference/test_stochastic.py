"""Stochastic training: what it reaches, its options, explosions, interruptions and bad input."""

import warnings
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior
from torch import Tensor, nn

from orbitwise.functionals import Combination, Evaluation, Functional, Gradient, OrbitAverage
from orbitwise.functionals.functional import Atoms
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.held_rows import hold_rows
from orbitwise.inference.sparse.inducing import (
    EstimatedProcess,
    Estimates,
    RowsNotFiniteError,
    inducing_factor,
)
from orbitwise.inference.sparse.posterior import SparsePosterior, WhitenedFactor
from orbitwise.inference.stochastic import trainer as stochastic
from orbitwise.inference.stochastic.trainer import Rates, StochasticTrainer
from orbitwise.inference.stochastic.trainer_state import BLOCK, BLOCKS, DECAY_STEPS
from orbitwise.inference.stochastic.variational import bound_terms
from orbitwise.likelihoods import Bernoulli, Dirichlet, Gaussian, Likelihood, Poisson, Softmax, StudentT
from orbitwise.likelihoods.bernoulli import stick_breaking_targets
from orbitwise.likelihoods.dirichlet import one_hot
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.orbits.orbit import Group
from orbitwise.process import Process
from orbitwise.transforms import Rotation, coordinate_permutations, turns
from tests.contracts.annotations import unchecked

ROWS, SIZE = 40, 8


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Z = seeded(ROWS, 2), seeded(SIZE, 2, seed=1)
RADIUS = X.norm(dim=1, keepdim=True)
Y = (2 * RADIUS).sin() + 0.1 * seeded(ROWS, 1, seed=2)
SIGNS = torch.where(Y > 0, 1.0, -1.0).double()
FINITE = OrbitAverage(FiniteOrbit(turns(4)))
HALF = Combination([Evaluation()], [0.5])


def drawn(width: float = 0.5, num_samples: int = 8) -> OrbitAverage:
    return OrbitAverage(SampledOrbit(Rotation(), -width, width, num_samples=num_samples).double())


def make(
    likelihood: Likelihood | None = None,
    targets: Tensor = Y,
    functional: Functional | None = None,
    fixed: bool = False,
    process: Process | EstimatedProcess | None = None,
    rows: Observations | None = None,
    **options,
) -> StochasticTrainer:
    process = Process(None, ScaleKernel(RBFKernel())).double() if process is None else process
    likelihood = Gaussian(0.1) if likelihood is None else likelihood
    if fixed:
        process.requires_grad_(False)
        likelihood.requires_grad_(False)
    functional = drawn() if functional is None else functional
    options = {"batch_size": 16, **options}
    return StochasticTrainer(
        LatentModel(process, functional, likelihood),
        Observations(Evaluation(), X, targets) if rows is None else rows,
        Z,
        torch.Generator().manual_seed(0),
        **options,
    )


def test_training_raises_the_bound_and_widens_the_orbit():
    trainer = make(batch_size=20)
    assert not trainer.run(40, warm_up=10), "too few steps to tell"
    bounds = torch.tensor(trainer.history.bound)
    assert bounds[-10:].mean() > bounds[5:15].mean() + 3
    orbit = trainer.model.functional.orbit
    assert (orbit.upper - orbit.lower).item() > 1.2, "the function is invariant to rotations"
    assert trainer.history.back_offs == 0
    assert len(trainer.history.bound) == 40


def test_only_q_moves_during_the_warm_up():
    trainer = make()
    before = [
        p.detach().clone()
        for p in (*trainer.model.prior.parameters(), *trainer.model.functional.parameters())
    ]
    prior = trainer.q.mean.clone()
    trainer.run(5, warm_up=5)
    after = [*trainer.model.prior.parameters(), *trainer.model.functional.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not torch.equal(trainer.q.mean, prior)
    trainer.run(1)
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("with_mean", [False, True])
def test_one_full_natural_step_on_exact_rows_is_the_polished_optimum(with_mean):
    mean = ConstantMean().double()
    mean.constant.data.fill_(0.4)
    process = Process(mean if with_mean else None, ScaleKernel(RBFKernel())).double()
    trainer = make(functional=FINITE, fixed=True, process=process, batch_size=ROWS)
    trainer.run(1)
    found = hold_rows(process, FINITE, Z, X, Y)
    best = found.optimum(trainer.model.likelihood.noise)
    torch.testing.assert_close(trainer.q.precision, best.precision)
    torch.testing.assert_close(trainer.q.mean, best.mean)
    bound = trainer.estimate(2)
    assert bound.mean == pytest.approx(found.bound(trainer.model.likelihood.noise).item(), rel=1e-9)
    assert bound.standard_error == pytest.approx(0, abs=1e-9)


def test_the_bound_that_training_settles_by_knows_the_mean_of_any_quadratic_likelihood():
    mean = ConstantMean().double()
    mean.constant.data.fill_(0.4)
    process = Process(mean, ScaleKernel(RBFKernel())).double()
    trainer = make(Bernoulli(), SIGNS, FINITE, fixed=True, process=process, batch_size=ROWS)
    trainer.run(60)
    at_the_mean = trainer._collapsed_bound()
    assert at_the_mean == pytest.approx(trainer.estimate(1).mean, abs=1e-3)
    mean.constant.data.fill_(-0.4)
    assert abs(trainer._collapsed_bound() - at_the_mean) > 0.1


def test_bernoulli_on_exact_rows_climbs_to_a_fixed_point():
    trainer = make(Bernoulli(), SIGNS, FINITE, fixed=True, batch_size=ROWS)
    trainer.run(15)
    gains = torch.tensor(trainer.history.bound).double().diff()
    assert gains.min() > -1e-5, "coordinate ascent never falls"
    assert gains[-1] < 1e-4 < gains[0]


def test_a_second_run_goes_on_where_the_first_stopped():
    """The first rates after a start are large; a run that began like that again would forget q."""
    trainer = make(fixed=True, functional=FINITE, batch_size=8)
    trainer.run(30)
    before = trainer.estimate(1).mean
    trainer.run(1)
    assert trainer.estimate(1).mean > before - 3
    trainer.replace_inducing(seeded(12, 2, seed=7))
    assert trainer.age == 0
    assert trainer.q.mean.shape == (12, 1)
    trainer.run(20)
    assert trainer.estimate(1).mean > before, "more inducing points"


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        (Poisson(), (1 + RADIUS).round()),
        (StudentT(0.3), torch.where(torch.arange(ROWS)[:, None] == 3, 9.0, Y)),
        (Softmax(3, 64), one_hot(torch.arange(ROWS) % 3, 3)),
    ],
    ids=["Poisson", "StudentT", "Softmax"],
)
def test_natural_steps_of_general_likelihoods_find_a_stationary_q(likelihood, targets):
    """At the end the gradient of the bound by mean and factor of q vanishes."""
    trainer = make(likelihood, targets, FINITE, fixed=True, batch_size=ROWS)
    trainer.run(12)
    q = WhitenedFactor(SIZE, targets.shape[1], shared=False)
    with torch.no_grad():
        q.mean.copy_(trainer.q.mean)
        factor = torch.linalg.cholesky(torch.linalg.inv(trainer.q.precision))
        q.raw.copy_(factor.tril(-1) + torch.diag_embed(factor.diagonal(dim1=-1, dim2=-2).log()))
    lower, rows = inducing_factor(trainer.model.prior, Z), FINITE.atoms(X)
    terms = bound_terms(trainer.model.prior, likelihood, q, Z, lower, rows, targets.double())
    gradients = torch.autograd.grad(terms.data - q.divergence(), list(q.parameters()))
    assert max(each.abs().max().item() for each in gradients) < 0.02
    assert trainer.history.bound[-1] > trainer.history.bound[0]


def test_general_likelihoods_refuse_drawn_rows_at_once():
    with pytest.raises(ValueError, match=r"Poisson takes exact or frozen rows only.*biased"):
        make(Poisson(), RADIUS.round(), drawn())
    frozen = OrbitAverage(drawn().orbit.freeze(8, torch.Generator().manual_seed(0)))
    make(Poisson(), RADIUS.round(), frozen).run(3)


def test_large_counts_are_reached_without_overshooting():
    """exp(f) of a whole Newton step from 0 would be infinite: the rate is halved until the bound rises."""
    trainer = make(Poisson(), 1e4 * (1 + RADIUS).round(), FINITE, fixed=True, batch_size=ROWS)
    trainer.run(20)
    assert trainer.history.back_offs == 0
    for before, after in pairwise(trainer.history.bound):
        assert after > before - 1e-9 * abs(before), "where it has arrived, rounding is left"
    rates = Poisson().predict(SparsePosterior(trainer.model.prior, Z, trainer.q).moments(FINITE, X))
    assert (rates.log() - trainer.observations.targets.log()).mean().abs() < 1


def test_recognition_learns_tilts_with_the_bound():
    options = {"fixed": True, "batch_size": ROWS, "functional": drawn().requires_grad_(False)}
    remembered = make(Bernoulli(), SIGNS, **options)
    network = make(Bernoulli(), SIGNS, tilt="recognition", rates=Rates(variational=0.1), **options)
    assert remembered.recognition is None
    start = network.recognition(X, SIGNS)
    for trainer in (remembered, network):
        trainer.run(25, warm_up=25)
    learned = network.estimate(2).mean
    assert network.recognition(X, SIGNS).std() > 0.01
    assert learned > remembered.estimate(2).mean - 1.0
    network.recognition = lambda x, targets: start
    assert learned > network.estimate(2).mean + 0.05, "better than the tilts it started from"


def test_recognition_is_for_tilts():
    with pytest.raises(ValueError, match="no tilts, so it takes no recognition network"):
        make(tilt="recognition")
    with unchecked(), pytest.raises(ValueError, match="'remembered' or 'recognition'"):
        make(Bernoulli(), SIGNS, tilt="guessed")


def test_adam_on_q_with_all_pairs_is_the_papers_procedure():
    """It goes where natural gradients go, only slower."""
    paper = make(
        functional=drawn(num_samples=4).requires_grad_(False),
        fixed=True,
        q_update="adam",
        method="all_pairs",
        rates=Rates(variational=0.1),
        batch_size=ROWS,
    )
    natural = make(functional=drawn(num_samples=4).requires_grad_(False), fixed=True, batch_size=ROWS)
    assert isinstance(paper.q, WhitenedFactor)
    with unchecked():  # faster
        paper.run(60)
        natural.run(12)
        reached, best = paper.estimate(10), natural.estimate(10)
    assert paper.history.bound[0] < best.mean - 30
    assert reached.mean > best.mean - 5
    posterior = SparsePosterior(paper.model.prior, Z, paper.q)
    other = SparsePosterior(paper.model.prior, Z, paper.q.natural())
    mine, theirs = (each.moments(FINITE, X) for each in (posterior, other))
    torch.testing.assert_close(mine.mean, theirs.mean)
    torch.testing.assert_close(mine.variance, theirs.variance)
    with unchecked(), pytest.raises(ValueError, match="'natural' or 'adam'"):
        make(q_update="newton")


def test_inducing_variables_in_f():
    trainer = make(functional=FINITE, fixed=True, inducing_functional=FINITE, batch_size=ROWS)
    in_g = make(functional=FINITE, fixed=True, batch_size=ROWS)
    for each in (trainer, in_g):
        each.run(1)
    assert trainer.estimate(1).mean > in_g.estimate(1).mean, "f(z) tells more of f than g(z)"
    posterior = SparsePosterior(trainer.model.prior, trainer.inducing_rows(), trainer.q)
    found = hold_rows(trainer.model.prior, FINITE, trainer.inducing_rows(), X, Y)
    other = SparsePosterior(
        trainer.model.prior,
        FINITE.atoms(Z),
        found.optimum(trainer.model.likelihood.noise),
        found.projected.lower,
    )
    torch.testing.assert_close(posterior.moments(FINITE, X).mean, other.moments(FINITE, X).mean)
    with pytest.raises(ValueError, match="change with every draw"):
        make(functional=FINITE, inducing_functional=drawn()).run(1)


class Mixture(EstimatedProcess):
    """No functional of one g: f(x) = s·g(x) + an independent trend known by noisy features only."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.tensor(-2.5, dtype=torch.float64))

    def inducing_covariance(self, inducing: Tensor) -> Tensor:
        return torch.exp(-0.5 * torch.cdist(inducing, inducing).square())

    def estimates(self, x: Tensor, inducing: Tensor, generator: torch.Generator | None) -> Estimates:
        noise = 0.3 * torch.randn(2, *x.shape, generator=generator, dtype=x.dtype)
        cross = self.raw.exp() * torch.exp(-0.5 * torch.cdist(x + noise, inducing).square()) / 2
        square = torch.exp(-0.5 * (noise[0] - noise[1]).square().sum(-1))
        trend = 0.01 * ((x + noise[0]) * (x + noise[1])).sum(-1)
        return Estimates(cross.transpose(0, 1), self.raw.exp().square() * square + trend)


def test_a_process_known_by_estimates_alone_is_trained():
    """LIM 6: unbiased estimates of k_fu and k_f(x, x) are all that is needed."""
    process = Mixture()
    trainer = make(process=process, functional=Evaluation(), rates=Rates(kernel=0.1))
    trainer.run(25, warm_up=5)
    assert process.raw.item() > -2.0, "the scale was far too small"
    bounds = torch.tensor(trainer.history.bound)
    assert bounds[-5:].mean() > bounds[3:8].mean() + 3
    moments = SparsePosterior(process, Z, trainer.q).moments(
        Evaluation(), X, torch.Generator().manual_seed(0)
    )
    assert bool((moments.variance > 0).all())
    assert torch.corrcoef(torch.cat([moments.mean, Y], 1).detach().T)[0, 1] > 0.5
    found = hold_rows(process, Evaluation(), Z, X, Y, torch.Generator().manual_seed(0))
    assert found.bound(0.1).isfinite()
    with pytest.raises(ValueError, match="leave inducing_functional out"):
        make(process=process, functional=Evaluation(), inducing_functional=FINITE)


def test_inducing_points_learn_where_they_may():
    trainer = make(rates=Rates(inducing=0.05))
    trainer.run(5)
    assert not torch.allclose(trainer.inducing, Z)
    still = make()
    still.run(5)
    assert torch.equal(still.inducing, Z)


def test_hyperpriors_are_part_of_the_objective():
    kernel = RBFKernel(lengthscale_prior=GammaPrior(2000.0, 1000.0))
    trainer = make(process=Process(None, kernel).double(), rates=Rates(kernel=0.3, decay_from=1.0))
    trainer.run(25)
    assert kernel.lengthscale.item() == pytest.approx(2.0, abs=0.2)


def test_an_explosion_is_taken_back_with_smaller_steps():
    trainer = make(rates=Rates(natural=50.0), functional=FINITE, fixed=True, batch_size=ROWS)
    trainer.run(30)
    assert 5 <= trainer.history.back_offs <= stochastic.MAX_BACK_OFFS
    assert len(trainer.history.reasons) == trainer.history.back_offs
    found = hold_rows(trainer.model.prior, FINITE, Z, X, Y)
    best = found.bound(trainer.model.likelihood.noise).item()
    assert trainer.estimate(1).mean == pytest.approx(best, abs=0.1), "in the end it arrives"


def test_a_bound_that_collapses_without_failing_is_an_explosion():
    trainer = make(rates=Rates(kernel=200.0, orbit=0.0), batch_size=ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        trainer.run(30, warm_up=10)
    assert any("the bound fell to" in each for each in trainer.history.reasons)
    assert trainer.estimate().mean > trainer.history.bound[0]


def test_one_that_keeps_exploding_stops_at_the_best_state():
    trainer = make(functional=FINITE, batch_size=ROWS)
    trainer.run(3, warm_up=3)
    before, q = trainer.estimate(1).mean, trainer.q
    calls = []

    def fail(*_: object) -> None:
        calls.append(1)
        raise ValueError("no factorisation")

    trainer._learn = fail
    with pytest.warns(
        RuntimeWarning, match="Steps kept failing; training stopped at the best state so far. Last: no factor"
    ):
        assert not trainer.run(100)
    assert len(calls) == stochastic.MAX_BACK_OFFS + 1
    assert torch.equal(trainer.q.precision, q.precision)
    assert trainer.estimate(1).mean == pytest.approx(before), "kernel and noise were put back, too"


def test_an_error_that_no_step_made_is_raised_at_once():
    trainer = make(functional=FINITE)
    given = trainer.observations
    trainer.observations = replace(given, targets=given.targets[:, [0, 0]])
    with pytest.raises(Exception, match=r"(?i)size|shape|type-check"):
        trainer.run(3)
    assert trainer.history.back_offs == 0


def test_an_interruption_keeps_what_was_learned_and_training_goes_on():
    trainer = make()

    def interrupt(step: int, bound: float) -> None:
        if step == 6:
            raise KeyboardInterrupt

    assert not trainer.run(50, callback=interrupt)
    assert trainer.history.interrupted
    assert len(trainer.history.bound) == 7
    learned = [p.detach().clone() for p in trainer.model.prior.parameters()]
    assert SparsePosterior(trainer.model.prior, Z, trainer.q).moments(FINITE, X).mean.isfinite().all()
    assert all(torch.equal(a, b) for a, b in zip(learned, trainer.model.prior.parameters(), strict=True))
    trainer.run(3)
    assert not trainer.history.interrupted


def test_an_interruption_within_a_step_is_caught(monkeypatch):
    trainer = make()
    trainer.run(2)
    monkeypatch.setattr(trainer, "_loss", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    assert not trainer.run(2)
    assert trainer.history.interrupted
    monkeypatch.undo()
    trainer.run(2)
    assert not trainer.history.interrupted


def test_it_stops_when_the_bound_settles():
    trainer = make(functional=FINITE, fixed=True, batch_size=ROWS)
    with unchecked():  # faster
        assert trainer.run(1000, until_settled=True)
    assert len(trainer.history.bound) == BLOCK * BLOCKS + DECAY_STEPS
    assert not make(fixed=True).run(5, until_settled=True), "too few steps to tell"


def test_a_number_of_steps_is_taken_and_settles_before_its_rates_fall():
    with unchecked():
        for num_steps, settles in ((245, False), (250, True)):
            trainer = make(functional=FINITE, fixed=True, batch_size=ROWS)
            assert trainer.run(num_steps) == settles, "full rates for 60 % of the steps"
            assert len(trainer.history.bound) == num_steps


def test_rates_that_fall_do_not_pass_for_convergence():
    """A kernel that crawls at small rates has far to go, whatever the end of the run looks like."""
    trainer = make(functional=FINITE, batch_size=ROWS, rates=Rates(kernel=0.003))
    with unchecked():
        assert not trainer.run(200)
        assert trainer.history.smoothed[-1] > trainer.history.smoothed[-60] + 1


def test_a_batch_in_which_a_class_never_occurs():
    labels = torch.zeros(ROWS, dtype=torch.long)
    labels[:2] = torch.tensor([1, 2])
    for likelihood, targets in (
        (Dirichlet(), one_hot(labels, 3)),
        (Gaussian(0.1), one_hot(labels, 3)),
        (Bernoulli(), stick_breaking_targets(labels, 3)),
    ):
        trainer = make(likelihood, targets, batch_size=4)
        trainer.run(5)
        assert len(trainer.history.bound) == 5
        assert trainer.history.back_offs == 0


class Broken(Functional):
    """Evaluation that gives NaN for inputs in the right half plane from the second call on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        self.calls += 1
        return Evaluation().lower(torch.where((x[:, :1] > 1) & (self.calls > 4), torch.nan, x))


def test_an_orbit_that_returns_nan_is_named():
    trainer = make(functional=Broken(), batch_size=ROWS)
    trainer.run(2)
    q = trainer.q
    with pytest.raises(RowsNotFiniteError, match=r"orbit returned NaN or infinite points.*of 40 inputs"):
        trainer.run(10)
    assert trainer.history.back_offs == 0
    assert torch.equal(trainer.q.precision, q.precision), "the last good state"
    broken = Broken()
    broken.calls = 4
    with pytest.raises(RowsNotFiniteError):
        make(functional=broken)


class OneDraw(Functional):
    """A user's functional that draws a single point."""

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        points = x[:, None] + torch.randn(x[:, None].shape, generator=generator, dtype=x.dtype)
        one = torch.ones(1, dtype=torch.long)
        return Atoms(points, torch.ones_like(x[:, :1]), None, 0 * one, one, (Group(1),))


def test_a_single_draw_is_refused():
    with pytest.raises(ValueError, match="at least two draws"):
        make(functional=OneDraw())
    with pytest.raises(ValueError, match=r"two draws|equal groups"):
        drawn(num_samples=1)


def test_bad_data_are_refused():
    with pytest.raises(ValueError, match="finite targets"):
        make(targets=torch.where(Y > 0, torch.nan, Y))
    with pytest.raises(ValueError, match="at least one row"):
        make(batch_size=0)
    with pytest.raises(ValueError, match="makes 32 rows of 16 inputs"):
        make(functional=Gradient())
    with unchecked(), pytest.raises(ValueError, match="'halves' or 'all_pairs'"):
        make(method="thirds")
    with pytest.raises(ValueError, match="one weight per row"):
        make(rows=Observations(Evaluation(), X, Y, torch.ones_like(Y)))
    with pytest.raises(ValueError, match="do not merge rows"):
        make(rows=Observations(Evaluation(), X, Y, torch.full_like(Y[:, 0], 2.0), torch.ones_like(Y)))


def test_observations_of_another_functional_are_steps_on_the_functional_of_both():
    trainers = [
        make(functional=FINITE, rows=Observations(HALF, X, Y), fixed=True),
        make(functional=HALF @ FINITE, fixed=True),
    ]
    for trainer in trainers:
        trainer.run(3)
    assert trainers[0].history.bound == trainers[1].history.bound
    plain = make(functional=FINITE, fixed=True)
    plain.run(3)
    assert plain.history.bound != trainers[0].history.bound


def test_single_precision_inputs_train():
    trainer = StochasticTrainer(
        LatentModel(
            Process(None, ScaleKernel(RBFKernel())).double(),
            OrbitAverage(FiniteOrbit(coordinate_permutations(2), num_samples=2)),
            Gaussian(0.1),
        ),
        Observations(Evaluation(), X.float(), Y.float()),
        Z.float(),
        torch.Generator().manual_seed(0),
        16,
    )
    trainer.run(10)
    assert len(trainer.history.bound) == 10
    assert trainer.q.mean.dtype == torch.float64
