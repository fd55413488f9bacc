"""Files that make a library's transform: they need what they say, and are run before they are given."""

import ast
import sys

import pytest
import torch

from orbitwise.export import run_script, to_script
from orbitwise.export.libraries import LIBRARIES
from orbitwise.export.nearest import picture
from orbitwise.orbits import FiniteOrbit, ImageOrbit, closure
from orbitwise.transforms import cyclic_shifts, flips, quarter_turns

SHAPE = (3, 16, 16)
ORBITS = {
    "affine": ImageOrbit(SHAPE, {"angle": 0.3, "log_scale_x": 0.1, "shear": 0.2, "shift_y": (0.0, 0.2)}),
    "deformation": ImageOrbit(SHAPE, {"angle": 0.3}, amplitude=0.5, smoothness=1.5),
    "flip": FiniteOrbit(flips(SHAPE)),
    "flips": FiniteOrbit(flips(SHAPE, vertical=True)),
    "quarter turns": FiniteOrbit(quarter_turns(SHAPE)),
    "all": closure(flips(SHAPE), quarter_turns(SHAPE)),
}
NAMES = sorted(LIBRARIES)


def imported(text: str) -> set[str]:
    """The packages that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("name", ORBITS)
@pytest.mark.parametrize("library", NAMES)
@pytest.mark.parametrize("faithful", [True, False])
def test_every_file_runs_where_its_library_is(name, library, faithful):
    text = to_script(ORBITS[name], library, image_shape=SHAPE, faithful=faithful, fill=0.25)
    expected = {"orbitwise"} if faithful else {library}
    assert imported(text) - {"cv2"} == expected
    missing = run_script(text, library, SHAPE, faithful=faithful)
    if missing is not None:
        assert library in missing
        pytest.importorskip(
            LIBRARIES[library].module, reason=f"{library} is not installed", exc_type=ImportError
        )
    assert missing is None


@pytest.mark.parametrize("library", ["kornia", "torchvision"])
def test_a_faithful_file_moves_as_the_orbit_does(library, monkeypatch):
    monkeypatch.setitem(sys.modules, LIBRARIES[library].module, None)
    text = to_script(ORBITS["all"], library, image_shape=SHAPE)
    assert run_script(text, library, SHAPE) is None
    space: dict = {}
    exec(text, space)
    image = picture(SHAPE)
    points = ORBITS["all"].points(image.reshape(1, -1)).points[0]
    seen = set()
    for _ in range(60):
        distance = (points - space["transform"](image).reshape(1, -1)).abs().amax(1)
        assert float(distance.min()) < 1e-6
        seen.add(int(distance.argmin()))
    assert len(seen) == 8


def test_a_name_that_is_no_module_is_not_written():
    text = to_script(ORBITS["flip"], "kornia", image_shape=SHAPE, module='x"""; raise SystemExit')
    assert run_script(text, "kornia", SHAPE) is None
    assert "SystemExit" not in text


def test_what_fails_when_run_is_an_error():
    with pytest.raises(
        ValueError, match=r"was run on an image of shape \(3, 16, 16\) and gave shape \(16, 16\)"
    ):
        run_script("transform = lambda image: image[0]\n", "torchvision", SHAPE)
    with pytest.raises(ValueError, match="not finite"):
        run_script("transform = lambda image: image / 0\n", "torchvision", SHAPE)
    with pytest.raises(NameError):
        run_script("transform = nothing\n", "kornia", SHAPE)


def test_orbits_that_a_library_does_not_know_are_refused():
    orbit = FiniteOrbit(cyclic_shifts(16))
    with pytest.raises(ValueError, match="neither a flip nor a quarter turn"):
        to_script(orbit, "torchvision", image_shape=(1, 4, 4), faithful=False)
    with pytest.raises(ValueError, match="pass image_shape"):
        to_script(orbit, "torchvision")


def test_trying_leaves_the_random_state_alone():
    before = torch.random.get_rng_state()
    run_script(to_script(ORBITS["affine"], "kornia"), "kornia", SHAPE)
    assert torch.equal(before, torch.random.get_rng_state())
