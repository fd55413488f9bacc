"""Learned invariances as text for others."""

import json

import numpy as np
import pytest

from orbitwise import InvariantGPClassifier, InvariantGPRegressor
from orbitwise.cli.errors import CommandError
from orbitwise.cli.exporting import exported, orbit_of
from orbitwise.export import from_json
from tests.cli.conftest import bars, symmetric

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def turned() -> InvariantGPClassifier:
    x, y = bars(8)
    return InvariantGPClassifier(invariance="rotation", max_iterations=2, num_nodes=2, random_state=0).fit(
        x, y
    )


@pytest.mark.parametrize("builtin", [False, True])
def test_a_script_makes_the_transform(turned, builtin):
    if builtin:
        pytest.importorskip("kornia", reason="its own transform needs kornia")
    space: dict = {}
    exec(exported(turned, "kornia", "augmentation", builtin), space)
    assert callable(space["transform"])
    assert ("RandomAffine" in repr(space["transform"])) == builtin


def test_an_orbit_of_images_comes_back_from_json(turned):
    back = from_json(exported(turned, "json")).learned()
    assert back["angle"] == pytest.approx(turned.orbit_.learned()["angle"])


def test_tables_have_plain_json_and_no_script():
    x, y = symmetric(8)
    plain = InvariantGPRegressor(max_iterations=1).fit(x, y)
    signs = InvariantGPRegressor(invariance="negation", max_iterations=1).fit(x, y)
    assert orbit_of(plain) is None
    assert json.loads(exported(plain, "json"))["kind"] == "none"
    about = json.loads(exported(signs, "json"))
    moved = np.array(about["sign"]) * x[:1][:, np.array(about["index"])][0]
    np.testing.assert_array_equal(moved, [x[0], -x[0]])
    with pytest.raises(CommandError, match=r"has no invariance.*json"):
        exported(plain, "torchvision")
    with pytest.raises(CommandError, match="not of images"):
        exported(signs, "torchvision")
