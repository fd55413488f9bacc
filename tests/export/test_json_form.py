import copy
import json

import numpy as np
import pytest
import torch

from orbitwise.export import from_json, to_json
from orbitwise.inference.optimise.orbit_search import Coordinates
from orbitwise.orbits import ComposedOrbit, CropOrbit, DeformationOrbit, FiniteOrbit, ImageOrbit, closure
from orbitwise.transforms import flips, quarter_turns
from tests.contracts.orbit_contract import seeded

SHAPE = (1, 6, 6)
ORBITS = {
    "affine": lambda: ImageOrbit(SHAPE),
    "some": lambda: ImageOrbit(
        SHAPE, {"angle": (0.1, 0.4), "shear": (0.2, 0.2)}, learnable=["angle"], two_sided=["angle"]
    ),
    "deformed": lambda: ImageOrbit(SHAPE, {"angle": 3.0}, 0.7, 2.0, learnable=["amplitude"]),
    "tangent": lambda: DeformationOrbit(
        SHAPE, 0.5, 2.0, (-0.1, 0.3), 1.3, (0.0, 1.0), two_sided=["thickness"]
    ),
    "thick": lambda: DeformationOrbit(SHAPE, 0.0, thickness=0.3),
    "finite": lambda: closure(flips(SHAPE), quarter_turns(SHAPE)),
    "composed": lambda: ComposedOrbit(FiniteOrbit(flips(SHAPE)), ImageOrbit(SHAPE, amplitude=0.3)),
}


@pytest.mark.parametrize("name", ORBITS)
def test_an_orbit_comes_back(name):
    orbit = ORBITS[name]()
    again = from_json(to_json(orbit, SHAPE))
    assert type(again) is type(orbit)
    assert again.describe() == orbit.describe()
    x = torch.rand(3, 36, dtype=torch.float64, generator=seeded())
    torch.testing.assert_close(again.points(x, seeded(1)).points, orbit.points(x, seeded(1)).points)
    for old, new in zip(orbit.parameters(), again.parameters(), strict=True):
        assert old.requires_grad == new.requires_grad


def test_it_is_plain_and_says_what_its_numbers_mean():
    data = json.loads(to_json(ImageOrbit((4, 5), {"angle": 0.5}, amplitude=0.3)))
    assert data["image_shape"] == [1, 4, 5]
    assert data["intervals"] == {"angle": pytest.approx([-0.5, 0.5])}
    assert data["units"].keys() == {"angle", "amplitude", "smoothness"}
    assert "counter-clockwise" in data["units"]["angle"]
    assert data["conventions"]["interpolation"] == "bilinear"
    assert {"centre", "fill", "order"} <= data["conventions"].keys()
    assert from_json(data).learned().keys() == {"angle", "amplitude", "smoothness"}
    assert (
        from_json(to_json(ImageOrbit((4, 5)).freeze(4)).encode()).describe() == ImageOrbit((4, 5)).describe()
    )


def test_a_range_learned_beyond_its_limit_comes_back_at_it():
    orbit = ImageOrbit(SHAPE, {"angle": 3.14159265358979})
    with torch.no_grad():
        orbit.bounds.raw_half.fill_(30)
    assert from_json(to_json(orbit)).learned()["angle"][1] == pytest.approx(3.1416, abs=1e-3)


def test_orbits_without_a_form():
    with pytest.raises(ValueError, match="CropOrbit has no JSON form"):
        to_json(CropOrbit((4, 4)))
    with pytest.raises(ValueError, match="pass image_shape"):
        to_json(FiniteOrbit(flips((4, 4))))


