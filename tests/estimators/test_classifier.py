import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine, make_blobs
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from orbitwise import InvariantGPClassifier
from tests.contracts.estimator_contract import assert_follows_scikit_learn

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    return X[order], y[order]


@pytest.mark.parametrize("inference", ["auto", pytest.param("collapsed", marks=pytest.mark.slow)])
def test_follows_scikit_learn(inference):
    assert_follows_scikit_learn(InvariantGPClassifier(inference=inference, max_iterations=2))


@pytest.mark.parametrize("likelihood", ["one_hot", "stick_breaking", "dirichlet"])
def test_digits_are_told_apart(digits, likelihood):
    X, y = digits
    model = InvariantGPClassifier(likelihood=likelihood, max_iterations=10, random_state=0).fit(
        X[:200], y[:200]
    )
    probabilities = model.predict_proba(X[200:700])
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert model.score(X[200:700], y[200:700]) > 0.9
    assert log_loss(y[200:700], probabilities) < 0.9


def test_probabilities_of_one_hot_codes_are_calibrated(digits):
    X, y = digits
    model = InvariantGPClassifier(max_iterations=15, random_state=0).fit(X[:300], y[:300])
    probabilities = model.predict_proba(X[300:])
    sure = probabilities.max(1).mean()
    assert abs(sure - model.score(X[300:], y[300:])) < 0.03
    assert log_loss(y[300:], probabilities) < 0.15


@pytest.mark.parametrize("noise", ["evidence", "leave_one_out"])
@pytest.mark.parametrize("data", ["wine", "blobs"])
def test_training_rows_that_are_told_apart_do_not_make_it_sure_of_mistakes(data, noise):
    X, y = load_wine(return_X_y=True) if data == "wine" else make_blobs(300, random_state=1)
    for seed in range(8):
        x, new, labels, truth = train_test_split(X, y, train_size=100, random_state=seed, stratify=y)
        model = InvariantGPClassifier(noise=noise, random_state=0).fit(x, labels)
        assert log_loss(truth, model.predict_proba(new)) < (0.5 if data == "wine" else 0.15)
        assert model.leave_one_out_log_loss_ > 0.005


def test_a_learned_rotation_beats_none_in_evidence_on_turned_digits(digits):
    from scipy.ndimage import rotate

    X, y = digits
    angles = np.random.default_rng(1).uniform(-45, 45, 150)
    turned = np.stack(
        [rotate(x.reshape(8, 8), a, reshape=False, order=1) for x, a in zip(X, angles, strict=False)]
    )
    settings = {"max_iterations": 12, "num_nodes": 8, "random_state": 0}
    plain = InvariantGPClassifier(**settings).fit(turned.reshape(150, 64), y[:150])
    learned = InvariantGPClassifier(invariance="rotation", **settings).fit(turned, y[:150])
    assert learned.log_evidence_ > plain.log_evidence_ + 2 * learned.log_evidence_error_
    assert learned.orbit_.learned()["angle"][1] > 0.2


@pytest.mark.parametrize("labels", [[True, False], ["a", "b"], [-1, 1], [3.0, 7.0]])
def test_labels_of_any_type(labels):
    X = np.random.default_rng(0).normal(size=(20, 2))
    y = np.asarray(labels)[(X[:, 0] > 0).astype(int)]
    model = InvariantGPClassifier(max_iterations=5).fit(X, y)
    assert model.predict(X).dtype == y.dtype
    assert model.score(X, y) > 0.9


def test_scale_of_pixels_does_not_matter(digits):
    X, y = digits
    settings = {
        "invariance": "translation",
        "image_shape": (8, 8),
        "random_state": 0,
        "num_nodes": 4,
    }
    small = InvariantGPClassifier(**settings).fit(X[:60] / 16, y[:60])
    large = InvariantGPClassifier(**settings).fit(X[:60] * 16, y[:60])
    # the search ends within a tenth of a nat of the maximum
    assert small.log_evidence_ == pytest.approx(large.log_evidence_, abs=0.2)
    np.testing.assert_allclose(
        small.predict_proba(X[60:90] / 16), large.predict_proba(X[60:90] * 16), atol=0.02
    )


def test_seeds_give_the_same_numbers(digits):
    X, y = digits
    settings = {
        "invariance": "rotation",
        "image_shape": (8, 8),
        "max_iterations": 3,
        "num_nodes": 4,
        "random_state": 5,
    }
    first, second = (InvariantGPClassifier(**settings).fit(X[:50], y[:50]) for _ in range(2))
    assert first.log_evidence_ == second.log_evidence_
    np.testing.assert_array_equal(first.predict_proba(X[50:60]), second.predict_proba(X[50:60]))


