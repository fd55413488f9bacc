import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise import InvariantGPClassifier, InvariantGPRegressor
from orbitwise.estimators.invariances import image_orbit
from orbitwise.estimators.learned_ranges import Start, adopt, may_contain
from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.functionals.averages import freeze_in_common
from orbitwise.orbits import ImageOrbit

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
SHAPE = (6, 6)


def images(count=16):
    rng = np.random.default_rng(0)
    pictures = rng.random((count, *SHAPE))
    return pictures, (pictures[:, 2:4].sum((1, 2)) > 6).astype(int)


def fitted(kind, invariance, max_iterations=2, start=None):
    pictures, labels = images()
    targets = labels if kind is InvariantGPClassifier else labels + pictures[:, 0, 0]
    kernel = ScaleKernel(RBFKernel())
    model = kind(kernel, invariance, image_shape=SHAPE, num_nodes=4, max_iterations=max_iterations)
    if start is not None:
        model.begin_at(start)
    return model.fit(pictures, targets)


def on_common_nodes(model):
    return model.evidence_on(lambda functional: freeze_in_common(functional, 4, 3))


def test_an_orbit_that_adopted_a_smaller_one_moves_rows_as_that_does():
    small = ImageOrbit(SHAPE, {"angle": 0.4, "shear": 0.2})
    large = image_orbit(("affine", "deformation"), SHAPE)
    adopt([large], [small])
    assert {name for name, (_, high) in large.learned().items() if high == 0} == {
        *("log_scale_x", "log_scale_y", "shift_x", "shift_y", "amplitude")
    }
    x = torch.from_numpy(images()[0]).flatten(1)
    moved = [freeze_in_common(OrbitAverage(orbit), 8, 2).atoms(x).points for orbit in (small, large)]
    assert torch.equal(*moved)


def test_no_orbit_is_every_range_at_zero():
    large = image_orbit(("affine", "deformation"), SHAPE)
    adopt([OrbitAverage(large)], [Evaluation()])
    x = torch.from_numpy(images()[0]).flatten(1)
    points = freeze_in_common(OrbitAverage(large), 4, 0).atoms(x).points
    assert torch.allclose(points, x[:, None].expand_as(points))


@pytest.mark.parametrize("kind", [InvariantGPClassifier, InvariantGPRegressor])
@pytest.mark.parametrize("smaller", [None, "rotation"])
def test_a_fit_may_stay_at_the_solution_of_a_member_or_go_on_from_there(kind, smaller):
    member = fitted(kind, smaller)
    stayed = fitted(kind, "affine", start=Start(member, 4, 0))
    assert on_common_nodes(stayed) == pytest.approx(on_common_nodes(member), rel=1e-9)
    assert all(high == 0 for name, (_, high) in stayed.orbit_.learned().items() if name != "angle")
    assert stayed.orbit_intervals_["shear"][1] > 0
    gone_on = fitted(kind, "affine", start=Start(member, 4, 3))
    assert gone_on.log_evidence_ >= stayed.log_evidence_ - 1e-3
    assert not hasattr(gone_on, "_start")


def test_what_may_contain_what():
    none, rotation, affine = (fitted(InvariantGPRegressor, each, 0) for each in (None, "rotation", "affine"))
    flip, scaling = (fitted(InvariantGPRegressor, each, 0) for each in ("flip", "scaling"))
    assert may_contain(affine, rotation)
    assert may_contain(affine, none)
    assert may_contain(affine, scaling)
    for family, member in [
        *((rotation, affine), (rotation, scaling), (rotation, rotation)),
        *((none, rotation), (flip, none), (affine, flip)),
    ]:
        assert not may_contain(family, member)
    pictures, labels = images()
    width = pictures.reshape(len(pictures), -1).shape[1]
    kernel = ScaleKernel(RBFKernel(ard_num_dims=width))
    one_each = InvariantGPRegressor(kernel, image_shape=SHAPE, max_iterations=0).fit(pictures, labels + 0.5)
    assert not may_contain(affine, one_each)
