from types import SimpleNamespace

import numpy as np
import pytest

from orbitwise import InvariantGPClassifier
from orbitwise.likelihoods.bernoulli import Bernoulli
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.report.exploration import choose_examples, explore, own_change, page_data
from orbitwise.report.predictions import judge
from orbitwise.report.ranges import orbit_of
from tests.report.test_outcomes import labelled
from tests.report.test_pictures import opened

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def explored(turned):
    judged = judge(turned.model, turned.x, turned.y, turned.x_test, turned.y_test)
    chosen = choose_examples(judged, 0, 3)
    return judged, chosen, explore(turned.model, orbit_of(turned.model), turned.x_test, judged, chosen)


def test_examples_are_of_different_classes(turned, explored):
    judged, chosen, _ = explored
    assert sorted(judged.codes[chosen].tolist()) == [0, 1, 2]
    assert len(set(choose_examples(judged, 0, 6).tolist())) == 6


def test_examples_of_a_regression_are_spread(symmetric):
    judged = judge(symmetric.model, symmetric.x, symmetric.y, None, None)
    chosen = choose_examples(judged, 0)
    assert judged.measured[chosen[0], 0] == symmetric.y.min()
    assert judged.measured[chosen[-1], 0] == symmetric.y.max()


def test_at_rest_nothing_changes_and_the_prediction_is_the_models(turned, explored):
    _, chosen, exploration = explored
    (track,) = exploration.tracks
    rest = track.move.rest
    np.testing.assert_allclose(track.change[:, rest], 0, atol=1e-9)
    np.testing.assert_allclose(track.deviation[:, rest], 0, atol=1e-5)
    expected = turned.model.predict_proba(turned.x_test[chosen])
    np.testing.assert_allclose(track.middle[:, rest], expected, atol=1e-9)
    moved = track.moved[:, 3].reshape(3, 8, 8)
    np.testing.assert_allclose(track.middle[:, 3], turned.model.predict_proba(moved))


def test_beyond_the_range_f_changes_more_than_inside(explored):
    (track,) = explored[2].tracks
    size = np.sqrt((track.change**2 + track.deviation**2).mean(0))
    inside = np.array(track.move.inside)
    assert size[~inside].min() > size[inside].mean()


def test_two_classes_and_sticks_speak_for_the_own_class():
    mean = np.arange(1.0, 3.0).reshape(1, 1, 2).repeat(3, axis=0)
    three = labelled(np.full((3, 3), 1 / 3), [0, 1, 2], "abc")
    model = InvariantGPClassifier(likelihood="stick_breaking")
    model.classes_ = np.arange(3)
    model.model_ = SimpleNamespace(latent=SimpleNamespace(likelihood=Bernoulli()))
    change, _ = own_change(model, three, np.arange(3), mean, mean)
    assert change.ravel().tolist() == [1.0, 2.0, -2.0]
    two = labelled(np.full((2, 2), 0.5), [0, 1])
    model = InvariantGPClassifier()
    model.classes_ = np.arange(2)
    model.model_ = SimpleNamespace(latent=SimpleNamespace(likelihood=Gaussian()))
    change, _ = own_change(model, two, np.arange(2), mean[:2, :, :1], mean[:2, :, :1])
    assert change.ravel().tolist() == [-1.0, 1.0]


def test_the_page_gets_pictures_and_answers_of_every_place(turned, explored):
    judged, chosen, exploration = explored
    data = page_data(turned.model, exploration, judged, ["a", "b", "c"], (8, 8))
    assert (data["kind"], data["height"], data["width"]) == ("classes", 8, 8)
    (move,) = data["moves"]
    assert len(move["texts"]) == 21
    for i, example in enumerate(data["examples"]):
        assert opened(example["sheet"]).shape == (8, 21 * 8)
        assert example["shown"][example["own"]] == judged.classes[judged.codes[chosen[i]]]
        answers = np.array(example["answers"][0])
        assert answers.shape == (21, 3, 3)
        assert (abs(answers[:, :, 0].sum(1) - 1000) <= 2).all()
        assert (answers[..., 1] <= answers[..., 0]).all()
    spans = [np.ptp(np.array(each["answers"][0])[:, each["own"], 0]) for each in data["examples"]]
    assert data["start"] == [int(np.argmax(spans)), 0]
