import pytest
import torch
import torch.nn.functional as F
from gpytorch.kernels import RBFKernel

from orbitwise.functionals import OrbitAverage, OrbitSum
from orbitwise.orbits import PatchOrbit
from orbitwise.process import Process
from tests.contracts.annotations import unchecked
from tests.contracts.orbit_contract import inputs


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_patches_are_those_of_unfold(shape, stride: int, dtype: torch.dtype):
    orbit = PatchOrbit(shape, (2, 3), stride)
    channels = 1 if len(shape) == 2 else 2
    x = inputs(30 * channels, dtype=dtype)
    expected = F.unfold(x.reshape(3, channels, 5, 6), (2, 3), stride=stride).mT
    moved = orbit.points(x)
    assert torch.equal(moved.points, expected)
    assert orbit.size == expected.shape[1]
    assert not orbit.is_drawn
    assert moved.weights.dtype == dtype
    assert moved.weights.stride(0) == 0, "shared by all rows"
    torch.testing.assert_close(moved.weights, torch.full((3, orbit.size), 1 / orbit.size, dtype=dtype))


def test_the_whole_image_is_one_patch():
    orbit, x = PatchOrbit((3, 4), (3, 4)), inputs(12)
    assert orbit.size == 1
    assert torch.equal(orbit.points(x).points[:, 0], x)


@torch.no_grad()
def test_a_convolutional_gp_is_the_double_sum_over_patches():
    kernel = RBFKernel().double()
    x, y = inputs(12), 1 - inputs(12)
    orbit = PatchOrbit((3, 4), (2, 2))
    patches = [
        [image.reshape(3, 4)[i : i + 2, j : j + 2].flatten() for i in range(2) for j in range(3)]
        for image in (*x, *y)
    ]
    loop = torch.stack(
        [
            torch.stack([kernel(torch.stack(a), torch.stack(b)).to_dense().sum() for b in patches[3:]])
            for a in patches[:3]
        ]
    )
    for functional, factor in ((OrbitSum(orbit), 1), (OrbitAverage(orbit), 36)):
        found = Process(None, kernel).covariance(functional.atoms(x), functional.atoms(y))
        torch.testing.assert_close(factor * found, loop)


def test_patches_differentiate_along_the_image():
    orbit, x = PatchOrbit((3, 4), (2, 2)), inputs(12)
    _, slope = torch.func.jvp(lambda y: orbit.points(y).points, (x,), (torch.ones_like(x),))
    assert torch.equal(slope, torch.ones(3, 6, 4, dtype=torch.float64))


def test_it_says_what_it_is():
    assert repr(PatchOrbit((28, 28), (5, 5))) == "PatchOrbit(576 patches of 5×5 pixels)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image_shape": (5,)}, "height, width"),
        ({"patch_shape": (6, 2)}, r"patch of \(6, 2\) pixels is larger than the image of \(5, 5\)"),
        ({"patch_shape": (2, 6)}, "larger than the image"),
        ({"patch_shape": (0, 2)}, "whole pixels"),
        ({"patch_shape": (2,)}, "whole pixels"),
        ({"patch_shape": (2.5, 2)}, "whole pixels"),
        ({"stride": 0}, "stride must be at least 1, not 0"),
    ],
)
def test_bad_arguments(arguments, message: str):
    with unchecked(), pytest.raises(ValueError, match=message):
        PatchOrbit(**{"image_shape": (5, 5), "patch_shape": (2, 2)} | arguments)


def test_images_that_do_not_fit():
    with pytest.raises(ValueError, match=r"25 pixels.*width 24"):
        PatchOrbit((5, 5), (2, 2)).points(torch.zeros(2, 24))
    with unchecked(), pytest.raises(ValueError, match=r"\[n, d\], not shape"):
        PatchOrbit((5, 5), (2, 2)).points(torch.zeros(25))
