"""The ranges of an image orbit in the units of augmentation libraries, single draws, and symmetries.

To compare the pixels of a library with those of an orbit, both must move the image by the same draw: every
parameter is taken at the same position between its bounds (`Moves.at`), and the displacement of every pixel
at the same quantile. Flips and quarter turns, which are exact in every library, have names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.export.faithful import image_shape_of
from orbitwise.orbits.deformations import DeformationOrbit
from orbitwise.orbits.finite import FiniteOrbit, closure
from orbitwise.orbits.images import ImageOrbit
from orbitwise.orbits.orbit import Interval, Orbit
from orbitwise.transforms.images import AFFINE_PARAMETERS, check_image_shape, flips, quarter_turns
from orbitwise.transforms.permutations import SignedPermutations, compose, element_keys


@final
class Draw(NamedTuple):
    """One affine map and one field of noise, in the units of `Moves`."""

    angle: float
    scale_x: float
    scale_y: float
    shear: float
    shift_x: float
    shift_y: float
    noise: Float[Tensor, "2 h w"] | None = None


@final
@dataclass(frozen=True)
class Moves:
    """Degrees counter-clockwise, scale factors, degrees of shear (tan is the move to the right per pixel
    down), pixels right and down; `amplitude` and `smoothness` of the displacement in pixels, 0 for none.
    """

    image_shape: tuple[int, int, int]
    angle: Interval
    scale_x: Interval
    scale_y: Interval
    shear: Interval
    shift_x: Interval
    shift_y: Interval
    amplitude: float = 0.0
    smoothness: float = 0.0

    @property
    def affine(self) -> tuple[Interval, ...]:
        """The six ranges of the affine map."""
        return (self.angle, self.scale_x, self.scale_y, self.shear, self.shift_x, self.shift_y)

    @property
    def is_affine(self) -> bool:
        """Whether any affine map but the identity is drawn."""
        return self.affine != ((0.0, 0.0), (1.0, 1.0), (1.0, 1.0), *3 * ((0.0, 0.0),))

    @property
    def mean_shift(self) -> tuple[float, float]:
        """The middle of the shifts, which may differ from zero if they were learned two-sided."""
        return sum(self.shift_x) / 2, sum(self.shift_y) / 2

    @property
    def has_shifts(self) -> bool:
        """Whether any shift is drawn."""
        return self.shift_x != (0.0, 0.0) or self.shift_y != (0.0, 0.0)

    @property
    def relative_shifts(self) -> tuple[float, float]:
        """Half the ranges of the shifts, as fractions of the width and the height."""
        _, height, width = self.image_shape
        half_x, half_y = ((high - low) / 2 for low, high in (self.shift_x, self.shift_y))
        return half_x / width, half_y / height

    def at(self, place: Float[Tensor, " p"], noise: Float[Tensor, "2 h w"] | None = None) -> Draw:
        """The draw at `place` between the bounds: -1 is the lower one, 1 the upper one."""
        pairs = zip(self.affine, place.tolist(), strict=True)
        return Draw(*[(low + high) / 2 + (high - low) / 2 * at for (low, high), at in pairs], noise=noise)


def moves_of(orbit: Orbit) -> Moves:
    """The ranges of an `ImageOrbit` or a `DeformationOrbit`, or a ValueError for other orbits."""
    if not isinstance(orbit, ImageOrbit | DeformationOrbit):
        raise ValueError(
            f"Libraries have no built-in equivalent of {type(orbit).__name__}, only of ImageOrbit, "
            "DeformationOrbit and a FiniteOrbit of flips and quarter turns: use faithful=True."
        )
    shape = image_shape_of(orbit)
    ranges = orbit.bounds.intervals() if isinstance(orbit, ImageOrbit) else {}
    angle, scale_x, scale_y, shear, shift_x, shift_y = (ranges.get(n, (0.0, 0.0)) for n in AFFINE_PARAMETERS)
    amplitude = smoothness = 0.0
    if orbit.deforms:
        learned = orbit.learned()
        amplitude, smoothness = learned["amplitude"][1], learned["smoothness"][1]
    _, height, width = shape
    return Moves(
        shape,
        (math.degrees(angle[0]), math.degrees(angle[1])),
        _nearest(math.exp, scale_x),
        _nearest(math.exp, scale_y),
        _nearest(lambda slope: math.degrees(math.atan(slope)), shear),
        (shift_x[0] * width / 2, shift_x[1] * width / 2),
        (shift_y[0] * height / 2, shift_y[1] * height / 2),
        amplitude,
        smoothness,
    )


def place_of(
    orbit: ImageOrbit | DeformationOrbit, noise: Float[Tensor, " q"]
) -> tuple[Tensor, Tensor | None]:
    """The positions [6] of an orbit's noise between the bounds of its six affine parameters, and the noise of
    its displacement [2 h w] as uniform numbers from -1 to 1, with the same quantile at every pixel.
    """
    count = len(orbit.bounds.names)
    fields = noise[count:].reshape(2, *image_shape_of(orbit)[1:]) if orbit.deforms else None
    if isinstance(orbit, ImageOrbit):
        return noise[:count], _uniform(fields)
    if fields is not None:
        # x + F₁∘t_x - F₂∘t_y reads the image at F₁ to the right and F₂ above
        fields = fields * torch.tensor([1.0, -1.0]).to(fields)[:, None, None]
    return noise.new_zeros(len(AFFINE_PARAMETERS)), _uniform(fields)


def uniform_strength(amplitude: float, smoothness: float, radius: int) -> float:
    """The factor by which smoothed uniform noise has the standard deviation `amplitude`."""
    weights = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / smoothness).square()).double()
    # uniform noise has the deviation 1/√3, and smoothing by K⊗K, where K has the sum 1, multiplies it by |K|²
    return amplitude * math.sqrt(3) / float((weights / weights.sum()).square().sum())


def _uniform(normal: Tensor | None) -> Tensor | None:
    return None if normal is None else torch.erf(normal / math.sqrt(2))


def _nearest(convert: Callable[[float], float], interval: Interval) -> Interval:
    """The uniform distribution that is nearest to a converted uniform distribution.

    (first, last) minimises E[((1-u) first + u last - convert(α_u))²], where α_u lies at the fraction u of the
    interval. Neither end goes beyond the converted bounds.
    """
    low, high = interval
    if low == high:
        return convert(low), convert(low)
    u = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    values = torch.tensor([convert(low + (high - low) * float(place)) for place in u], dtype=torch.float64)
    first, last = torch.linalg.lstsq(torch.stack([1 - u, u], -1), values[:, None]).solution[:, 0].tolist()
    if first < convert(low):
        first = convert(low)
        last = float((u * (values - (1 - u) * first)).sum() / u.square().sum())
    return first, min(last, convert(high))


FLIPS = ("identity", "flip_horizontal", "flip_vertical", "turn_180")
TURNS = ("identity", "turn_90", "turn_180", "turn_270")
MIRRORED_TURNS = ("flip_horizontal", "flipped_turn_90", "flip_vertical", "flipped_turn_270")
SYMMETRIES = tuple(dict.fromkeys((*FLIPS, *TURNS, *MIRRORED_TURNS)))


def symmetries(image_shape: Sequence[int]) -> dict[str, Tensor]:
    """The index from which each pixel is read, for every symmetry of the image's rectangle.

    Turns are counter-clockwise. A flipped turn is turned first, then mirrored left to right.
    """
    mirrors = flips(image_shape, horizontal=True, vertical=True)
    found: dict[str, Tensor] = dict(zip(FLIPS, mirrors.index, strict=True))
    if image_shape[-1] != image_shape[-2]:
        return found
    turns, mirror = quarter_turns(image_shape), mirrors.index[1]
    found |= dict(zip(TURNS, turns.index, strict=True))
    sign = torch.ones_like(mirror)
    return found | {
        name: compose(index, sign, mirror, sign)[0]
        for name, index in zip(MIRRORED_TURNS, turns.index, strict=True)
    }


def symmetries_of(orbit: FiniteOrbit, image_shape: Sequence[int]) -> tuple[str, ...]:
    """The names of the orbit's elements, or a ValueError if one is neither a flip nor a quarter turn."""
    transform = orbit.transform
    if not isinstance(transform, SignedPermutations) or orbit.weights is not None:
        raise ValueError(
            "Only flips and quarter turns without weights have names, not a finite orbit of "
            f"{type(transform).__name__}{' with weights' if orbit.weights is not None else ''}."
        )
    index, sign = transform.index, transform.sign
    if orbit.elements is not None:
        chosen = orbit.elements[:, 0].long()
        index, sign = index[chosen], sign[chosen]
    named = symmetries(image_shape)
    keys = element_keys(torch.stack(list(named.values())), torch.ones(1, dtype=torch.int8))
    known = dict(zip(keys, named, strict=True))
    found = [known.get(key) for key in element_keys(index, sign)]
    if None in found:
        raise ValueError(
            f"Element {found.index(None)} of this orbit is neither a flip nor a quarter turn of images "
            f"{tuple(image_shape)}; only {', '.join(named)} have names."
        )
    return tuple(name for name in found if name is not None)


def orbit_of(names: Sequence[str], image_shape: Sequence[int]) -> FiniteOrbit:
    """The finite orbit of the named flips and quarter turns, of which the identity is the first."""
    known = symmetries(image_shape)
    for name in names:
        if name not in known:
            raise ValueError(
                f"{name!r} is not a symmetry of images {tuple(image_shape)}, which are {', '.join(known)}."
            )
    if not names or names[0] != "identity" or len(set(names)) < len(names):
        raise ValueError(f"Elements must start with 'identity' and be distinct, not {', '.join(names)}.")
    index = torch.stack([known[name] for name in names])
    is_group = closure(SignedPermutations(index)).size == len(names)
    orbit = FiniteOrbit(SignedPermutations(index, is_group=is_group))
    orbit.image_shape = check_image_shape(image_shape)
    return orbit
