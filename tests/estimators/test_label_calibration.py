"""The scale of the softmax by leave-one-out, under every likelihood of classes."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

import orbitwise
from orbitwise.estimators.classifier import InvariantGPClassifier, class_likelihood
from orbitwise.functionals import Evaluation
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.held_rows import condition
from orbitwise.likelihoods import Bernoulli, Dirichlet

GENERATOR = np.random.default_rng(0)
CENTRES = np.array([[1.5, 0.0], [-0.8, 1.2], [-0.8, -1.2]])
CODES = np.arange(36) % 3
X = CENTRES[CODES] + GENERATOR.standard_normal((36, 2))
NEW = np.concatenate([CENTRES[[0, 1, 2]], GENERATOR.standard_normal((5, 2))])
SIZES = {"num_inducing": 15, "max_iterations": 6, "random_state": 0}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
CODINGS = ["one_hot", "stick_breaking", "dirichlet", "softmax"]


@pytest.mark.parametrize("coding", CODINGS)
def test_every_likelihood_tells_the_loss_of_labels_left_out(coding, tmp_path):
    model = InvariantGPClassifier(likelihood=coding, inference="collapsed", **SIZES).fit(X, CODES)
    assert 0 < model.leave_one_out_log_loss_ < np.log(3)
    trained = log_loss(CODES, model.predict_proba(X))
    assert model.leave_one_out_log_loss_ > trained, "what was left out is harder to tell"
    before = model.predict_proba(NEW)
    orbitwise.save(model, tmp_path / "model.orbit")
    back = orbitwise.load(tmp_path / "model.orbit")
    np.testing.assert_array_equal(back.predict_proba(NEW), before)
    assert back.leave_one_out_log_loss_ == model.leave_one_out_log_loss_
    assert back.scale_ == model.scale_
    # the scale only stretches logarithms of probabilities, so it changes no decision and no order
    model.scale_ *= 2
    after = model.predict_proba(NEW)
    np.testing.assert_allclose(after, before**2 / (before**2).sum(1, keepdims=True), rtol=1e-9)


def test_the_loss_is_that_of_refits_without_each_label():
    """At the hyperparameters of the fit; under Dirichlet targets leave-one-out is exact."""
    model = InvariantGPClassifier(likelihood="dirichlet", **SIZES).fit(X, CODES)
    likelihood, posterior = model.likelihood_, model.posterior_
    targets, x = likelihood.encode_labels(torch.from_numpy(CODES), 3), torch.from_numpy(X)
    losses = []
    for row in range(len(X)):
        keep = torch.arange(len(X)) != row
        rows = Observations(Evaluation(), x[keep], targets[keep])
        latent = LatentModel(posterior.process, Evaluation(), likelihood)
        found = condition(latent, rows, posterior.inducing)
        scores = likelihood.class_scores(found.posterior.moments(Evaluation(), x[row : row + 1]))
        losses.append(-torch.log_softmax(model.scale_ * scores, 1)[0, CODES[row]].item())
    # draws of the predictive softmax are those of other rows
    assert model.leave_one_out_log_loss_ == pytest.approx(np.mean(losses), rel=0.05)


@pytest.mark.parametrize("coding", ["stick_breaking", "dirichlet"])
def test_labels_that_all_agree_do_not_make_certain_predictions(coding):
    apart = 6 * CENTRES[CODES] + 0.1 * GENERATOR.standard_normal((36, 2))
    model = InvariantGPClassifier(likelihood=coding, **SIZES).fit(apart, CODES)
    assert model.score(apart, CODES) == 1
    assert model.predict_proba(apart).max() < 0.9999


def test_calibration_leaves_the_evidence_alone():
    """That of two classes is the bound of logits as they are, however probabilities are scaled."""
    two = (CODES > 0).astype(int)
    model = InvariantGPClassifier(likelihood="stick_breaking", **SIZES).fit(X, two)
    assert model.scale_ != 1
    likelihood, posterior = model.likelihood_, model.posterior_
    targets = likelihood.encode_labels(torch.from_numpy(two), 2)
    latent = LatentModel(posterior.process, Evaluation(), likelihood)
    parts = (latent, Observations(Evaluation(), torch.from_numpy(X), targets), posterior.inducing)
    found = condition(*parts)
    again = condition(*parts, tilt=found.tilt)
    # the reported bound has these rows exact, and tilts of as many rounds
    assert model.log_evidence_ == pytest.approx(float(again.bound()), abs=0.5)


def test_two_classes_are_observed_as_they_are_and_several_count_more_often():
    for coding, kind in (("stick_breaking", Bernoulli), ("dirichlet", Dirichlet)):
        two, three = (class_likelihood(coding, count) for count in (2, 3))
        assert isinstance(two, kind)
        assert isinstance(three, kind)
        assert not two.label_count.is_learned
        assert two.label_count.start == 1
        assert three.label_count.is_learned
        assert three.label_count.start > 10
