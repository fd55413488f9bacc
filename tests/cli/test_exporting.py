"""Learned invariances as text for others."""

import json
import sys

import numpy as np
import pytest
import torch

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, InvariantSVC, load, save
from orbitwise.cli import models as exporting
from orbitwise.cli.errors import CommandError
from orbitwise.cli.models import exported
from orbitwise.export import from_json, to_json, to_torchvision
from orbitwise.orbits import JitterOrbit
from orbitwise.report.ranges import orbit_of
from tests.cli.conftest import bars, symmetric

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def turned() -> InvariantGPClassifier:
    x, y = bars(8)
    return InvariantGPClassifier(invariance="rotation", max_iterations=2, num_nodes=2, random_state=0).fit(
        x, y
    )


@pytest.fixture(scope="module", params=["flip", "quarter_turn", "flip+quarter_turn"])
def symmetric_images(request) -> InvariantGPClassifier:
    x, y = bars(8)
    return InvariantGPClassifier(invariance=request.param, max_iterations=1, random_state=0).fit(x, y)


@pytest.mark.parametrize("builtin", [False, True])
def test_a_script_makes_the_transform(turned, builtin):
    text, note, was_run = exported(turned, "kornia", "augmentation", builtin)
    assert was_run == (not note)
    if note:
        assert builtin
        assert "kornia" in note
        pytest.importorskip("kornia", reason="its own transform needs kornia")
    space: dict = {}
    exec(text, space)
    assert callable(space["transform"])
    assert ("RandomAffine" in repr(space["transform"])) == builtin
    assert ("orbitwise.export" in text) == (not builtin)


@pytest.mark.parametrize("library", ["torchvision", "kornia"])
def test_a_finite_invariance_is_exported_and_runs(symmetric_images, library):
    text, note, was_run = exported(symmetric_images, library)
    assert (note, was_run) == ("", True)
    space: dict = {}
    exec(text, space)
    image = torch.rand(1, 6, 6)
    points = symmetric_images.orbit_.points(image.reshape(1, -1)).points[0]
    for _ in range(8):
        moved = space["transform"](image).reshape(1, -1)
        assert float((points - moved).abs().amax(1).min()) < 1e-6


def test_what_does_not_run_is_not_handed_out(symmetric_images, monkeypatch):
    monkeypatch.setattr(exporting, "to_script", lambda *_, **__: "transform = None\n")
    with pytest.raises(TypeError, match="not callable"):
        exported(symmetric_images, "torchvision")


@pytest.mark.parametrize("library", ["torchvision", "kornia", "albumentations"])
@pytest.mark.parametrize("builtin", [False, True])
def test_a_library_that_is_not_here_is_said(turned, library, builtin, monkeypatch):
    for name in ("torchvision.transforms.v2", "kornia.augmentation", "albumentations"):
        monkeypatch.setitem(sys.modules, name, None)
    text, note, was_run = exported(turned, library, builtin=builtin)
    assert was_run == (not note)
    compile(text, "augmentation.py", "exec")
    needed = builtin or library == "albumentations"
    assert (f"could not be run here: This export needs {library}" in note) == needed


def test_the_background_of_the_model_fills():
    x, y = bars(8)
    settings = {"invariance": "rotation", "max_iterations": 1, "num_nodes": 2, "random_state": 0}
    model = InvariantGPClassifier(**settings).fit(x - 3, y)
    assert f"fill={model._background!r})" in exported(model, "torchvision").text
    assert model._background < -2


def test_colour_images_with_channels_last_are_exported():
    x, y = bars(8)
    colours = np.stack([x, x / 2, x / 4], -1)
    model = InvariantGPClassifier(invariance="flip", max_iterations=1, random_state=0).fit(colours, y)
    space: dict = {}
    exec(exported(model, "torchvision").text, space)
    moved = np.stack([space["transform"](colours[0]) for _ in range(16)])
    apart = [np.abs(moved - each).max(axis=(1, 2, 3)) for each in (colours[0], colours[0][:, ::-1])]
    assert np.minimum(*apart).max() < 1e-6
    assert all((each < 1e-6).any() for each in apart)


def test_an_orbit_of_images_comes_back_from_json(turned, symmetric_images):
    back = from_json(exported(turned, "json").text).learned()
    assert back["angle"] == pytest.approx(turned.orbit_.learned()["angle"])
    assert from_json(exported(symmetric_images, "json").text).size == symmetric_images.orbit_.size
    with pytest.raises(CommandError, match="--builtin needs a library"):
        exported(turned, "json", builtin=True)


def test_tables_have_plain_json_and_no_script():
    x, y = symmetric(8)
    plain = InvariantGPRegressor(max_iterations=1).fit(x, y)
    signs = InvariantGPRegressor(invariance="negation", max_iterations=1).fit(x, y)
    assert orbit_of(plain) is None
    assert json.loads(exported(plain, "json").text)["kind"] == "none"
    assert not exported(plain, "json").was_run
    assert exported(signs, "json").was_run
    about = json.loads(exported(signs, "json").text)
    moved = np.array(about["sign"]) * x[:1][:, np.array(about["index"])][0]
    np.testing.assert_array_equal(moved, [x[0], -x[0]])
    with pytest.raises(CommandError, match=r"has no invariance.*json"):
        exported(plain, "torchvision")
    with pytest.raises(CommandError, match="not of images"):
        exported(signs, "torchvision")


def test_what_was_not_run_is_not_said_to_be(orbitwise, folder):
    x, y = symmetric(8)
    for invariance, was_run in ((None, False), (JitterOrbit(3, 0.1), False), ("negation", True)):
        model = InvariantGPRegressor(invariance=invariance, max_iterations=0, num_nodes=2, random_state=0)
        save(model.fit(x, y), "model.orbitwise")
        ran = orbitwise("export", "model.orbitwise", "--to", "json", "-o", "moves.json", "--force")
        assert ran.status == 0, ran.error
        assert ("(run on one input)" in ran.out) == was_run


@pytest.mark.parametrize("library", ["json", "torchvision"])
def test_a_kernel_machine_has_nothing_to_export(library):
    x, y = symmetric(12)
    with pytest.raises(CommandError, match=r"is of class InvariantSVC.* nothing to export"):
        exported(InvariantSVC().fit(x, y > np.median(y)), library)


def test_the_orbit_of_a_finite_invariance_knows_its_images(symmetric_images, tmp_path):
    save(symmetric_images, tmp_path / "model.orbitwise")
    for model in (symmetric_images, load(tmp_path / "model.orbitwise")):
        assert model.orbit_.image_shape == (1, 6, 6)
        assert to_torchvision(model.orbit_)(torch.rand(1, 6, 6)).shape == (1, 6, 6)
        assert from_json(to_json(model.orbit_)).image_shape == (1, 6, 6)
