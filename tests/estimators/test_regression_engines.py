"""InvariantGPRegressor by the sparse engines: beside exact inference, units, seeds, and what they refuse."""

import pickle

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise import InvariantGPRegressor
from orbitwise.estimators.regression_model import generator_on
from orbitwise.functionals import Evaluation, Gradient, OrbitAverage
from orbitwise.inference.exact import ExactPosterior
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.likelihoods import Gaussian
from orbitwise.orbits import SampledOrbit
from orbitwise.transforms import Rotation

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SPARSE = ["collapsed", "variational"]
SLOPE = (Gradient(), np.ones((1, 2)), np.ones((1, 2)), None)


def fitted(inference, x, y, **settings) -> InvariantGPRegressor:
    settings = {"random_state": 0, "num_inducing": len(x), "num_steps": 60} | settings
    return InvariantGPRegressor(inference=inference, **settings).fit(x, y)


def rotation() -> SampledOrbit:
    return SampledOrbit(Rotation(), -0.5, 0.5, num_samples=6)


def held_rotation() -> SampledOrbit:
    return rotation().double().requires_grad_(False)


@pytest.mark.parametrize("outputs", [0, 2])
def test_collapsed_with_all_points_inducing_is_exact(data, new, outputs):
    x, y = data
    y = 3 + 5 * (np.stack([y, 2 * np.cos(x[:, 0])], axis=1) if outputs else y)
    exact, sparse = (fitted(name, x, y) for name in ("exact", "collapsed"))
    assert (exact.evidence_kind_, sparse.evidence_kind_) == ("exact", "lower bound")
    assert sparse.log_evidence_ == pytest.approx(exact.log_evidence_, abs=1e-2)
    np.testing.assert_allclose(sparse.noise_, exact.noise_, rtol=0.02)
    for noisy in (False, True):
        for kind in ("return_std", "return_cov"):
            ours = sparse.predict(new, include_noise=noisy, **{kind: True})
            theirs = exact.predict(new, include_noise=noisy, **{kind: True})
            for a, b in zip(ours, theirs, strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=0.02, atol=0.02)
    ours, theirs = (m.predict_functional(Gradient(), new, return_std=True) for m in (sparse, exact))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=0.02, atol=0.05)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=0.02, atol=0.05)
    assert sparse.sample_y(new, 3).shape == exact.sample_y(new, 3).shape
    assert isinstance(exact.posterior_, ExactPosterior)
    assert isinstance(sparse.posterior_, SparsePosterior)


def test_at_the_same_hyperparameters_evidence_and_draws_are_the_same(data, new):
    x, y = data
    settings = {"kernel": ScaleKernel(RBFKernel()), "noise": 0.05, "max_iterations": 0}
    exact, sparse = (fitted(name, x, 10 * y, **settings) for name in ("exact", "collapsed"))
    assert sparse.log_evidence_ == pytest.approx(exact.log_evidence_, rel=1e-3)
    assert sparse.noise_ == pytest.approx(0.05)
    assert torch.equal(sparse.kernel_.raw_outputscale, exact.kernel_.raw_outputscale)
    assert not sparse.converged_
    assert all(each.requires_grad for each in sparse.kernel_.parameters())
    np.testing.assert_allclose(sparse.sample_y(new, 2), exact.sample_y(new, 2), rtol=0.05, atol=0.05)


def test_variational_comes_close(data, new):
    exact, sparse = (fitted(name, *data, num_steps=240) for name in ("exact", "variational"))
    assert sparse.evidence_kind_ == "lower bound"
    assert sparse.log_evidence_ == pytest.approx(exact.log_evidence_, abs=6)
    assert sparse.log_evidence_ < exact.log_evidence_ + 0.1
    np.testing.assert_allclose(sparse.predict(new), exact.predict(new), atol=0.25)


@pytest.mark.parametrize("inference", SPARSE)
def test_several_outputs_and_units(data, new, inference):
    x, y = data
    both = np.stack([y, 100 * y + 7], axis=1)
    model = fitted(inference, x, both)
    mean, deviation = model.predict(new, return_std=True)
    assert mean.shape == deviation.shape == (7, 2)
    np.testing.assert_allclose(mean[:, 1], 100 * mean[:, 0] + 7, rtol=1e-6)
    np.testing.assert_allclose(deviation[:, 1], 100 * deviation[:, 0], rtol=1e-6)
    assert model.noise_[1] == pytest.approx(1e4 * model.noise_[0])
    assert model.sample_y(new, 4).shape == (7, 2, 4)
    large, small = (fitted(inference, x, each) for each in (100 * y, y))
    assert large.log_evidence_ == pytest.approx(small.log_evidence_ - len(x) * np.log(100))


