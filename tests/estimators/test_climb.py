"""How many inducing points are enough: the climb, what cuts it short, and what it leaves."""

import warnings

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from sklearn.exceptions import ConvergenceWarning

import orbitwise
from orbitwise import InvariantGPClassifier, InvariantGPRegressor
from orbitwise.estimators import engines, rungs
from orbitwise.estimators.rungs import Rungs
from orbitwise.inference.optimise.cost import free_memory, machine_memory
from orbitwise.inference.optimise.watching import Reporter
from orbitwise.inference.sparse import climb
from orbitwise.inference.sparse.climb import Size, ladder
from orbitwise.inference.sparse.held_rows import hold_rows

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(90, 3))
Y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * RANDOM.normal(size=90)
LABELS = (X[:, 0] > 0.5).astype(int) + (X[:, 0] * X[:, 1] > 0.0)
NEW = RANDOM.normal(size=(20, 3))
IMAGES = RANDOM.random((60, 6, 6))
BRIGHT = (IMAGES[:, 2:4, 2:4].sum((1, 2)) > 2).astype(int)
QUICK = {"max_iterations": 4, "random_state": 0}


@pytest.fixture(autouse=True)
def short_ladder(monkeypatch):
    """Hyperparameters are learned with 10 inducing points, and rungs are 20, 40, 80 and all."""
    monkeypatch.setattr(engines, "LEARNED_WITH", 10)
    monkeypatch.setattr(climb, "FIRST", 20)


