"""Learnable orbits of signals: shifts and warps of time, scaling, and noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import final

from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import OMITTED, Stored, switch
from orbitwise.orbits.certainty import SAMPLES, Unit
from orbitwise.orbits.images import smooth_curve
from orbitwise.orbits.nodes import Draws, Noise
from orbitwise.orbits.orbit import DrawnOrbit, Interval, signal_widths
from orbitwise.transforms.signals import Boundary, TimeShift, check_length, read_delayed

RANGES = ("shift", "log_scale")


@final
class SignalOrbit(DrawnOrbit):
    """exp(a)·x(t - b - w(t)) + jitter: a signal moved in time, scaled, and with noise added.

    `signal_shape` is the length, or (channels, length), channels first; channels share their time. `shift`
    bounds b in samples, `log_scale` bounds a, `warp` is the standard deviation in samples of the smooth delay
    w, which varies over `smoothness` samples (an eighth of the length by default), and `jitter` the standard
    deviation of the noise. Moves with a range of zero are off; the others are learned, or only those in
    `learnable`. For names in `two_sided`, both bounds are learned. Beyond its ends a signal is zero, or wraps
    around.

    Parameters
    ----------
    signal_shape : int or (channels, length)
        How a row is read: channels first.
    shift, log_scale : float or (lower, upper), default=0.0
        Bounds of the delay b in samples, and of the logarithm a of the factor.
    warp, smoothness, jitter : float
        Deviation of the smooth delay and the length over which it varies, in samples; deviation of the noise.
    boundary : "zero" or "wrap", default="zero"
        What lies beyond the ends.
    learnable, two_sided : sequence of str
        What is learned, and which of shift and log_scale learn both their bounds.
    num_samples, num_groups, draws
        See `DrawnOrbit`.
    """

    is_smooth = True

    stored = Stored(
        {
            "shift": switch("has_delay"),
            "log_scale": OMITTED,
            "warp": switch("warps"),
            "smoothness": OMITTED,
            "jitter": switch("jitters"),
        }
    )

    def __init__(
        self,
        signal_shape: int | Sequence[int],
        shift: float | Interval = 0.0,
        log_scale: float | Interval = 0.0,
        warp: float = 0.0,
        smoothness: float | None = None,
        jitter: float = 0.0,
        boundary: Boundary = "zero",
        learnable: Sequence[str] | None = None,
        two_sided: Sequence[str] = (),
        num_samples: int = 32,
        num_groups: int = 2,
        draws: Draws = "random",
    ) -> None:
        super().__init__(num_samples, num_groups, draws)
        shifts = TimeShift(signal_shape, boundary)
        self.signal_shape = shifts.signal_shape
        self.boundary: Boundary = shifts.boundary
        length = self.signal_shape[1]
        smoothness = max(length / 8, 1.0) if smoothness is None else smoothness
        if not smoothness > 0:
            raise ValueError(f"smoothness must be positive, not {smoothness}.")
        ranges = {"shift": shift, "log_scale": log_scale}
        start = {name: value for name, value in ranges.items() if value != 0}
        widths = {"jitter": jitter} if jitter else {}
        widths |= {"warp": warp, "smoothness": smoothness} if warp else {}
        limits, natural = {"shift": float(length)}, signal_widths(length)
        self._learn_ranges(RANGES, start, widths, learnable, two_sided, limits, natural)
        self.warps, self.jitters = warp != 0, jitter != 0
        self.has_delay = self.warps or "shift" in start

    @property
    def randomness(self) -> Noise:
        """Shift and scale, a delay for every sample, a jitter for every entry."""
        length, entries = self.signal_shape[1], math.prod(self.signal_shape)
        return Noise(
            (
                ("uniform", len(RANGES)),
                ("normal", length if self.warps else 0),
                ("normal", entries if self.jitters else 0),
            )
        )

    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s d"]:
        check_length(x, self.signal_shape)
        shift, log_scale = self.bounds.place(noise[..., : len(RANGES)]).split(1, dim=-1)
        rest = noise[..., len(RANGES) :]
        moved = x[:, None, :]
        if self.has_delay:
            moved = read_delayed(x, shift + self.delay(rest), self.signal_shape, self.boundary)
        moved = log_scale.exp() * moved
        if self.jitters:
            moved = moved + self.widths["jitter"].to(noise) * rest[..., -x.shape[-1] :]
        return moved

    def delay(self, noise: Float[Tensor, "n s q"]) -> Float[Tensor, ...]:
        """The smooth delay of every sample."""
        if not self.warps:
            return noise.new_zeros(())
        smooth = smooth_curve(noise[..., : self.signal_shape[1]], self.widths["smoothness"])
        return self.widths["warp"].to(noise) * smooth

    def units(self) -> Mapping[str, Unit]:
        return {"shift": SAMPLES, "warp": SAMPLES, "smoothness": SAMPLES}
