import warnings

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from sklearn.exceptions import ConvergenceWarning

from orbitwise import InvariantGPClassifier, InvariantGPRegressor
from orbitwise.estimators.engines import FitSettings, check_engine, engine_for, run_engine
from orbitwise.estimators.invariances import functional_of
from orbitwise.estimators.learned_ranges import check_exact_cost
from orbitwise.functionals import Evaluation, OrbitAverage, OrbitSum
from orbitwise.inference import exact
from orbitwise.inference.fit_result import FitResult
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.optimise.cost import Cost
from orbitwise.likelihoods import Bernoulli, Gaussian
from orbitwise.orbits import PatchOrbit, SampledOrbit
from orbitwise.process import Process
from orbitwise.selection import compare
from orbitwise.transforms import Rotation

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def make_problem(functional=None, likelihood=None, count=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    targets = torch.sin(2 * x.norm(dim=1, keepdim=True))
    if isinstance(likelihood, Bernoulli):
        targets = targets.sign()
    process = Process(None, ScaleKernel(RBFKernel())).double()
    functional = Evaluation() if functional is None else functional.double()
    model = LatentModel(process, functional, likelihood or Gaussian(0.1))
    return model, Observations(Evaluation(), x, targets)


def rotation():
    return OrbitAverage(SampledOrbit(Rotation(), -0.3, 0.3, num_samples=8))


def fit(engine, problem=None, **settings) -> FitResult:
    model, rows = make_problem() if problem is None else problem
    generator = torch.Generator().manual_seed(0)
    torch.randn(
        rows.x.shape, generator=generator, dtype=torch.float64
    )  # other numbers than those of the data
    return run_engine(engine, model, (rows,), FitSettings(generator, **settings))


def test_auto_goes_by_rows_and_likelihood():
    assert engine_for(60) == "exact"
    assert engine_for(60, exact_serves=False) == "collapsed"
    assert engine_for(2000) == "collapsed"
    assert engine_for(6000) == "variational"
    with pytest.raises(ValueError, match="Gaussian"):
        check_engine("exact", Bernoulli())
    with pytest.raises(ValueError, match="inference must be"):
        check_engine("magic", Gaussian())


def test_collapsed_with_many_inducing_points_reaches_the_exact_evidence():
    exact = fit("exact", max_iterations=30)
    sparse = fit("collapsed", num_inducing=60, max_iterations=30)
    assert exact.kind == "exact"
    assert sparse.kind == "lower bound"
    assert sparse.log_evidence == pytest.approx(exact.log_evidence, abs=0.5)
    assert sparse.log_evidence <= exact.log_evidence + 1e-3


def test_variational_comes_near_the_collapsed_bound():
    collapsed = fit("collapsed", num_inducing=60, max_iterations=30)
    stochastic = fit("variational", num_inducing=60, num_steps=240, batch_size=60)
    assert stochastic.log_evidence == pytest.approx(collapsed.log_evidence, abs=8)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    means = [found.posterior.moments(found.functional, x).mean.detach() for found in (collapsed, stochastic)]
    torch.testing.assert_close(means[0], means[1], atol=0.1, rtol=0.1)


@pytest.mark.parametrize("engine", ["exact", "collapsed"])
def test_a_rotation_is_learned_where_the_data_are_rotation_invariant(engine):
    settings = {"num_nodes": 8, "num_inducing": 60, "max_iterations": 15}
    model, rows = make_problem(rotation())
    start = model.functional.orbit.bounds.half_width.item()
    found = fit(engine, (model, rows), **settings)
    assert model.functional.orbit.bounds.half_width.item() > 2 * start
    assert found.log_evidence > fit(engine, **settings).log_evidence


def test_nodes_cost_an_error_bar_only_where_they_are_drawn():
    assert fit("exact", max_iterations=2).standard_error == 0
    assert fit("exact", make_problem(rotation()), num_nodes=4, max_iterations=2).standard_error > 0


def test_tilted_likelihoods_train():
    model, rows = make_problem(likelihood=Bernoulli())
    found = fit("collapsed", (model, rows), num_inducing=30, max_iterations=12)
    mean = found.posterior.moments(Evaluation(), rows.x).mean.detach()
    assert float((mean.sign() == rows.targets).double().mean()) > 0.85
    assert found.history[-1] > found.history[0]
    with pytest.raises(ValueError, match="under Gaussian noise"):
        found.at_noise(0.1)


@pytest.mark.parametrize("engine", ["exact", "collapsed"])
def test_held_out_moments_are_leave_one_out(engine):
    model, rows = make_problem(count=12)
    found = fit("exact", (model, rows), max_iterations=5)
    found = found if engine == "exact" else fit(engine, (model, rows), num_inducing=12, max_iterations=1)
    keep = torch.arange(12) != 3
    for noise in (found.noise, 0.3):
        variances = torch.full((11,), noise).double()
        others = Evaluation().atoms(rows.x[keep])
        rest = exact.condition(model.process, others, rows.targets[keep], variances)
        expected = rest.moments(Evaluation(), rows.x[3:4]).mean.detach().numpy()[0]
        left_out = found.at_noise(noise).held_out()
        held_out = left_out.mean[3].numpy()
        error = 1e-3 if engine == "collapsed" else 1e-7
        np.testing.assert_allclose(held_out, expected, rtol=1e-5, atol=error)
        variance = rest.moments(Evaluation(), rows.x[3:4]).variance.item()
        assert left_out.variance[3].tolist() == pytest.approx([variance] * len(expected), abs=10 * error)


def test_an_exact_fit_factorises_its_matrix_once(monkeypatch):
    counted = []
    factorise = exact.cholesky
    monkeypatch.setattr(exact, "cholesky", lambda matrix: counted.append(1) or factorise(matrix))
    x, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 3
    for kind in (InvariantGPClassifier, InvariantGPRegressor):
        counted.clear()
        # leaving out under other noise factorises again
        settings = {"noise": "evidence"} if kind is InvariantGPClassifier else {}
        kind(max_iterations=0, **settings).fit(x, y)
        assert len(counted) == 1


class KilledError(Exception):
    pass


def kill_at(count: int):
    seen = []

    def callback(step: int, bound: float) -> None:
        seen.append(bound)
        if len(seen) == count:
            raise KilledError

    return callback


RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(30, 16))
SMALL = {"max_iterations": 8, "num_steps": 90, "num_inducing": 8, "num_nodes": 2, "batch_size": 10}


