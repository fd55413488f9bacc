import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from orbitwise import InvariantGPClassifier
from orbitwise.likelihoods.bernoulli import Bernoulli
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.orbits import (
    ComposedOrbit,
    CropOrbit,
    DeformationOrbit,
    FiniteOrbit,
    ImageOrbit,
    JitterOrbit,
    PointCloudOrbit,
    SignalOrbit,
    closure,
)
from orbitwise.report.exploration import (
    along,
    change_of_f,
    choose_examples,
    explore,
    moves_of,
    own_change,
    page_data,
)
from orbitwise.report.predictions import judge
from orbitwise.report.ranges import orbit_of
from orbitwise.transforms import AffineWarp, coordinate_permutations, flips, quarter_turns
from tests.report.test_pictures import opened
from tests.report.test_predictions import labelled

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SHAPE = (1, 6, 6)
ORBITS = {
    "affine": lambda: ImageOrbit(SHAPE),
    "bent": lambda: ImageOrbit(SHAPE, {"angle": 0.3}, amplitude=0.5),
    "crop": lambda: CropOrbit(SHAPE, 0.2, 0.1),
    "tangent": lambda: DeformationOrbit(SHAPE, 0.5, 2.0, 0.2),
    "finite": lambda: closure(flips(SHAPE), quarter_turns(SHAPE)),
    "composed": lambda: ComposedOrbit(FiniteOrbit(flips(SHAPE)), ImageOrbit(SHAPE, {"shear": 0.2})),
    "signal": lambda: SignalOrbit(36, shift=2.0, warp=0.5, jitter=0.1),
    "cloud": lambda: PointCloudOrbit(12, 3, angle=0.5, jitter=0.1),
    "jitter": lambda: JitterOrbit(36),
}


def rows() -> torch.Tensor:
    return torch.rand(3, 36, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ORBITS)
def test_every_move_starts_at_the_identity_and_leaves_it(name):
    orbit, x = ORBITS[name](), rows()
    moves = moves_of(orbit)
    assert moves
    for move in moves:
        moved = along(orbit, move, x)
        assert moved.shape == (3, len(move.places), 36)
        assert len(move.texts) == len(move.inside) == len(move.places)
        torch.testing.assert_close(moved[:, move.rest], x)
        assert move.inside[move.rest]
        assert float((moved - x[:, None]).abs().max()) > 1e-3
        assert move.is_finite or not all(move.inside)


def test_a_rotation_is_that_of_the_warp():
    orbit, x = ImageOrbit(SHAPE, {"angle": 0.3}), rows()
    (move,) = moves_of(orbit)
    assert move.texts[0] == "−34°"
    assert move.learned == (0.25, 0.75)
    alpha = torch.zeros(3, 21, 6, dtype=torch.float64)
    alpha[..., 0] = torch.linspace(-0.6, 0.6, 21, dtype=torch.float64)
    torch.testing.assert_close(along(orbit, move, x), AffineWarp(SHAPE)(x, alpha))


def test_nobody_turns_an_image_by_more_than_half_a_turn():
    (move,) = moves_of(ImageOrbit(SHAPE, {"angle": 3.0}))
    assert max(move.places) == pytest.approx(180)
    (whole,) = moves_of(ImageOrbit(SHAPE, {"angle": math.pi}))
    assert all(whole.inside)


def test_a_range_of_one_side_rests_near_the_identity():
    (move,) = moves_of(ImageOrbit(SHAPE, {"shear": (0.0, 0.4)}))
    assert move.places[move.rest] == pytest.approx(0, abs=1e-12)
    assert move.learned == (0.25, 0.75)


def test_the_same_move_twice_has_two_names():
    orbit = ComposedOrbit(ImageOrbit(SHAPE, {"angle": 0.1}), ImageOrbit(SHAPE, {"angle": 0.2}))
    assert [move.label for move in moves_of(orbit)] == ["rotation", "rotation 2"]


def test_large_finite_orbits_are_not_walked():
    assert moves_of(FiniteOrbit(coordinate_permutations(5))) == []


def test_the_change_of_f_is_the_difference_of_its_predictions(symmetric):
    model = symmetric.model
    x = torch.from_numpy(symmetric.x[:2])
    moved = torch.stack([x.flip(-1), x + 0.3], dim=1)
    mean, deviation = change_of_f(model, x, moved)
    np.testing.assert_allclose(mean[:, 0], 0, atol=1e-9)
    np.testing.assert_allclose(deviation[:, 0], 0, atol=1e-5)
    pairs = torch.cat([x[:1], moved[:1, 1]]).numpy()
    values, covariance = model.predict(pairs, return_cov=True, include_noise=False)
    scale = float(model.target_scale_.scale[0])
    assert scale * mean[0, 1, 0] == pytest.approx(values[1] - values[0])
    spread = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    assert scale * deviation[0, 1, 0] == pytest.approx(math.sqrt(spread), rel=1e-4)


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
    data = page_data(exploration, judged)
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
