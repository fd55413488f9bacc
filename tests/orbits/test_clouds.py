import math

import pytest
import torch
from scipy import stats

from orbitwise.orbits import PointCloudOrbit, SampledOrbit
from orbitwise.transforms import Rotation
from tests.contracts.learnable_contract import LearnableContract
from tests.contracts.orbit_contract import inputs, seeded


class TestPointCloudOrbit(LearnableContract):
    @pytest.fixture(params=["plane", "space", "shift", "all"])
    def case(self, request):
        return {
            "plane": lambda: (PointCloudOrbit(3, 2, angle=0.5, num_samples=4), 6),
            "space": lambda: (PointCloudOrbit(2, 3, angle=(0.1, 0.5), two_sided=["angle"], num_samples=4), 6),
            "shift": lambda: (PointCloudOrbit(2, 2, shift=0.5, num_samples=4), 4),
            "all": lambda: (PointCloudOrbit(2, 3, 0.5, 0.2, 0.1, num_samples=4), 6),
        }[request.param]()


def draws(orbit: PointCloudOrbit, x: torch.Tensor, rows: int = 2000) -> torch.Tensor:
    return orbit.points(x.expand(rows, -1), seeded()).points.detach()


def test_nothing_is_the_identity():
    for dimensions in (2, 3):
        orbit = PointCloudOrbit(2, dimensions, num_samples=2)
        x = inputs(2 * dimensions)
        assert torch.equal(orbit.points(x, seeded()).points, x[:, None].expand(3, 2, -1))
        tiny = PointCloudOrbit(2, dimensions, 1e-9, 1e-9, 1e-9, num_samples=2)
        torch.testing.assert_close(
            tiny.points(x, seeded()).points, x[:, None].expand(3, 2, -1), rtol=0, atol=1e-5
        )


def test_in_the_plane_it_is_a_sampled_rotation():
    orbit, x = PointCloudOrbit(3, 2, angle=(-0.2, 0.6), num_samples=4), inputs(6)
    noise = orbit.noise((3, 4), seeded(), x)
    same = SampledOrbit(Rotation(2), -0.2, 0.6).move(x, noise[..., :1])
    torch.testing.assert_close(orbit.move(x, noise), same)


def test_a_cloud_turns_as_a_whole():
    x = inputs(9, rows=1)
    moved = draws(PointCloudOrbit(3, 3, angle=math.pi, num_samples=2), x, rows=20).reshape(40, 3, 3)
    distances = torch.cdist(moved, moved)
    torch.testing.assert_close(distances, torch.cdist(x.reshape(3, 3), x.reshape(3, 3)).expand(40, 3, 3))
    torch.testing.assert_close(moved.norm(dim=-1), x.reshape(3, 3).norm(dim=-1).expand(40, 3))


def test_in_space_the_axis_is_uniform_and_the_angle_within_its_bounds():
    # the images of the three unit vectors are the columns of the rotation's matrix
    orbit = PointCloudOrbit(3, 3, angle=(0.3, 1.2), num_samples=2)
    turned = draws(orbit, torch.eye(3, dtype=torch.float64).reshape(1, 9)).reshape(-1, 3, 3).mT
    trace = turned.diagonal(dim1=-1, dim2=-2).sum(-1)
    angle = ((trace - 1) / 2).clamp(-1, 1).acos()
    assert stats.kstest(angle.numpy(), stats.uniform(0.3, 0.9).cdf).pvalue > 1e-3
    skew = (turned - turned.mT) / (2 * angle.sin()[:, None, None])
    axis = torch.stack([skew[:, 2, 1], skew[:, 0, 2], skew[:, 1, 0]], -1)
    # each coordinate of a uniform point of the sphere is uniform (Archimedes)
    for column in axis.T:
        assert stats.kstest(column.numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-3


def test_all_points_shift_together_and_jitter_apart():
    x = torch.zeros(1, 6, dtype=torch.float64)
    shifted = draws(PointCloudOrbit(3, 2, shift=0.5, num_samples=2), x).reshape(-1, 3, 2)
    assert (shifted == shifted[:, :1]).all()
    for column in shifted[:, 0].T:
        assert stats.kstest(column.numpy(), stats.uniform(-0.5, 1).cdf).pvalue > 1e-3
    jittered = draws(PointCloudOrbit(3, 2, jitter=0.2, num_samples=2), x).reshape(-1, 6)
    assert stats.kstest(jittered.flatten().numpy()[:5000], stats.norm(0, 0.2).cdf).pvalue > 1e-3
    assert (torch.corrcoef(jittered.T) - torch.eye(6)).abs().max() < 0.08


def test_what_is_learned():
    orbit = PointCloudOrbit(3, 3, 0.5, 0.2, 0.1, learnable=["angle", "jitter"])
    assert set(orbit.learned()) == {"angle", "shift_x", "shift_y", "shift_z", "jitter"}
    assert orbit.bounds.moves.tolist() == [True, False, False, False]
    assert "angle -28.6 to +28.6°" in repr(orbit)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_points": 0}, "at least 1, not 0"),
        ({"num_dimensions": 4}, "2 or 3 dimensions, not 4"),
        ({"angle": 4.0}, "above its limit 3.14"),
        ({"angle": -0.1}, "symmetric bound"),
        ({"jitter": -0.1}, "jitter must be finite and must not be negative"),
        ({"angle": 0.1, "learnable": ["jitter"]}, "'jitter' cannot be learned here; there are angle"),
        ({"num_samples": 1}, "num_samples=1"),
    ],
)
def test_bad_arguments(arguments, message: str):
    with pytest.raises(ValueError, match=message):
        PointCloudOrbit(**{"num_points": 3} | arguments)
