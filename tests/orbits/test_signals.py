import math

import pytest
import torch
from scipy import stats

from orbitwise.orbits import SignalOrbit
from orbitwise.transforms import TimeShift
from tests.contracts.annotations import unchecked
from tests.contracts.learnable_contract import LearnableContract
from tests.contracts.orbit_contract import inputs, seeded


class TestSignalOrbit(LearnableContract):
    @pytest.fixture(params=["shift", "warp", "jitter", "all"])
    def case(self, request):
        return {
            "shift": lambda: (SignalOrbit(6, shift=1.5, num_samples=4), 6),
            "warp": lambda: (SignalOrbit(6, warp=0.7, smoothness=2.0, num_samples=4), 6),
            "jitter": lambda: (SignalOrbit(6, jitter=0.2, num_samples=4), 6),
            "all": lambda: (
                SignalOrbit(
                    (2, 5), (0.2, 2.0), 0.3, 0.4, 1.5, 0.1, "wrap", two_sided=["shift"], num_samples=2
                ),
                10,
            ),
        }[request.param]()


def test_nothing_is_the_identity():
    x = inputs(6)
    moved = SignalOrbit(6, num_samples=4).points(x, seeded()).points
    assert torch.equal(moved, x[:, None].expand(3, 4, 6))
    tiny = SignalOrbit(6, 1e-9, 1e-9, 1e-9, jitter=1e-9, num_samples=4).points(x, seeded()).points
    torch.testing.assert_close(tiny, x[:, None].expand(3, 4, 6), rtol=0, atol=1e-5)


@pytest.mark.parametrize("boundary", ["zero", "wrap"])
def test_a_shift_is_uniform_between_its_bounds(boundary: str):
    orbit, x = SignalOrbit((2, 4), (0.5, 2.5), boundary=boundary, num_samples=6), inputs(8)
    noise = orbit.noise((3, 6), seeded(), x)
    expected = TimeShift((2, 4), boundary)(x, 1.5 + noise[..., :1])
    torch.testing.assert_close(orbit.points(x, seeded()).points, expected)


def test_a_whole_shift_is_a_roll():
    moved = (
        SignalOrbit((2, 4), (3.0, 3.0), boundary="wrap", learnable=[]).freeze(2, seeded()).points(inputs(8))
    )
    rolled = inputs(8).reshape(3, 2, 4).roll(3, -1).reshape(3, 8)
    torch.testing.assert_close(moved.points, rolled[:, None].expand(3, 2, 8))


def test_a_warp_has_its_deviation_in_samples():
    orbit = SignalOrbit(20, warp=0.6, smoothness=3.0)
    delay = orbit.delay(torch.randn(1000, 4, 20, generator=seeded(), dtype=torch.float64)).detach()
    assert (delay.square().mean((0, 1)).sqrt() - 0.6).abs().max() < 5 * 0.6 / math.sqrt(2 * 4000)
    assert (delay[..., 1:] - delay[..., :-1]).square().mean().sqrt() < 0.2, "smooth"
    assert SignalOrbit(20, warp=0.6).widths["smoothness"].item() == pytest.approx(2.5), (
        "an eighth of the length"
    )


def test_loudness_scales_and_jitter_adds():
    x = inputs(4, rows=1).expand(4000, -1)
    louder = SignalOrbit(4, log_scale=0.5, num_samples=2).points(x, seeded()).points
    ratio = (louder / x[:, None]).log().detach()
    assert ratio.std(-1).max() < 1e-6
    assert stats.kstest(ratio[..., 0].flatten().numpy(), stats.uniform(-0.5, 1).cdf).pvalue > 1e-3
    noisy = SignalOrbit(4, jitter=0.2, num_samples=2).points(x, seeded()).points - x[:, None]
    assert stats.kstest(noisy.detach().flatten()[:4000].numpy(), stats.norm(0, 0.2).cdf).pvalue > 1e-3


def test_jitter_is_louder_with_the_signal_no_more():
    """Noise is added after the signal was scaled."""
    orbit = SignalOrbit(4, log_scale=(2.0, 2.0), jitter=0.1, learnable=[], num_samples=200)
    moved = orbit.points(torch.zeros(1, 4, dtype=torch.float64), seeded()).points
    assert moved.std().item() == pytest.approx(0.1, rel=0.1)


def test_natural_units():
    orbit = SignalOrbit(40, shift=2.0, log_scale=math.log(2), warp=1.0, jitter=0.1)
    assert orbit.describe() == (
        "shift -2 to +2 samples, log_scale -50 to +100 %, jitter 0.1, warp 1 samples, smoothness 5 samples"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"signal_shape": 0}, "whole samples"),
        ({"signal_shape": (1, 2, 3)}, "whole samples"),
        ({"shift": -1.0}, "symmetric bound"),
        ({"shift": 20.0}, "above its limit 10"),
        ({"warp": -1.0}, "warp must be finite and must not be negative"),
        ({"jitter": -1.0}, "jitter must be finite and must not be negative"),
        ({"warp": 1.0, "smoothness": 0.0}, "smoothness must be positive"),
        ({"boundary": "mirror"}, "'zero' or 'wrap'"),
        ({"jitter": 1.0, "learnable": ["warp"]}, "'warp' cannot be learned here; there are jitter"),
        ({"two_sided": ["jitter"]}, "no parameter 'jitter'"),
        ({"num_samples": 1}, "num_samples=1"),
    ],
)
def test_bad_arguments(arguments, message: str):
    with unchecked(), pytest.raises(ValueError, match=message):
        SignalOrbit(**{"signal_shape": 10} | arguments)
