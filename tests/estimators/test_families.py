"""Every invariance belongs to a family of data, and messages name the right one."""

import pytest
import torch

from orbitwise.estimators.invariances import (
    NAMES,
    check_family,
    check_picture,
    family_of,
    is_picture,
    own_shape,
)
from orbitwise.functionals import ImageTangent, OrbitAverage
from orbitwise.orbits import (
    ComposedOrbit,
    FiniteOrbit,
    ImageOrbit,
    JitterOrbit,
    PatchOrbit,
    PointCloudOrbit,
    SampledOrbit,
    SignalOrbit,
)
from orbitwise.transforms import AffineWarp, Rotation, TimeShift, cyclic_shifts

FAMILIES = [
    (ImageOrbit((4, 4), {"angle": 0.1}), "image", (1, 4, 4)),
    (PatchOrbit((3, 4, 4), (2, 2)), "image", (3, 4, 4)),
    (SampledOrbit(AffineWarp((4, 5)), -torch.ones(6), torch.ones(6)), "image", (1, 4, 5)),
    (OrbitAverage(ImageOrbit((4, 4), {"angle": 0.1})), "image", (1, 4, 4)),
    (ImageTangent((4, 4)), "image", (1, 4, 4)),
    (SignalOrbit(9, shift=1.0), "signal", (1, 9)),
    (SampledOrbit(TimeShift((2, 5)), -1.0, 1.0), "signal", (2, 5)),
    (ComposedOrbit(JitterOrbit(6, 0.1), PointCloudOrbit(2, 3, angle=0.1)), "cloud", (2, 3)),
]


@pytest.mark.parametrize(("invariance", "family", "shape"), FAMILIES, ids=lambda v: type(v).__name__)
def test_orbits_and_functionals_know_their_family(invariance, family, shape):
    assert family_of(invariance) == family
    assert own_shape(invariance) == (family, shape)


@pytest.mark.parametrize("invariance", [None, FiniteOrbit(cyclic_shifts(3)), Rotation(2), "gradient", len])
def test_what_moves_any_row_has_no_family(invariance):
    assert family_of(invariance) is None
    for family in ("image", "signal", "cloud", "table"):
        check_family(invariance, family)


def test_every_name_has_the_family_it_should_have():
    assert {name: family_of(name) for name in ("affine", "flip", "moves", "negation", "sign")} == {
        "affine": "image",
        "flip": "image",
        "moves": "image",
        "negation": None,
        "sign": "table",
    }
    for name in NAMES:
        own = name.partition(":")[0]
        assert own not in ("signal", "cloud") or family_of(name) == own


@pytest.mark.parametrize(
    ("invariance", "family", "says"),
    [
        (
            "rotation",
            "table",
            r"'rotation' is an invariance of images, but these.*tables: use rows",
        ),
        ("rotation", "cloud", r'clouds of points: use "cloud:rotation".* a PointCloudOrbit'),
        ("flip", "signal", r'signals: use "signal:shift".* a SignalOrbit'),
        ("cyclic", "image", r"'cyclic' is an invariance of tables.*images: use .*rotation"),
        (SignalOrbit(4, shift=1.0), "image", r"SignalOrbit is an invariance of signals"),
        (PointCloudOrbit(2, 2, angle=1.0), "signal", r"PointCloudOrbit is an invariance of clouds"),
    ],
)
def test_another_family_is_named(invariance, family, says):
    with pytest.raises(ValueError, match=says):
        check_family(invariance, family)


def test_a_row_may_be_anything_to_an_orbit():
    check_family(PointCloudOrbit(2, 2, angle=1.0), "table")
    check_family(ImageOrbit((2, 2), {"angle": 0.1}), "table")


@pytest.mark.parametrize("shape", [(4, 4), (28, 28), (8, 5), (128, 500)])
def test_plausible_pictures_are_taken(shape):
    assert is_picture(shape)
    check_picture("rotation", shape)


@pytest.mark.parametrize("shape", [(8, 64), (12, 4), (32, 4), (3, 3), (128, 1000)])
def test_signals_and_clouds_of_four_columns_are_no_pictures(shape):
    assert not is_picture(shape)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((12, 2), r"clouds of 12 points in 2 dimensions.*signals of 2 channels and 12 samples"),
        ((9, 3), r"PointCloudOrbit\(num_points=9, num_dimensions=3"),
        ((3, 40), r"3 channels and 40 samples, which 'signal:shift' and SignalOrbit\(signal_shape=\(3, 40\)"),
        ((1, 40), r"signals of 1 channel and 40"),
        ((12, 1000), r"signals of 12 channels"),
        ((1000, 12), r"once they are \(channels, length\)"),
    ],
)
def test_others_are_called_what_they_look_like(shape, says):
    with pytest.raises(ValueError, match=says) as caught:
        check_picture("rotation", shape)
    assert f"say image_shape={shape}" in str(caught.value)
    with pytest.raises(ValueError, match=r"say --image-shape\."):
        check_picture("rotation", shape, "--image-shape")