@pytest.mark.parametrize("engine", ["exact", "collapsed", "variational"])
@pytest.mark.parametrize("kind", [InvariantGPClassifier, InvariantGPRegressor])
def test_a_fit_that_was_killed_goes_on_from_its_checkpoint(tmp_path, engine, kind):
    y = np.where(ROWS.sum(1) > 0, 1, 0) if kind is InvariantGPClassifier else np.sin(ROWS.sum(1))
    settings = {**SMALL, "invariance": "rotation", "image_shape": (4, 4), "inference": engine}
    whole = kind(**settings, random_state=0).fit(ROWS, y)
    model = kind(**settings, random_state=0, checkpoint=str(tmp_path))
    with pytest.raises(KilledError):
        model.set_params(callback=kill_at(60 if engine == "variational" else 5)).fit(ROWS, y)
    steps: list[int] = []
    model.set_params(callback=lambda step, _: steps.append(step)).fit(ROWS, y)
    assert model.history_ == whole.history_
    assert model.log_evidence_ == whole.log_evidence_
    assert model.orbit_.learned() == whole.orbit_.learned()
    new = ROWS[::-1] + 0.1
    np.testing.assert_array_equal(model.predict(new), whole.predict(new))
    if engine == "variational":
        assert steps[0] > 0


def test_another_fit_does_not_go_on_from_it(tmp_path):
    y = np.sin(ROWS.sum(1))
    model = InvariantGPRegressor(max_iterations=3, random_state=0, checkpoint=str(tmp_path)).fit(ROWS, y)
    for other in (y + 0.1 * ROWS[:, 0], y):
        seed = 1 if other is y else 0
        plain = InvariantGPRegressor(max_iterations=3, random_state=seed).fit(ROWS, other)
        again = model.set_params(random_state=seed).fit(ROWS, other)
        assert again.log_evidence_ == plain.log_evidence_
    assert len(list(tmp_path.iterdir())) == 3


