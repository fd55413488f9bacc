import math

import numpy as np
import pytest
import torch

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
from orbitwise.report.moves import along, change_of_f, moves_of
from orbitwise.transforms import AffineWarp, coordinate_permutations, flips, quarter_turns

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
