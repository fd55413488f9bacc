from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor
from orbitwise.estimators.classifier import class_likelihood
from orbitwise.report.numbers import wilson
from orbitwise.report.predictions import (
    LEVELS,
    Labelled,
    Measured,
    Output,
    class_codes,
    judge,
    probability_bands,
)

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def labelled(probabilities, codes, classes=("a", "b")) -> Labelled:
    nothing = torch.zeros(len(codes), 1, dtype=torch.float64)
    return Labelled("test", np.array(probabilities), np.array(codes), tuple(classes), (nothing, nothing))


def measured(source: str = "test", outputs: int = 1) -> Measured:
    mean = np.zeros((4, outputs))
    return Measured(source, mean, mean + 1.0, mean + np.array([[1.0], [-1.0], [1.0], [-3.0]]))


JUDGED = labelled([[0.9, 0.1], [0.95, 0.05], [0.3, 0.7], [0.38, 0.62]], [0, 1, 1, 1])


def test_errors_of_classes_are_shares_with_intervals():
    assert JUDGED.error() == "25 ± 22 %"
    assert JUDGED.num_wrong == 1


def test_no_mistake_is_not_certainty():
    assert labelled([[0.9, 0.1]] * 10, [0] * 10).error() == "0 ± 10 %"


def test_the_root_of_a_mean_of_squares_and_its_error():
    (output,) = measured().outputs
    root, error = output.root_mean_square
    assert root == pytest.approx(np.sqrt(3))
    assert error == pytest.approx(np.std([1, 1, 1, 9], ddof=1) / 2 / (2 * np.sqrt(3)))
    assert output.num_inside == 3
    assert output.negative_log_density[0] == pytest.approx(1.5 + 0.5 * np.log(2 * np.pi))


def test_confusions_are_counted_with_the_truth_in_rows():
    np.testing.assert_array_equal(JUDGED.confusion(), [[1, 0], [1, 2]])


def test_reliability_compares_confidence_with_hits():
    high, low = JUDGED.reliability()[0], JUDGED.reliability()[-1]
    assert low[:2] == (pytest.approx(0.925), 0.5)
    assert low[2:4] == wilson(1, 2)
    assert high[:2] == (pytest.approx(0.62), 1.0)
    assert sum(point[-1] for point in JUDGED.reliability()) == 4


def test_intervals_of_right_scores_hold_what_they_promise():
    scores = norm.ppf((np.arange(2000) + 0.5) / 2000)
    right = Output(np.zeros(2000), np.ones(2000), scores)
    np.testing.assert_allclose(right.coverage(), LEVELS, atol=1e-3)
    assert (Output(np.zeros(2000), np.ones(2000), 3 * scores).coverage() < LEVELS).all()


def test_an_example_is_named_by_its_class_or_its_value(symmetric):
    assert JUDGED.name(0) == "a"
    judged = judge(symmetric.model, symmetric.x, symmetric.y, None, None)
    assert judged.name(0).replace("−", "-") == f"{symmetric.y[0]:.3g}"


def test_a_test_set_is_predicted(turned):
    judged = judge(turned.model, turned.x, turned.y, turned.x_test, turned.y_test)
    assert judged.source == "test"
    np.testing.assert_allclose(judged.probabilities, turned.model.predict_proba(turned.x_test))
    assert judged.is_wrong.mean() == pytest.approx(1 - turned.model.score(turned.x_test, turned.y_test))


def test_without_a_test_set_each_row_is_left_out(turned):
    judged = judge(turned.model, turned.x, turned.y, None, None)
    assert judged.source == "leave-one-out"
    assert judged.losses.mean() == pytest.approx(turned.model.leave_one_out_log_loss_)


def test_regression_leaves_out_rows_of_equal_inputs_together():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(20, 1))
    x[1] = x[0]
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=20)
    model = InvariantGPRegressor(random_state=0).fit(x, y)
    judged = judge(model, x, y, None, None)
    assert judged.source == "leave-one-out"
    for left_out in ([0, 1], [7]):
        rest = np.setdiff1d(np.arange(20), left_out)
        other = InvariantGPRegressor(model.kernel_, noise=model.noise_, max_iterations=0, normalize_y=False)
        scale, shift = float(model.target_scale_.scale[0]), float(model.target_scale_.shift[0])
        other.set_params(noise=model.noise_ / scale**2).fit(x[rest], (y[rest] - shift) / scale)
        mean, deviation = other.predict(x[left_out], return_std=True, include_noise=True)
        np.testing.assert_allclose(judged.mean[left_out, 0], scale * mean + shift, rtol=1e-5)
        np.testing.assert_allclose(judged.deviation[left_out, 0], scale * deviation, rtol=1e-5)


def test_other_data_than_those_of_the_fit_are_not_left_out(symmetric):
    assert judge(symmetric.model, symmetric.x, symmetric.y + 1, None, None).source == "training"
    assert judge(symmetric.model, symmetric.x, symmetric.y, None, None).source == "leave-one-out"


def test_posteriors_without_leave_one_out_are_judged_on_what_they_have_seen(symmetric):
    model = SparseGPRegressor(num_inducing=20, max_iterations=3, random_state=0)
    judged = judge(model.fit(symmetric.x, symmetric.y), symmetric.x, symmetric.y, None, None)
    assert judged.source == "training"
    assert [len(each.scores) for each in judged.outputs] == [40]


def test_several_outputs_have_a_column_each(symmetric):
    targets = np.stack([symmetric.y, 10 * symmetric.y], axis=1)
    model = InvariantGPRegressor(max_iterations=3, random_state=0).fit(symmetric.x, targets)
    judged = judge(model, symmetric.x, targets, None, None)
    assert judged.source == "leave-one-out"
    np.testing.assert_allclose(judged.deviation[:, 1], 10 * judged.deviation[:, 0])


def test_half_a_test_set_and_unknown_labels_are_refused(turned):
    with pytest.raises(ValueError, match="X_test and y_test"):
        judge(turned.model, turned.x, turned.y, turned.x_test, None)
    with pytest.raises(ValueError, match="no class '7'; it has 3, 6, 9"):
        class_codes(turned.model, [3, 7])


@pytest.mark.parametrize("likelihood", ["one_hot", "stick_breaking", "dirichlet"])
@pytest.mark.parametrize("count", [2, 3])
def test_bands_hold_the_probabilities_and_widen_with_the_variance(likelihood, count):
    model = InvariantGPClassifier(likelihood=likelihood)
    model.scale_, model.classes_ = 2.0, np.arange(count)
    model.model_ = SimpleNamespace(latent=SimpleNamespace(likelihood=class_likelihood(likelihood, count)))
    columns = (
        count - 1 if likelihood == "stick_breaking" or (count == 2 and likelihood == "one_hot") else count
    )
    mean = torch.randn(5, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    widths = []
    for variance in (0.0, 0.1, 1.0):
        middle, low, high = probability_bands(model, mean, torch.full_like(mean, variance))
        assert np.allclose(middle.sum(1), 1)
        assert (low <= middle).all()
        assert (middle <= high).all()
        widths.append(float((high - low).mean()))
    assert widths[0] < 1e-9 < widths[1] < widths[2]