def test_a_group_whose_kernel_is_isotropic_costs_one_side_only():
    Z = np.random.default_rng(0).normal(size=(80, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        InvariantGPRegressor(invariance="permutation", max_iterations=1).fit(Z, Z.max(1))
        InvariantGPClassifier(invariance="permutation", max_iterations=1).fit(Z, Z.max(1) > 1)


@pytest.mark.parametrize("symmetric", [True, False])
def test_costs_are_counted_by_what_the_process_computes(monkeypatch, symmetric):
    counted = []
    monkeypatch.setattr(
        "orbitwise.estimators.learned_ranges.exact_cost",
        lambda *sizes: counted.append(sizes) or Cost(0.0, 0.0),
    )
    process = Process(None, RBFKernel(ard_num_dims=None if symmetric else 4).double())
    x = torch.randn(7, 4, dtype=torch.float64)
    check_exact_cost(process, functional_of("permutation", 4), x, 50, False)
    check_exact_cost(process, OrbitSum(PatchOrbit((1, 2, 2), (1, 1))), x, 50, False)
    assert counted == [(7, 24, 4, 50, symmetric), (7, 4, 1, 50, False)]


def test_advice_fits_the_orbit_and_names_the_users_line(monkeypatch):
    monkeypatch.setattr("orbitwise.estimators.learned_ranges.exact_cost", lambda *sizes: Cost(1e30, 1.0))
    x = np.random.default_rng(0).normal(size=(12, 2))
    orbit = SampledOrbit(Rotation(), -0.3, 0.3)
    for invariance, says in (
        (orbit, "a smaller num_nodes, or"),
        ("permutation", "an orbit of fewer"),
        (None, "'variational', or"),
    ):
        for kind, y in ((InvariantGPRegressor, x[:, 0]), (InvariantGPClassifier, x[:, 0] > 0)):
            with pytest.warns(UserWarning, match=says) as seen:
                kind(invariance=invariance, max_iterations=0).fit(x, y)
            assert [each.filename for each in seen] == [__file__]
            assert ("num_nodes" in str(seen[0].message)) == (invariance is orbit)
    with pytest.warns(UserWarning, match="Exact inference on 12 rows") as seen:
        compare(x, x[:, 0], [None], max_iterations=0)
    assert seen[0].filename == __file__


@pytest.mark.parametrize(
    ("inference", "likelihood", "seed", "least"),
    [
        ("collapsed", "gaussian", 0, -10),
        ("collapsed", "gaussian", 7, 0),
        ("collapsed", "student_t", 4, -10),
        ("variational", "gaussian", 7, -5),
    ],
)
def test_few_inducing_points_do_not_take_the_function_for_noise(inference, likelihood, seed, least):
    """Six of the twelve points explain nothing of five waves; the evidence of noise alone is -35 to -41."""
    random = np.random.default_rng(seed)
    x = random.uniform(-2, 2, size=(40, 1))
    y = np.sin(5 * x[:, 0]) + 0.1 * random.normal(size=40)
    model = InvariantGPRegressor(
        inference=inference, likelihood=likelihood, num_inducing=12, random_state=seed
    ).fit(x, y)
    assert model.log_evidence_ > least
    assert model.score(x, y) > 0.95