def quietly(estimator, *data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(*data)


def test_the_ladder_is_fixed():
    assert list(ladder(90, 10)) == [20, 40, 80, 90]
    assert list(ladder(90, 30)) == [40, 80, 90]
    assert list(ladder(10, 10)) == []


@pytest.mark.parametrize("inference", ["collapsed", "variational"])
@pytest.mark.parametrize("kind", ["regressor", "classifier", "orbit"])
def test_a_rung_does_not_depend_on_the_climb(inference, kind, monkeypatch):
    # whatever a rung gains, the next one is taken
    monkeypatch.setattr(climb, "RELATIVE_GAIN", -1e6)
    monkeypatch.setattr(climb, "LEAST_GAIN", -1e6)
    settings = {**QUICK, "inference": inference, "num_steps": 6, "batch_size": 30}
    if inference == "variational":
        settings["num_nodes"] = None
    made, data = InvariantGPRegressor, (X, Y)
    if kind != "regressor":
        made, data = InvariantGPClassifier, (X, LABELS)
    if kind == "orbit":
        settings |= {"invariance": "rotation", "image_shape": (6, 6)}
        data = (IMAGES.reshape(60, -1), BRIGHT)
    new = NEW if kind != "orbit" else data[0][:5]
    model = quietly(made(**settings), *data)
    assert model.num_inducing_ > 10
    assert [rung["num_inducing"] for rung in model.climb_][:2] == [10, 20]
    again = quietly(made(num_inducing=model.num_inducing_, **settings), *data)
    assert again.inducing_stopped_by_ == "given"
    assert again.num_inducing_ == model.num_inducing_
    assert again.noise_ == model.noise_
    assert again.log_evidence_ == pytest.approx(model.log_evidence_, rel=1e-9)
    answers = [each.predict(new) for each in (model, again)]
    if kind == "regressor":
        np.testing.assert_allclose(*answers, rtol=1e-9, atol=1e-12)
    else:
        np.testing.assert_allclose(model.predict_proba(new), again.predict_proba(new), rtol=1e-9)


def test_all_rows_are_exact_inference():
    model = quietly(InvariantGPRegressor(inference="collapsed", num_inducing=90, **QUICK), X, Y)
    assert model.num_inducing_ == len(X)
    kernel = model.kernel_
    exact = InvariantGPRegressor(kernel, inference="exact", noise=model.noise_, max_iterations=0).fit(X, Y)
    mine, others = (each.predict(NEW, return_std=True) for each in (model, exact))
    np.testing.assert_allclose(mine, others, rtol=1e-4, atol=1e-5)
    assert model.log_evidence_ == pytest.approx(exact.log_evidence_, abs=0.05)
    # the noise is the best under this kernel, not the one that few inducing points needed
    around = [
        InvariantGPRegressor(kernel, noise=factor * model.noise_, max_iterations=0).fit(X, Y)
        for factor in (0.8, 1.25)
    ]
    assert exact.log_evidence_ >= max(each.log_evidence_ for each in around)


def test_more_inducing_points_predict_better():
    model = quietly(InvariantGPRegressor(inference="collapsed", **QUICK), X, Y)
    losses = [rung["loss"] for rung in model.climb_]
    assert losses[-1] < losses[0] - 0.05
    assert model.inducing_stopped_by_ in ("enough", "complete")
    few = quietly(InvariantGPRegressor(inference="collapsed", num_inducing=10, **QUICK), X, Y)
    assert few.num_inducing_ == 10
    truth = np.sin(2 * NEW[:, 0]) * NEW[:, 1]
    errors = [np.abs(each.predict(NEW) - truth).mean() for each in (model, few)]
    assert errors[0] < errors[1]


@pytest.mark.parametrize(
    ("argument", "value", "reason"),
    [("max_seconds", 1e5, "max_seconds"), ("max_memory", 100.0, "memory")],
)
def test_time_and_memory_cut_the_climb_short(argument, value, reason, monkeypatch):
    if reason == "max_seconds":
        monkeypatch.setattr(Reporter, "allows", lambda self, seconds: False)
    model = InvariantGPClassifier(inference="collapsed", random_state=0, **{argument: value})
    with pytest.warns(ConvergenceWarning, match=f"10 inducing points.*raise {argument}"):
        model.fit(X, LABELS)
    assert (model.num_inducing_, model.inducing_stopped_by_) == (10, reason)
    assert len(model.climb_) == 1
    assert np.isfinite(model.predict_proba(NEW)).all()
    same = quietly(InvariantGPClassifier(inference="collapsed", num_inducing=10, random_state=0), X, LABELS)
    # without memory rows are streamed, which rounds otherwise, and the scale of scores is at a flat minimum
    np.testing.assert_allclose(model.predict_proba(NEW), same.predict_proba(NEW), rtol=1e-6)


def test_a_fit_out_of_time_does_not_climb():
    model = InvariantGPRegressor(inference="collapsed", max_seconds=1e-6)
    with pytest.warns(ConvergenceWarning, match="max_seconds"):
        model.fit(X, Y)
    assert (model.num_inducing_, model.inducing_stopped_by_) == (10, "max_seconds")
    assert np.isfinite(model.predict(NEW)).all()


def test_what_takes_too_long_is_not_begun():
    reporter = Reporter(max_seconds=10.0, clock=lambda: 0.0)
    assert reporter.allows(9.0)
    assert not reporter.allows(11.0)
    assert not reporter.stopped


def test_memory_lets_the_climb_begin():
    size = Size(len(X), 1, 3)
    settings = {"inference": "collapsed", "max_memory": size.memory(20), **QUICK}
    model = quietly(InvariantGPRegressor(**settings), X, Y)
    assert (model.num_inducing_, model.inducing_stopped_by_) == (20, "memory")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "memory"),
        (ValueError("singular"), "failed"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_a_rung_that_fails_leaves_the_one_before(monkeypatch, error, reason):
    at = Rungs.at

    def failing(self, count):
        if count == 40:
            raise error
        return at(self, count)

    settings = {"inference": "collapsed", "random_state": 0}
    twenty = quietly(InvariantGPRegressor(num_inducing=20, **settings), X, Y)
    monkeypatch.setattr(Rungs, "at", failing)
    with pytest.warns(ConvergenceWarning, match="Predictions use 20 inducing points"):
        model = InvariantGPRegressor(**settings).fit(X, Y)
    assert (model.num_inducing_, model.inducing_stopped_by_) == (20, reason)
    np.testing.assert_allclose(model.predict(NEW), twenty.predict(NEW), rtol=1e-9)


def test_other_errors_are_raised(monkeypatch):
    def failing(self, count):
        raise RuntimeError("a fault")

    monkeypatch.setattr(Rungs, "at", failing)
    with pytest.raises(RuntimeError, match="a fault"):
        quietly(InvariantGPRegressor(inference="collapsed", **QUICK), X, Y)


def test_a_rung_that_predicts_worse_is_not_taken(monkeypatch):
    at = Rungs.at

    def worse(self, count):
        found = at(self, count)
        return found if count == 20 else type(found)(**{**vars(found), "losses": found.losses + 1})

    monkeypatch.setattr(Rungs, "at", worse)
    model = quietly(InvariantGPRegressor(inference="collapsed", **QUICK), X, Y)
    assert (model.num_inducing_, model.inducing_stopped_by_) == (20, "enough")
    assert [rung["num_inducing"] for rung in model.climb_] == [10, 20, 40]


@pytest.mark.parametrize("likelihood", ["stick_breaking", "dirichlet", "softmax"])
def test_likelihoods_without_leave_one_out_climb_by_their_bound(likelihood):
    model = quietly(InvariantGPClassifier(likelihood=likelihood, inference="collapsed", **QUICK), X, LABELS)
    losses = [rung["loss"] for rung in model.climb_]
    assert len(losses) > 1
    assert model.num_inducing_ > 10
    assert -model.log_evidence_ / len(X) == pytest.approx(min(losses), rel=1e-6)
    assert np.isfinite(model.predict_proba(NEW)).all()


def test_counts_climb():
    counts = np.round(np.exp(1 + Y)).astype(int)
    model = quietly(InvariantGPRegressor(likelihood="poisson", inference="collapsed", **QUICK), X, counts)
    assert model.num_inducing_ > 10
    assert (model.predict(NEW) > 0).all()


def test_weights_count_as_repetitions():
    weight = 1.0 + (np.arange(90) % 3 == 0)
    repeated = np.repeat(np.arange(90), weight.astype(int))
    settings = {"inference": "collapsed", "num_inducing": 90, **QUICK}
    weighted = quietly(InvariantGPRegressor(**settings), X, Y, weight)
    others = quietly(InvariantGPRegressor(**settings), X[repeated], Y[repeated])
    np.testing.assert_allclose(weighted.predict(NEW), others.predict(NEW), rtol=1e-4, atol=1e-5)
    assert weighted.log_evidence_ == pytest.approx(others.log_evidence_, abs=0.01)
    assert weighted.noise_ == pytest.approx(others.noise_, rel=0.02)


def test_zero_iterations_keep_the_noise():
    settings = {"inference": "collapsed", "max_iterations": 0, "random_state": 0}
    many, few = (quietly(InvariantGPRegressor(num_inducing=n, **settings), X, Y) for n in (90, 10))
    assert many.num_inducing_ == 90
    assert many.noise_ == pytest.approx(few.noise_)


def test_the_certificate_is_that_of_the_last_rung():
    model = quietly(InvariantGPRegressor(inference="collapsed", **QUICK), X, Y)
    assert model.certificate_.num_inducing == model.num_inducing_
    assert model.certificate_.lower == model.log_evidence_


def test_a_stored_model_knows_its_climb(tmp_path):
    model = quietly(InvariantGPClassifier(inference="collapsed", **QUICK), X, LABELS)
    orbitwise.save(model, tmp_path / "model.orbitwise")
    loaded = orbitwise.load(tmp_path / "model.orbitwise")
    assert loaded.num_inducing == "auto"
    assert (loaded.num_inducing_, loaded.inducing_stopped_by_) == (
        model.num_inducing_,
        model.inducing_stopped_by_,
    )
    assert [rung["loss"] for rung in loaded.climb_] == [rung["loss"] for rung in model.climb_]
    np.testing.assert_array_equal(loaded.predict_proba(NEW), model.predict_proba(NEW))


def test_a_fit_that_was_killed_climbs_again(tmp_path):
    settings = {"inference": "collapsed", "checkpoint": str(tmp_path), **QUICK}
    whole = quietly(InvariantGPRegressor(**{**settings, "checkpoint": None}), X, Y)

    class KilledError(Exception):
        pass

    def kill(step, bound):
        if step == 2:
            raise KilledError

    with pytest.raises(KilledError):
        quietly(InvariantGPRegressor(callback=kill, **settings), X, Y)
    resumed = quietly(InvariantGPRegressor(**settings), X, Y)
    assert resumed.num_inducing_ == whole.num_inducing_
    np.testing.assert_array_equal(resumed.predict(NEW), whole.predict(NEW))


def test_a_warm_start_climbs():
    model = quietly(InvariantGPRegressor(inference="collapsed", warm_start=True, **QUICK), X, Y)
    first = model.log_evidence_
    assert quietly(model, X, Y).log_evidence_ > first - 1
    assert model.num_inducing_ > 10


def test_phases_are_announced():
    class Listener:
        def __init__(self):
            self.seen = []

        def begin(self, phase, later):
            self.seen.append(str(phase))

        def __call__(self, step, bound):
            pass

    listener = Listener()
    quietly(InvariantGPRegressor(inference="collapsed", callback=listener, **QUICK), X, Y)
    assert "more inducing points, 20 inducing points" in listener.seen


def test_memory_is_measured():
    free = free_memory(torch.device("cpu"))
    whole = machine_memory()
    assert free is None or whole is None or 0 < free <= whole
    needed = [Size(1000, 16, 100).memory(count) for count in (500, 1000)]
    # A alone takes 8 bytes for each row and inducing point
    assert needed[1] > 8 * 1000 * 1000
    assert needed[1] > 2 * needed[0]


def test_many_rows_start_from_some_of_them(monkeypatch):
    whole = InvariantGPRegressor(random_state=0).fit(X, Y)
    monkeypatch.setattr(engines, "EXACT_ROWS", 60)
    monkeypatch.setattr(engines, "START_ROWS", 40)
    some = InvariantGPRegressor(random_state=0).fit(X, Y)
    assert whole.inference_ == some.inference_ == "exact"
    assert some.converged_
    assert some.log_evidence_ == pytest.approx(whole.log_evidence_, abs=0.2)
    assert len(some.history_) < len(whole.history_)


@pytest.mark.parametrize("num_inducing", [10, 40, "auto"])
def test_labels_are_predicted_with_lengthscales_of_held_out_labels(num_inducing, tmp_path):
    # far too long for these labels, and next to nothing is learned
    kernel = ScaleKernel(RBFKernel())
    kernel.base_kernel.lengthscale = 8.0
    settings = {"kernel": kernel, "inference": "collapsed", "num_inducing": num_inducing}
    by_labels, by_evidence = (
        quietly(InvariantGPClassifier(noise=noise, max_iterations=0, random_state=0, **settings), X, LABELS)
        for noise in ("auto", "evidence")
    )
    lengthscales = [each.posterior_.process.kernel.base_kernel for each in (by_labels, by_evidence)]
    short, long = (each.lengthscale.item() for each in lengthscales)
    assert short < 6 < long
    assert by_labels.leave_one_out_log_loss_ < by_evidence.leave_one_out_log_loss_
    # kernel and evidence are those of the evidence
    assert by_labels.kernel_.base_kernel.lengthscale.item() == pytest.approx(long)
    if num_inducing != "auto":
        assert by_labels.log_evidence_ == pytest.approx(by_evidence.log_evidence_, abs=1e-6)
    orbitwise.save(by_labels, tmp_path / "model.orbitwise")
    back = orbitwise.load(tmp_path / "model.orbitwise")
    np.testing.assert_array_equal(back.predict_proba(NEW), by_labels.predict_proba(NEW))
    assert back.kernel_.base_kernel.lengthscale.item() == pytest.approx(long)


def test_noise_is_chosen_with_some_of_many_rows(monkeypatch):
    settings = {"inference": "collapsed", "num_inducing": 20, "noise": "leave_one_out", **QUICK}
    whole = quietly(InvariantGPClassifier(**settings), X, LABELS)
    monkeypatch.setattr(rungs, "ROWS_FOR_NOISE", 50)
    some = quietly(InvariantGPClassifier(**settings), X, LABELS)
    posterior, (all_rows,) = some.fit_result_.posterior, some.model_.observations
    inducing, targets = posterior.inducing, all_rows.targets
    held = hold_rows(posterior.process, some.functional_, inducing, all_rows.x, targets)
    torch.testing.assert_close(some.fit_result_.held_out().mean, held.held_out_means(some.noise_))
    rows = torch.tensor([0, 1, 5, 40])
    chosen = held.held_out_means(some.noise_, rows)
    torch.testing.assert_close(chosen, held.held_out_means(some.noise_)[rows])
    assert 1 / 20 < some.noise_ / whole.noise_ < 20