@pytest.mark.parametrize("inference", ["exact", *SPARSE])
def test_a_drawn_orbit_is_learned_and_asked_about(data, new, inference):
    x = data[0]
    y = np.sin(2 * np.linalg.norm(x, axis=1))
    orbit = rotation()
    model = fitted(inference, x, y, invariance=orbit, max_iterations=5, num_steps=40, num_nodes=6)
    assert model.inference_ == inference
    assert model.orbit_.upper.item() > orbit.upper.item()
    assert orbit.upper.item() == pytest.approx(0.5, abs=1e-6)
    assert model.log_evidence_error_ > 0
    assert model.predict_functional(Gradient(), new).shape == (14,)
    assert model.predict(new, return_cov=True)[1].shape == (7, 7)
    assert all(value >= 0 for value in model.orbit_errors_.values())
    assert model.insensitivity(new)["all"]["posterior"] >= 0


@pytest.mark.parametrize("inference", SPARSE)
def test_seeds_decide_everything_and_pickles_predict(data, new, inference):
    x, y = data
    settings = {"num_inducing": 10, "num_steps": 30, "max_iterations": 5}
    first, second, other = (fitted(inference, x, y, random_state=s, **settings) for s in (0, 0, 1))
    np.testing.assert_array_equal(first.predict(new), second.predict(new))
    assert first.log_evidence_ == second.log_evidence_
    assert first.log_evidence_ != other.log_evidence_
    again = pickle.loads(pickle.dumps(first.posterior_))
    rows = first.functional_.atoms(torch.from_numpy(new))
    assert torch.equal(again.row_mean(rows), first.posterior_.row_mean(rows))


@pytest.mark.parametrize("inference", SPARSE)
def test_single_precision_lists_and_repeated_rows(data, new, inference):
    x, y = (np.repeat(each.astype(np.float32), 2, axis=0) for each in data)
    settings = {"num_inducing": 25, "num_steps": 30, "max_iterations": 10}
    single = fitted(inference, x, y, **settings)
    assert single.predict(new.astype(np.float32)).dtype == np.float64
    double = fitted(inference, x.astype(np.float64).tolist(), y.astype(np.float64).tolist(), **settings)
    np.testing.assert_allclose(single.predict(new), double.predict(new))


@pytest.mark.parametrize("inference", ["exact", *SPARSE])
@pytest.mark.parametrize("weighted", [False, True])
def test_repeated_rows_tell_the_noise(inference, weighted):
    generator = np.random.default_rng(0)
    x = np.repeat(generator.uniform(-3, 3, size=(40, 1)), 8, axis=0)
    y = np.sin(x[:, 0]) + 0.5 * generator.normal(size=320)
    weight = np.full(320, 2.0) if weighted else None
    steps = 400 if inference == "variational" else None
    model = InvariantGPRegressor(inference=inference, num_inducing=12, num_steps=steps, random_state=0)
    assert model.fit(x, y, sample_weight=weight).noise_ == pytest.approx(0.25, rel=0.25)


def test_noise_of_several_variances_is_refused(data):
    with pytest.raises(ValueError, match="share one noise variance"):
        InvariantGPRegressor(likelihood=Gaussian(0.1, num_outputs=2)).fit(*data)


def test_observations_of_tiny_targets_are_taken(data):
    x, y = data
    slopes = (Gradient(), x[:3], np.full((3, x.shape[1]), 1e-7), None)
    model = InvariantGPRegressor(max_iterations=2).fit(x, y, observations=[slopes])
    assert np.isfinite(model.log_evidence_)


@pytest.mark.parametrize("unit", [1.0, 1e-7])
def test_noise_of_observations_is_learned_in_proportion_to_their_size(data, unit):
    x, y = data
    slopes = unit * np.array([[1.0, -1.0], [2.0, 0.5]])[:, : x.shape[1]]
    seen = (Gradient(), x[:2], slopes, None)
    model = InvariantGPRegressor(max_iterations=0, normalize_y=False).fit(x, y, observations=[seen])
    noise = model.fit_result_.objective.model.others[0]
    size = float(np.square(slopes).mean())
    assert noise.noise.item() == pytest.approx(0.05 * size, rel=1e-5)
    with torch.no_grad():
        noise.raw_noise.fill_(-100.0)
    assert 0 < noise.noise.item() < 1e-7 * size


def test_fixed_noise_stays(data):
    for inference in SPARSE:
        model = fitted(inference, *data, noise=0.3, max_iterations=5, num_steps=20)
        assert model.noise_ == pytest.approx(0.3)
        assert not model.likelihood_.raw_noise.requires_grad