@pytest.mark.parametrize("inference", ["collapsed", "variational"])
def test_other_engines_agree_on_easy_data(inference):
    X = np.random.default_rng(0).normal(size=(80, 2))
    y = (X.sum(1) > 0).astype(int)
    model = InvariantGPClassifier(
        inference=inference, num_inducing=30, num_steps=120, max_iterations=10, random_state=0
    )
    assert model.fit(X, y).score(X, y) > 0.95
    assert model.evidence_kind_ == "lower bound"
    assert np.isfinite(model.log_evidence_)


def test_warm_start_goes_on(digits):
    X, y = digits
    model = InvariantGPClassifier(max_iterations=2, warm_start=True).fit(X[:80], y[:80])
    before = model.log_evidence_
    assert model.fit(X[:80], y[:80]).log_evidence_ > before


def test_callbacks_and_printing(digits, capsys):
    X, y = digits
    seen = []
    InvariantGPClassifier(max_iterations=3, verbose=True, callback=lambda *a: seen.append(a)).fit(
        X[:40], y[:40]
    )
    assert [step for step, _ in seen] == [1, 2, 3]
    assert "exact" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.zeros(20)}, "two classes"),
        ({"X": np.full((20, 4), np.nan)}, "NaN"),
        ({"X": np.zeros((0, 4)), "y": np.zeros(0)}, "0 sample"),
        ({"settings": {"invariance": "rotation"}}, "image_shape"),
        ({"settings": {"invariance": "rotation", "image_shape": (3, 3)}}, "pixels"),
        ({"settings": {"invariance": "rotatoin", "image_shape": (2, 2)}}, "rotation"),
        ({"settings": {"likelihood": "probit"}}, "likelihood must be"),
        ({"settings": {"inference": "magic"}}, "inference must be"),
        ({"settings": {"noise": "guess"}}, "noise must be"),
        ({"settings": {"likelihood": "dirichlet", "noise": "leave_one_out"}}, "one_hot"),
        ({"settings": {"inference": "exact", "likelihood": "dirichlet"}}, "Gaussian"),
    ],
)
def test_bad_input_gets_a_clear_error(change, message):
    X = change.get("X", np.random.default_rng(0).normal(size=(20, 4)))
    y = change.get("y", np.arange(20) % 2)
    with pytest.raises(ValueError, match=message):
        InvariantGPClassifier().set_params(**change.get("settings", {})).fit(X, y)


@pytest.mark.parametrize("inference", ["exact", "collapsed"])
def test_noise_may_be_chosen_by_leave_one_out(digits, inference):
    X, y = digits
    settings = {"inference": inference, "max_iterations": 6, "num_inducing": 100, "random_state": 0}
    by_evidence = InvariantGPClassifier(**settings, noise="evidence").fit(X[:150], y[:150])
    held_out = InvariantGPClassifier(**settings, noise="leave_one_out").fit(X[:150], y[:150])
    assert held_out.leave_one_out_log_loss_ <= by_evidence.leave_one_out_log_loss_ + 1e-9
    assert held_out.score(X[150:600], y[150:600]) > 0.9


def test_restarts_never_lose_evidence(digits):
    X, y = digits
    settings = {"max_iterations": 5, "random_state": 0}
    one = InvariantGPClassifier(**settings).fit(X[:60], y[:60])
    several = InvariantGPClassifier(**settings, num_restarts=2).fit(X[:60], y[:60])
    assert several.log_evidence_ >= one.log_evidence_ - 1e-6


def test_one_class_for_all_rows_is_told():
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = np.zeros(40, dtype=int)
    y[:2] = 1
    with pytest.warns(UserWarning, match="InvariantGPClassifier predicts class 0 for all 40 training rows"):
        InvariantGPClassifier(random_state=0).fit(X, y)


def test_one_class_and_no_name_are_told_plainly():
    X = np.random.default_rng(0).normal(size=(6, 2))
    with pytest.raises(ValueError, match="one class only: 3"):
        InvariantGPClassifier().fit(X, np.full(6, 3))
    with pytest.raises(ValueError, match=r"'tangent' .*use InvariantSVC or InvariantKernelRidge"):
        InvariantGPClassifier(invariance="tangent", image_shape=(1, 2)).fit(X, [0, 1] * 3)


@pytest.mark.filterwarnings("error")
def test_easy_tables_are_learned_to_the_end():
    for seed in range(4):
        X, y = make_blobs(100, random_state=seed)
        assert InvariantGPClassifier(random_state=0).fit(X, y).converged_
