"""Learnable orbits of point clouds in the plane and in space: rotation, translation and jitter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import OMITTED, Stored, switch
from orbitwise.orbits.nodes import Draws, Noise
from orbitwise.orbits.orbit import ANGLE, DrawnOrbit, Interval
from orbitwise.transforms.vectors import Rotation


@final
class PointCloudOrbit(DrawnOrbit):
    """R p + b + jitter for every point p of a cloud, a row being its points one after the other.

    The rotation R is about the origin, by an angle between the bounds `angle`; in space its axis is uniform
    on the sphere. (A uniform angle up to π is not the uniform distribution of all rotations, which turns by
    large angles more often.) `shift` bounds b, the same along every axis at first, each learned by itself;
    `jitter` is the standard deviation of the noise of every coordinate. Moves with a range of zero are off;
    the others are learned, or only those in `learnable`.

    Parameters
    ----------
    num_points, num_dimensions : int
        How a row is read: points one after the other, of 2 or 3 coordinates.
    angle : float or (lower, upper), default=0.0
        Bounds of the angle of the rotation, in radians, at most π.
    shift : float or (lower, upper), default=0.0
        Bounds of the translation along every axis, in the units of the points.
    jitter : float, default=0.0
        Standard deviation of the noise of every coordinate.
    learnable, two_sided : sequence of str
        What is learned, and which ranges learn both their bounds.
    num_samples, num_groups, draws
        See `DrawnOrbit`.
    """

    is_smooth = True

    stored = Stored({"angle": switch("turns"), "shift": OMITTED, "jitter": switch("jitters")})

    def __init__(
        self,
        num_points: int,
        num_dimensions: int = 3,
        angle: float | Interval = 0.0,
        shift: float | Interval = 0.0,
        jitter: float = 0.0,
        learnable: Sequence[str] | None = None,
        two_sided: Sequence[str] = (),
        num_samples: int = 32,
        num_groups: int = 2,
        draws: Draws = "random",
    ) -> None:
        super().__init__(num_samples, num_groups, draws)
        if num_points < 1:
            raise ValueError(f"num_points must be at least 1, not {num_points}.")
        self.rotation = Rotation(num_dimensions)
        self.num_points, self.num_dimensions = num_points, num_dimensions
        shifts = [f"shift_{axis}" for axis in "xyz"[:num_dimensions]]
        start = {} if angle == 0 else {"angle": angle}
        start |= {} if shift == 0 else dict.fromkeys(shifts, shift)
        widths = {} if jitter == 0 else {"jitter": jitter}
        names, limits, natural = ("angle", *shifts), {"angle": math.pi}, {"angle": ANGLE}
        self._learn_ranges(names, start, widths, learnable, two_sided, limits, natural)
        self.turns, self.jitters = angle != 0, jitter != 0

    @property
    def randomness(self) -> Noise:
        """The angle and the shifts, the axis in space, the jitter."""
        axis = 3 if self.num_dimensions == 3 and self.turns else 0
        jitter = self.num_points * self.num_dimensions if self.jitters else 0
        return Noise((("uniform", 1 + self.num_dimensions), ("normal", axis), ("normal", jitter)))

    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s d"]:
        width = self.num_points * self.num_dimensions
        if x.shape[-1] != width:
            raise ValueError(
                f"{self.num_points} points of {self.num_dimensions} dimensions have {width} coordinates, "
                f"but the inputs have width {x.shape[-1]}."
            )
        count = 1 + self.num_dimensions
        alpha, rest = self.bounds.place(noise[..., :count]), noise[..., count:]
        moved = x[:, None, :]
        if self.turns:
            angle = alpha[..., :1]
            if self.num_dimensions == 3:
                # the direction of a normal vector is uniform on the sphere
                angle = angle * torch.nn.functional.normalize(rest[..., :3], dim=-1)
            moved = self.rotation(x, angle)
        moved = moved + alpha[..., 1:].repeat(1, 1, self.num_points)
        if self.jitters:
            moved = moved + self.widths["jitter"].to(noise) * rest[..., -width:]
        return moved