def test_many_rows_are_collapsed(rng):
    x = rng.uniform(-3, 3, size=(2000, 1))
    y = 5 + 3 * np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=2000)
    model = InvariantGPRegressor(random_state=0, num_inducing=100).fit(x, y)
    assert model.inference_ == "collapsed"
    assert model.noise_ == pytest.approx(0.09, rel=0.1)
    new = np.linspace(-2.5, 2.5, 9)[:, None]
    mean, deviation = model.predict(new, return_std=True, include_noise=False)
    assert np.abs(mean - 5 - 3 * np.sin(2 * new[:, 0])).max() < 0.1
    assert deviation.max() < 0.1


@pytest.mark.parametrize(
    ("count", "points", "settings", "observed", "engine"),
    [
        (1500, None, {}, (), "exact"),
        (1501, None, {}, (), "collapsed"),
        (5001, None, {}, (), "variational"),
        (5001, 5001, {}, (), "exact"),
        (1501, 8001, {}, (), "collapsed"),
        (8001, 8001, {}, (), "variational"),
        (5001, None, {"inference": "exact"}, (), "exact"),
        (10, 10, {"inference": "variational"}, (), "variational"),
        (5001, None, {"mean": "linear"}, (), "variational"),
        (1501, None, {"mean": "constant"}, (), "collapsed"),
        (5001, None, {"noise": 0.0}, (), "exact"),
        (5001, None, {}, (SLOPE,), "exact"),
    ],
)
def test_the_engine_goes_by_size_and_by_what_is_asked(count, points, settings, observed, engine):
    assert InvariantGPRegressor(**settings)._engine(count, points, True, observed) == engine


@pytest.mark.parametrize("inference", SPARSE)
def test_what_only_exact_inference_takes_is_refused(data, inference):
    x, y = data
    model = InvariantGPRegressor(inference=inference)
    with pytest.raises(ValueError, match=r"observations of other functionals.*inference='exact'"):
        model.fit(x, y, observations=[(Evaluation(), x[:2], y[:2], None)])
    with pytest.raises(ValueError, match="noise=0"):
        InvariantGPRegressor(inference=inference, noise=0).fit(x, y)


@pytest.mark.parametrize("outputs", [0, 2])
def test_weights_count_repetitions_in_the_collapsed_engine(data, new, outputs):
    x, y = data
    y = np.stack([y, 2 * np.cos(x[:, 0])], axis=1) if outputs else y
    weight = np.where(np.arange(len(x)) % 3 == 0, 2.0, 1.0)
    weight[4] = 0.0
    copies = np.repeat(np.arange(len(x)), weight.astype(int))
    settings = {"kernel": ScaleKernel(RBFKernel()), "noise": 0.05, "max_iterations": 0, "normalize_y": False}
    exact, repeated = (fitted(name, x[copies], y[copies], **settings) for name in ("exact", "collapsed"))
    weighted = InvariantGPRegressor(inference="collapsed", num_inducing=len(x), random_state=0, **settings)
    weighted.fit(x, y, sample_weight=weight)
    for model in (weighted, repeated):
        # a noise that is given is 1e-8 larger in the sparse engines
        assert model.certificate_.lower - 1e-4 <= exact.log_evidence_ <= model.certificate_.upper + 1e-4
        assert model.log_evidence_ == pytest.approx(exact.log_evidence_, rel=1e-3)
        np.testing.assert_allclose(model.predict(new), exact.predict(new), rtol=1e-3, atol=1e-3)
    few = InvariantGPRegressor(inference="collapsed", num_inducing=6, random_state=0, **settings)
    few.fit(x, y + 0.1, sample_weight=weight)
    exact.fit(x, y + 0.1, sample_weight=weight)
    assert few.certificate_.lower < exact.log_evidence_ < few.certificate_.upper


def test_equal_rows_with_different_targets_are_merged_without_loss(data):
    x, y = data
    twice, both = np.concatenate([x, x]), np.concatenate([y, y + 0.3])
    settings = {"kernel": ScaleKernel(RBFKernel()), "noise": 0.05, "max_iterations": 0}
    exact, sparse = (fitted(name, twice, both, **settings) for name in ("exact", "collapsed"))
    assert sparse.log_evidence_ == pytest.approx(exact.log_evidence_, rel=1e-3)
    drawn = fitted("collapsed", twice, both, invariance=held_rotation(), num_nodes=4, **settings)
    same = fitted("exact", twice, both, invariance=held_rotation(), num_nodes=64, **settings)
    assert drawn.log_evidence_ == pytest.approx(same.log_evidence_, abs=0.5 + 4 * drawn.log_evidence_error_)
    assert not hasattr(drawn, "certificate_"), "no bracket is known of rows that are drawn"