GOOD = json.loads(to_json(ImageOrbit((4, 4), {"angle": 0.5}, amplitude=0.3)))
TANGENT = json.loads(to_json(DeformationOrbit((4, 4), 0.5)))
FINITE = json.loads(to_json(FiniteOrbit(flips((4, 4))), (4, 4)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "not JSON text"),
        ("{", "not JSON text"),
        (b"\xff\xfe\x00", "not JSON text"),
        ("[" * 100_000, "not JSON text"),
        (" " * 1_000_001, "shorter than"),
        ("[]", "JSON object, not"),
        ("3", "JSON object"),
        ({}, "not an 'orbitwise orbit' of version 1"),
        (GOOD | {"version": 2}, "version 2"),
        (GOOD | {"format": ["x"] * 99}, "…"),
        (GOOD | {"image_shape": [4, 4]}, "image_shape must be"),
        (GOOD | {"image_shape": [1, 4.0, 4]}, "image_shape must be"),
        (GOOD | {"image_shape": [True, 4, 4]}, "image_shape must be"),
        (GOOD | {"image_shape": [1, -4, -4]}, "pixels"),
        (GOOD | {"image_shape": [1, 10**9, 10**9]}, "pixels"),
        (TANGENT | {"image_shape": [1, 1024, 1024]}, "tangent deformation of images"),
        (GOOD | {"kind": "os.system"}, "kind must be"),
        (GOOD | {"kind": None}, "kind must be"),
        (GOOD | {"intervals": [1]}, "intervals must be an object"),
        (GOOD | {"intervals": {"angle": 0.5}}, "must be an interval"),
        (GOOD | {"intervals": {"angle": [0.5, -0.5]}}, "lower bound"),
        (GOOD | {"intervals": {"angle": [-9.0, 9.0]}}, "above its limit"),
        (GOOD | {"intervals": {"angle": [0, float("nan")]}}, "a finite number"),
        (GOOD | {"intervals": {"angle": [0, 10**400]}}, "a huge number"),
        (GOOD | {"intervals": {"angle": [False, True]}}, "a finite number"),
        (GOOD | {"intervals": {"__class__": [0, 1]}}, "no parameter '__class__'"),
        (GOOD | {"amplitude": "1"}, "amplitude' must be a finite number"),
        (GOOD | {"amplitude": -1, "learnable": []}, "must not be negative"),
        (GOOD | {"smoothness": 0}, "must be positive"),
        (GOOD | {"learnable": "angle"}, "learnable must be a list"),
        (GOOD | {"learnable": [1]}, "learnable must be a list"),
        (GOOD | {"two_sided": ["depth"]}, "depth"),
        (TANGENT | {"intervals": {"angle": [0, 1]}}, "interval thickness only"),
        (TANGENT | {"clip": [1, 0]}, "clip must be an interval"),
        (TANGENT | {"tangent_width": 0}, "tangent_width must be positive"),
        (FINITE | {"elements": ["identity", "explode"]}, "'explode' is not a symmetry"),
        (FINITE | {"elements": ["identity"] * 99}, "at most 16"),
        (FINITE | {"kind": "composed", "stages": []}, "stages must be"),
        (FINITE | {"kind": "composed", "stages": [GOOD] * 99}, "stages must be"),
        (FINITE | {"kind": "composed", "stages": [{"kind": "composed"}]}, "not itself composed"),
        (FINITE | {"kind": "composed", "stages": [3]}, "not itself composed"),
    ],
)
def test_hostile_text_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        from_json(data)
    if isinstance(data, dict) and "10" not in message:
        with pytest.raises(ValueError, match=r"."):
            from_json(json.dumps(data))


def test_a_range_that_was_learned_to_be_zero_is_off():
    orbit = ImageOrbit((8, 8), {"angle": 0.3, "shear": 0.2}, amplitude=0.4, smoothness=2.0)
    coordinates = Coordinates([orbit])
    point = coordinates.point()
    point[coordinates.is_width] = [0.0, 1.0, 0.0]
    coordinates.assign(point)
    zeros = {name for name, (low, high) in orbit.learned().items() if low == high}
    back = from_json(to_json(orbit))
    assert len(zeros) == 2
    for name, interval in back.learned().items():
        assert interval == pytest.approx(orbit.learned()[name])
    assert zeros.isdisjoint(back.learned())
    assert to_json(back) == to_json(orbit)


@pytest.mark.parametrize(
    "orbit",
    [
        ImageOrbit((8, 8), {"angle": 0.3, "shear": 0.2}),
        ImageOrbit((8, 8), {"angle": (0.1, 0.3), "shear": 0.2}, two_sided=["angle"]),
        DeformationOrbit((8, 8), 0.5, 2.0, 0.3),
    ],
    ids=["symmetric", "two-sided", "tangent"],
)
@pytest.mark.parametrize("zero", [0, 1])
def test_text_of_ranges_that_are_zero_is_written_again_as_it_was_read(orbit, zero):
    orbit = copy.deepcopy(orbit)
    coordinates = Coordinates([orbit])
    point, widths = coordinates.point(), np.flatnonzero(coordinates.is_width)
    point[widths[zero]] = 0.0
    coordinates.assign(point)
    text = to_json(orbit)
    assert to_json(from_json(text)) == text
