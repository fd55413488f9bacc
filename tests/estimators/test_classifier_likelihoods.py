"""InvariantGPClassifier with a softmax of one f per class, and with tilts from a recognition network."""

import numpy as np
import pytest

import orbitwise
from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.likelihoods import Bernoulli, Softmax

GENERATOR = np.random.default_rng(0)
CENTRES = np.array([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])
LABELS = np.arange(45) % 3
X = CENTRES[LABELS] + 0.6 * GENERATOR.standard_normal((45, 2))
NAMES = np.array(["a", "b", "c"])[LABELS]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("engine", ["auto", "variational"])
@pytest.mark.parametrize("likelihood", ["softmax", Softmax(3, 64)], ids=["name", "instance"])
def test_a_softmax_learns_classes_and_comes_back_from_a_file(engine, likelihood, tmp_path):
    sizes = {"num_inducing": 20, "max_iterations": 8, "num_steps": 40}
    model = InvariantGPClassifier(likelihood=likelihood, inference=engine, random_state=0, **sizes)
    model.fit(X, NAMES)
    assert model.inference_ == ("collapsed" if engine == "auto" else engine)
    assert model.evidence_kind_ == "lower bound"
    assert model.log_evidence_ < 0
    assert model.log_evidence_ > 45 * np.log(1 / 3), "more than by chance"
    assert model.score(X, NAMES) > 0.9
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    far = model.predict_proba(np.array([[100.0, 100.0]]))
    np.testing.assert_allclose(far, 1 / 3, atol=0.02, err_msg="far from the data nothing is known")
    orbitwise.save(model, tmp_path / "model.orbit")
    back = orbitwise.load(tmp_path / "model.orbit")
    np.testing.assert_array_equal(back.predict_proba(X), probabilities)
    assert isinstance(back.likelihood_, Softmax)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_recognition_network_gives_tilts():
    settings = {
        "likelihood": Bernoulli(),
        "inference": "variational",
        "num_inducing": 12,
        "num_steps": 60,
    }
    fitted = {
        tilts: InvariantGPClassifier(tilts=tilts, random_state=0, batch_size=16, **settings).fit(X, NAMES)
        for tilts in ("remembered", "recognition")
    }
    assert all(model.score(X, NAMES) > 0.9 for model in fitted.values())
    # q and tilts are polished in the end, so both are bounds of about the same height, on other paths
    values = [model.log_evidence_ for model in fitted.values()]
    assert values[0] != values[1]
    assert values[1] == pytest.approx(values[0], abs=10)


@pytest.mark.parametrize(
    "settings", [{"likelihood": "dirichlet", "inference": "variational"}, {"likelihood": "stick_breaking"}]
)
def test_tilts_belong_to_stochastic_sticks(settings):
    with pytest.raises(ValueError, match="needs likelihood='stick_breaking' and inference='variational'"):
        InvariantGPClassifier(tilts="recognition", **settings).fit(X, NAMES)


def test_a_softmax_of_other_classes_is_refused():
    with pytest.raises(ValueError, match="made for 4 classes, not 3"):
        InvariantGPClassifier(likelihood=Softmax(4)).fit(X, NAMES)
    with pytest.raises(ValueError, match="Exact inference needs Gaussian noise"):
        InvariantGPClassifier(likelihood="softmax", inference="exact").fit(X, NAMES)