@pytest.mark.parametrize("inference", SPARSE)
def test_sparse_engines_learn_a_mean(data, inference):
    x, y = data
    slope = 4 * x[:, 0] + y
    settings = {"num_inducing": 20, "num_steps": 120, "max_iterations": 60}
    model = fitted(inference, x, slope, mean="linear", **settings)
    far = np.array([[40.0, 0.0], [41.0, 0.0]])
    assert np.diff(model.predict(far))[0] == pytest.approx(4, abs=1.0), "the trend goes on, far from all rows"
    assert model.log_evidence_ > fitted(inference, x, slope, **settings).log_evidence_ + 3


def test_weights_reach_the_stochastic_engine(data, new):
    x, y = data
    weight = np.where(x[:, 0] > 0, 20.0, 1.0)
    settings = {"kernel": ScaleKernel(RBFKernel()).requires_grad_(False), "noise": 2.0, "num_steps": 40}
    plain = fitted("variational", x, y, **settings)
    exact = InvariantGPRegressor(settings["kernel"], noise=2.0).fit(x, y, sample_weight=weight)
    model = InvariantGPRegressor(
        inference="variational", num_inducing=len(x), random_state=0, **settings
    ).fit(x, y, sample_weight=weight)
    np.testing.assert_allclose(model.predict(new), exact.predict(new), atol=0.02)
    assert np.abs(plain.predict(new) - exact.predict(new)).max() > 0.1
    assert model.log_evidence_ == pytest.approx(exact.log_evidence_, abs=0.5)


def test_the_certificate_brackets_the_evidence_of_an_invariant_model(data):
    x, y = data
    settings = {"kernel": ScaleKernel(RBFKernel()), "noise": 0.05, "max_iterations": 0, "mean": "constant"}
    frozen = OrbitAverage(held_rotation().freeze(6))
    for invariance in ("permutation", frozen):
        exact, sparse = (
            fitted(name, x, 3 * y, invariance=invariance, num_inducing=10, **settings)
            for name in ("exact", "collapsed")
        )
        certificate = sparse.certificate_
        assert certificate.lower == sparse.log_evidence_
        assert certificate.lower < exact.log_evidence_ < certificate.upper
        assert certificate.num_inducing == 10
        assert "asked for" not in str(certificate)
    assert not hasattr(sparse.set_params(inference="exact").fit(x, y), "certificate_")


@pytest.mark.parametrize(
    "settings", [{"inference": "magic"}, {"num_inducing": 0}, {"num_steps": 1.5}, {"batch_size": -1}]
)
def test_settings_that_make_no_sense_are_refused(settings):
    # As attributes: the types of arguments are checked in tests before fit sees them.
    model = InvariantGPRegressor()
    vars(model).update(settings)
    with pytest.raises(ValueError, match=next(iter(settings))):
        model.fit(np.ones((3, 1)), np.arange(3.0))


@pytest.mark.parametrize("inference", ["exact", *SPARSE])
def test_progress_is_told(data, inference, capsys):
    seen = []
    settings = {"max_iterations": 3, "num_steps": 9, "verbose": True}
    fitted(inference, *data, callback=lambda *each: seen.append(each), **settings)
    assert len(seen) >= 3
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{inference} inference: ")
    assert last.startswith(f"{inference} inference: ended after")
    fitted(inference, *data, **{**settings, "verbose": False})
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("inference", ["exact", "collapsed"])
def test_a_warm_start_goes_on(data, inference):
    cold = fitted(inference, *data, max_iterations=3, num_restarts=0, invariance=rotation(), num_nodes=4)
    warm = fitted(inference, *data, max_iterations=3, invariance=rotation(), num_nodes=4, warm_start=True)
    before = warm.log_evidence_
    assert before == pytest.approx(cold.log_evidence_)
    for _ in range(2):
        warm.fit(*data)
    # a search on nodes has settled already, to a tenth of a nat
    assert warm.log_evidence_ > before + (0.02 if inference == "collapsed" else -0.1)
    repeated = cold.fit(*data)
    assert repeated.log_evidence_ == pytest.approx(before)


def test_another_engine_leaves_nothing_of_the_last(data):
    model = fitted("exact", *data, max_iterations=3)
    assert hasattr(model, "evidence_terms_")
    model.set_params(inference="collapsed").fit(*data)
    assert not hasattr(model, "evidence_terms_")
    assert not hasattr(model, "jitter_")
    assert model.observation_noise_ == []


def test_generators_stay_where_they_are():
    generator = torch.Generator().manual_seed(3)
    assert generator_on("cpu", generator) is generator
