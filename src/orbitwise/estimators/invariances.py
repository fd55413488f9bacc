"""The vocabulary of invariances: every name, the form of data it belongs to, and its meaning.

A name means an orbit over which Gaussian processes average (f(x) = mean of g over the orbit of x),
functionals that kernel machines keep small (Σ (L f)²), moved copies from which `VirtualSVC` learns, or a
claim that `AutoGPRegressor` tests. Estimators, comparisons, the search, the command and the report all use
this module. If an estimator cannot use a name, the error says which one can.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.functionals.averages import LocalAverage, OrbitAverage
from orbitwise.functionals.derivatives import DirectionalDerivatives, Gradient
from orbitwise.functionals.functional import Block, Evaluation, Functional
from orbitwise.functionals.graphs import neighbour_graph
from orbitwise.functionals.points import Difference, deletion_pairs
from orbitwise.functionals.tangents import PAPER_MOVES, ImageTangent, moved_pairs, smoothed_images
from orbitwise.orbits.clouds import PointCloudOrbit
from orbitwise.orbits.deformations import DeformationOrbit
from orbitwise.orbits.finite import FiniteOrbit, closure
from orbitwise.orbits.images import ImageOrbit
from orbitwise.orbits.orbit import ANGLE, Orbit, image_widths, signal_widths
from orbitwise.orbits.orders import OrderOrbit
from orbitwise.orbits.signals import SignalOrbit
from orbitwise.transforms import (
    AffineWarp,
    SignedPermutations,
    TimeShift,
    block_permutations,
    cyclic_shifts,
    flips,
    negation,
    quarter_turns,
    sign_changes,
)
from orbitwise.transforms.permutations import MAX_ELEMENTS
from orbitwise.transforms.signals import check_signal_shape

Invariance = str | Orbit | Functional | None
Family = Literal["image", "signal", "cloud", "table"]
Use = Literal["average", "penalise", "copy", "search"]
"""What an estimator does with an invariance."""

ESTIMATORS: dict[Use, str] = {
    "average": "InvariantGPRegressor, InvariantGPClassifier or SparseGPRegressor",
    "penalise": "InvariantSVC or InvariantKernelRidge",
    "copy": "VirtualSVC",
    "search": "AutoGPRegressor",
}
"""Which estimators use an invariance in each way."""
NO_INVARIANCE = "none"
"""The name of no invariance, equivalent to None."""
NEIGHBOURS = 6
SMOOTHING = 1.0
"""Width in pixels of the Gaussian that smooths images before their tangents are taken."""
AVERAGED = 0.5
"""The width of local averages, in bandwidths."""


class Penalty(NamedTuple):
    """Functionals that should vanish, and their weights (None: all are 1)."""

    block: Block
    weights: Float[Tensor, " r"] | None = None


class Inputs(NamedTuple):
    """The inputs as names need them: the number of features, and the shape of one input.

    The shape is (height, width) or (channels, height, width) of an image, (channels, length) of a signal and
    (points, dimensions) of a cloud; None where inputs are rows without a shape.
    """

    num_features: int
    shape: tuple[int, ...] | None = None


Penalise = Callable[[Tensor, Inputs, float], Penalty | None]
"""(points [n d], inputs, bandwidth) → what should vanish at these points."""


@final
@dataclass(frozen=True)
class Named:
    """One name: its form of data (None: any rows), its meaning, and its object for each use."""

    meaning: str
    family: Family | None = None
    orbit: Callable[[Inputs], Orbit] | None = None
    penalty: Penalise | None = None
    is_searched: bool = False
    is_copied: bool = False
    """Whether `VirtualSVC` makes special copies for it; it draws copies from any orbit."""

    @property
    def uses(self) -> tuple[Use, ...]:
        """The ways in which estimators can use it."""
        has: dict[Use, bool] = {
            "average": self.orbit is not None,
            "penalise": self.penalty is not None,
            "copy": self.orbit is not None or self.is_copied,
            "search": self.is_searched,
        }
        return tuple(use for use in has if has[use])


AFFINE_NAMES = {
    "affine": ("angle", "log_scale_x", "log_scale_y", "shear", "shift_x", "shift_y"),
    "rotation": ("angle",),
    "scaling": ("log_scale_x", "log_scale_y"),
    "shear": ("shear",),
    "translation": ("shift_x", "shift_y"),
}


def image_orbit(parts: Sequence[str], image_shape: Sequence[int]) -> ImageOrbit:
    """The learnable orbit of the named parts, with initial ranges of natural size."""
    names = [name for part in parts if part != "deformation" for name in AFFINE_NAMES[part]]
    natural = image_widths(image_shape)
    amplitude = natural["amplitude"] if "deformation" in parts else 0.0
    start = {name: natural[name] for name in names}
    return ImageOrbit(image_shape, start, amplitude, smoothness=min(image_shape[-2:]) / 6)


def affine_penalty(parts: Sequence[str], x: Tensor, inputs: Inputs, bandwidth: float) -> Penalty:
    """w_j ∂f(t_α x)/∂α_j at α = 0: to first order, the change of f by a move of ordinary size w_j.

    Images are smoothed before their tangents are taken, as for "tangent".
    """
    shape = _shape(inputs)
    names = [name for part in parts for name in AFFINE_NAMES[part]]
    natural, warp = image_widths(shape), AffineWarp(shape)
    places = [warp.parameter_names.index(name) for name in names]
    widths = x.new_tensor([natural[name] for name in names])
    tangents = warp.tangent(smoothed_images(x, shape, SMOOTHING))[:, places]
    return Penalty(DirectionalDerivatives(widths[:, None] * tangents).atoms(x))


def signal_orbit(parts: Sequence[str], inputs: Inputs) -> SignalOrbit:
    """The learnable orbit of the named parts of signals; rows without a shape are signals of one channel."""
    shape = check_signal_shape(inputs.shape or inputs.num_features)
    natural = signal_widths(shape[1])
    shift, scale, warp = (
        natural[name] if part in parts else 0.0
        for part, name in (("shift", "shift"), ("scale", "log_scale"), ("warp", "warp"))
    )
    return SignalOrbit(shape, shift, scale, warp)


def _shift_penalty(x: Tensor, inputs: Inputs, bandwidth: float) -> Penalty:
    shape = check_signal_shape(inputs.shape or inputs.num_features)
    return Penalty(DirectionalDerivatives(TimeShift(shape).tangent(x)).atoms(x))


def _scale_penalty(x: Tensor, inputs: Inputs, bandwidth: float) -> Penalty:
    width = signal_widths(inputs.num_features)["log_scale"]
    return Penalty(DirectionalDerivatives(width * x[:, None]).atoms(x))


def _cloud_shape(inputs: Inputs) -> tuple[int, int]:
    if inputs.shape is None or len(inputs.shape) != 2:
        raise ValueError("Invariances of clouds need X as [n_samples, num_points, num_dimensions].")
    return inputs.shape[0], inputs.shape[1]


def _cloud_rotation(inputs: Inputs) -> Orbit:
    return PointCloudOrbit(*_cloud_shape(inputs), angle=ANGLE)


MOST_ORDERS = 5_040
"""All orders of up to seven blocks are averaged over; of more, orders are drawn."""


def _orders(num_blocks: int, block_size: int = 1) -> Orbit:
    """All orders of blocks, or random ones where all would be too many."""
    if math.factorial(num_blocks) > MOST_ORDERS:
        return OrderOrbit(num_blocks, block_size)
    return FiniteOrbit(block_permutations(num_blocks, block_size))


def _cloud_permutation(inputs: Inputs) -> Orbit:
    return _orders(*_cloud_shape(inputs))


def _permutation(inputs: Inputs) -> Orbit:
    return _orders(inputs.num_features)


def _order_penalty(
    orbit: Callable[[Inputs], Orbit], x: Tensor, inputs: Inputs, bandwidth: float
) -> Penalty | None:
    """f(t x) - f(x) for all orders t, or for the exchanges of neighbours, which generate them."""
    found = orbit(inputs)
    if isinstance(found, FiniteOrbit):
        return group_penalty(found, x)
    assert isinstance(found, OrderOrbit)
    count, size = found.num_blocks, found.block_size
    order = torch.arange(count).repeat(count, 1)
    places = torch.arange(count - 1)
    order[places + 1, places], order[places + 1, places + 1] = places + 1, places
    entries = (order[..., None] * size + torch.arange(size)).flatten(1)
    return group_penalty(FiniteOrbit(SignedPermutations(entries)), x)


def _rotation_penalty(x: Tensor, inputs: Inputs, bandwidth: float) -> Penalty:
    """Derivatives of f by an ordinary turn in every plane of two axes: (−y, x) for the plane of x and y."""
    count, width = _cloud_shape(inputs)
    planes = [(i, j) for i in range(width) for j in range(i + 1, width)]
    points = x.reshape(len(x), 1, count, width)
    turned = torch.zeros(len(x), len(planes), count, width, dtype=x.dtype, device=x.device)
    for number, (i, j) in enumerate(planes):
        turned[:, number, :, i] = -points[:, 0, :, j]
        turned[:, number, :, j] = points[:, 0, :, i]
    return Penalty(DirectionalDerivatives(ANGLE * turned.flatten(2)).atoms(x))


def group_penalty(orbit: FiniteOrbit, x: Float[Tensor, "n d"]) -> Penalty | None:
    """f(t_e x) - f(x) for every element e of a finite orbit that moves x; None where none does."""
    if orbit.is_drawn or orbit.weights is not None:
        raise ValueError(
            "A kernel machine can penalise a finite orbit of all elements without weights only. For an orbit "
            "with "
            f"num_samples or weights use {ESTIMATORS['average']}, which average over it."
        )
    moved = copy.deepcopy(orbit).to(x).points(x).points
    pairs = torch.stack([moved, x[:, None].expand_as(moved)], dim=2).flatten(0, 1)
    pairs = pairs[(pairs[:, 0] != pairs[:, 1]).any(-1)]
    return Penalty(Difference().atoms(pairs)) if len(pairs) else None


def _gradient_penalty(x: Tensor, inputs: Inputs, bandwidth: float) -> Penalty:
    # times the bandwidth b, so that b ∂f has the unit of f
    return Penalty(Gradient().atoms(x).scale(bandwidth))


def _tangent_penalty(x: Tensor, inputs: Inputs, bandwidth: float) -> Penalty:
    return Penalty(ImageTangent(_shape(inputs), smoothing=SMOOTHING).atoms(x))


def _move_penalty(x: Tensor, inputs: Inputs, bandwidth: float) -> Penalty:
    return Penalty(ImageTangent(_shape(inputs), PAPER_MOVES).atoms(x))


def _difference_penalty(x: Tensor, inputs: Inputs, bandwidth: float) -> Penalty:
    return Penalty(Difference().atoms(moved_pairs(x, _shape(inputs))))


def _local_average_penalty(x: Tensor, inputs: Inputs, bandwidth: float) -> Penalty:
    return Penalty(LocalAverage(AVERAGED * bandwidth).atoms(x))


def _graph_penalty(x: Tensor, inputs: Inputs, bandwidth: float) -> Penalty | None:
    if len(x) < 2:
        return None
    graph = neighbour_graph(x, min(NEIGHBOURS, len(x) - 1))
    return Penalty(Difference().atoms(graph.pairs), graph.weights)


def _deletion_penalty(x: Tensor, inputs: Inputs, bandwidth: float) -> Penalty:
    return Penalty(Difference().atoms(deletion_pairs(x, reference=x.mean(0))))


def _group(meaning: str, family: Family | None, orbit: Callable[[Inputs], FiniteOrbit]) -> Named:
    penalty: Penalise = lambda x, inputs, bandwidth: group_penalty(orbit(inputs), x)  # noqa: E731
    return Named(meaning, family, orbit, penalty)


def _columns(meaning: str, family: Family | None, group: Callable[[int], SignedPermutations]) -> Named:
    return _group(meaning, family, lambda inputs: FiniteOrbit(group(inputs.num_features)))


def _affine(meaning: str, *parts: str) -> Named:
    is_smooth = "deformation" not in parts
    return Named(
        meaning,
        "image",
        lambda inputs: image_orbit(parts, _shape(inputs)),
        partial(affine_penalty, parts) if is_smooth else None,
    )


def _tangent_deformation(inputs: Inputs) -> Orbit:
    shape = _shape(inputs)
    natural = image_widths(shape)
    return DeformationOrbit(shape, natural["amplitude"], min(shape[-2:]) / 6, thickness=natural["thickness"])


NAMES: dict[str, Named] = {
    NO_INVARIANCE: Named("no invariance, like None"),
    "cyclic": _columns("cyclic shifts of the columns", "table", cyclic_shifts),
    "negation": _columns("the sign of all columns together", None, negation),
    "permutation": Named(
        "the order of the columns",
        "table",
        _permutation,
        partial(_order_penalty, _permutation),
        is_searched=True,
    ),
    "sign": _columns("the signs of the columns", "table", sign_changes),
    "affine": _affine("rotation, scaling, shear and translation of images", "affine"),
    "rotation": _affine("rotation of images", "rotation"),
    "scaling": _affine("scaling of images along either axis", "scaling"),
    "shear": _affine("shear of images", "shear"),
    "translation": _affine("translation of images", "translation"),
    "deformation": _affine("smooth local deformations of images", "deformation"),
    "affine+deformation": _affine("affine moves and deformations", "affine", "deformation"),
    "rotation+deformation": _affine("rotations and deformations", "rotation", "deformation"),
    "tangent_deformation": Named(
        "small deformations along the tangents of an image, and thickness of strokes (infinite MNIST)",
        "image",
        _tangent_deformation,
    ),
    "flip": _group("flips, left to right", "image", lambda i: FiniteOrbit(flips(_shape(i)))),
    "quarter_turn": _group(
        "quarter turns (rotations by 90, 180 and 270 degrees)",
        "image",
        lambda i: FiniteOrbit(quarter_turns(_shape(i))),
    ),
    "flip+quarter_turn": _group(
        "flips and quarter turns",
        "image",
        lambda i: closure(flips(_shape(i)), quarter_turns(_shape(i))),
    ),
    "tangent": Named(
        "derivatives along shifts, rotation, scaling and shears of images", "image", penalty=_tangent_penalty
    ),
    "moves": Named(
        "derivatives along the moves of RKHS 6.3; in VirtualSVC, images moved by them",
        "image",
        penalty=_move_penalty,
        is_copied=True,
    ),
    "differences": Named(
        "f of images moved as in RKHS 6.3 minus f of the image", "image", penalty=_difference_penalty
    ),
    "signal:shift": Named(
        "signals come earlier or later", "signal", partial(signal_orbit, ("shift",)), _shift_penalty
    ),
    "signal:scale": Named(
        "signals are louder or softer", "signal", partial(signal_orbit, ("scale",)), _scale_penalty
    ),
    "signal:warp": Named("time runs unevenly", "signal", partial(signal_orbit, ("warp",))),
    "signal:shift+warp": Named(
        "shifts in time, and time that runs unevenly", "signal", partial(signal_orbit, ("shift", "warp"))
    ),
    "cloud:rotation": Named(
        "rotation of all points about the origin", "cloud", _cloud_rotation, _rotation_penalty
    ),
    "cloud:permutation": Named(
        "the order of the points", "cloud", _cloud_permutation, partial(_order_penalty, _cloud_permutation)
    ),
    "gradient": Named("all partial derivatives of f, times the bandwidth", penalty=_gradient_penalty),
    "local_average": Named(
        "the average of f around a point minus its value there", penalty=_local_average_penalty
    ),
    "graph": Named("differences of f between nearest neighbours", penalty=_graph_penalty),
    "deletion": Named("differences that setting a feature to its mean makes", penalty=_deletion_penalty),
    "mirror": Named("a mirror of one column with a learned centre", "table", is_searched=True),
    "odd": Named("a change of sign in such a mirror", "table", is_searched=True),
    "swap": Named("the exchange of two columns", "table", is_searched=True),
    "period": Named("repetition in one column with a learned period", "table", is_searched=True),
}
"""The vocabulary. No name is added at run time: an invariance of your own is an orbit or a functional."""

SEARCHED = ("mirror", "odd", "swap", "permutation", "period")
"""Claims in the order in which the search tests them."""
VERBS: dict[Use, str] = {
    "average": "average over",
    "penalise": "penalise",
    "copy": "copy samples with",
    "search": "search for",
}
EXAMPLES: dict[Use, str] = {
    "average": "'affine' for images, 'signal:shift', 'cloud:rotation' or 'permutation'",
    "penalise": "'gradient', or 'affine' for images",
    "copy": "'moves' or 'affine' for images, or an orbit",
    "search": "'mirror' or 'period'",
}


def names_for(use: Use) -> list[str]:
    """All names that estimators can use in this way, sorted."""
    return sorted(name for name, each in NAMES.items() if use in each.uses)


def is_none(invariance: object) -> bool:
    """Whether an argument means no invariance: None, or its name."""
    return invariance is None or (isinstance(invariance, str) and invariance == NO_INVARIANCE)


def is_of_images(invariance: object) -> bool:
    """Whether a name means images, so that the shape of an image must be known."""
    return isinstance(invariance, str) and invariance in NAMES and NAMES[invariance].family == "image"


def name_of(invariance: object) -> str:
    """The name of an invariance in tables and messages: its name, "none", or the class of an orbit."""
    if is_none(invariance):
        return NO_INVARIANCE
    return invariance if isinstance(invariance, str) else type(invariance).__name__


def find(name: str, use: Use) -> Named:
    """The entry of a name for this use.

    A ValueError suggests names similar to an unknown one, or the estimators that can use a name.
    """
    if name in NAMES and use in NAMES[name].uses:
        return NAMES[name]
    if name not in NAMES:
        known = names_for(use)
        close = get_close_matches(name, known, n=1) or get_close_matches(name, NAMES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"Unknown invariance {name!r}; known names are {', '.join(known)}.{hint}")
    takers = "; or ".join(f"use {ESTIMATORS[each]}, which {VERBS[each]} it" for each in NAMES[name].uses)
    raise ValueError(
        f"invariance={name!r} ({NAMES[name].meaning}) is not one that this estimator can {VERBS[use]}: "
        f"{takers}. Invariances that it can {VERBS[use]} are, for example, {EXAMPLES[use]}."
    )


def orbit_of(name: str, inputs: Inputs, use: Use = "average") -> Orbit:
    """The orbit of a name for inputs of this shape."""
    found = find(name, use)
    if found.orbit is None:
        raise ValueError(f"invariance={name!r} has no orbit; those that have one are {names_for('average')}.")
    _check_shape(name, found, inputs)
    return found.orbit(inputs)


def functional_of(invariance: object, num_features: int, shape: Sequence[int] | None = None) -> Functional:
    """The functional L with f(x) = L_x g for the `invariance` of a Gaussian process."""
    if is_none(invariance):
        return Evaluation()
    if isinstance(invariance, Functional):
        return invariance
    if isinstance(invariance, Orbit):
        return OrbitAverage(invariance)
    if not isinstance(invariance, str):
        raise TypeError(
            f"invariance must be None, a name, an orbit or a functional, not {type(invariance).__name__}."
        )
    return OrbitAverage(orbit_of(invariance, Inputs(num_features, None if shape is None else tuple(shape))))


def penalty_of(
    invariance: str | Orbit, x: Float[Tensor, "n d"], bandwidth: float, shape: Sequence[int] | None = None
) -> Penalty | None:
    """The functionals of a name or finite orbit that should vanish at the points x; None if none are."""
    if isinstance(invariance, FiniteOrbit):
        return group_penalty(invariance, x)
    if isinstance(invariance, Orbit):
        raise TypeError(
            f"A kernel machine cannot penalise a continuous orbit such as {type(invariance).__name__}: use "
            f"{ESTIMATORS['average']}, which average over it, {ESTIMATORS['copy']}, which learns from moved "
            "copies, or a name with derivatives such as invariance='affine' or 'signal:shift'."
        )
    found, inputs = find(invariance, "penalise"), Inputs(x.shape[-1], None if shape is None else tuple(shape))
    _check_shape(invariance, found, inputs)
    assert found.penalty is not None
    return found.penalty(x, inputs, bandwidth)


def _check_shape(name: str, found: Named, inputs: Inputs) -> None:
    if found.family == "image" and inputs.shape is None:
        raise ValueError(
            f"invariance={name!r} is one of images: pass image_shape=(height, width), or X with image "
            "dimensions."
        )
    if found.family == "cloud" and inputs.shape is None:
        raise ValueError(
            f"invariance={name!r} is one of clouds of points: pass X as [n_samples, num_points, "
            "num_dimensions]."
        )
    if inputs.shape is not None and math.prod(inputs.shape) != inputs.num_features:
        unit = "pixels" if found.family == "image" else "numbers"
        raise ValueError(
            f"Inputs of shape {inputs.shape} have {math.prod(inputs.shape)} {unit}, but the rows have "
            f"{inputs.num_features} columns."
        )


def _shape(inputs: Inputs) -> tuple[int, ...]:
    assert inputs.shape is not None
    return inputs.shape


PLURALS: dict[str, str] = {
    "image": "images",
    "signal": "signals",
    "cloud": "clouds of points",
    "table": "tables",
}
LEAST_SIDE = 4
MOST_RATIO = 4
"""Of sides in pixels: what is smaller, or longer than this many times the short side less two, is a picture
only where it is said to be one. So 4 x 8 pixels are a picture, and 12 points of four coordinates are not."""
INSTEAD: dict[str, str] = {
    "image": 'an invariance of images, such as "rotation", "translation" or "flip", or an ImageOrbit',
    "signal": '"signal:shift" or "signal:warp", or a SignalOrbit(signal_shape=(channels, length), shift=1.0)',
    "cloud": '"cloud:rotation" or "cloud:permutation", or a PointCloudOrbit(num_points, num_dimensions, '
    "angle=0.5)",
    "table": 'rows of columns, with "permutation", "sign" or "cyclic"',
}


CANDIDATES: dict[Family, tuple[str, ...]] = {
    "image": (NO_INVARIANCE, "rotation", "affine", "affine+deformation"),
    "signal": (NO_INVARIANCE, "signal:shift", "signal:shift+warp", "signal:scale"),
    "cloud": (NO_INVARIANCE, "cloud:rotation", "cloud:permutation"),
    "table": (NO_INVARIANCE, "negation", "permutation"),
}
"""What is compared where nothing is named."""
FEW_COLUMNS = 5
"""Permutations of more columns than these have orbits of more than 120 points."""


def form_of(dimensions: Sequence[int]) -> Family:
    """What inputs of these dimensions probably are: of one a table, of more images, signals or clouds."""
    if len(dimensions) < 2:
        return "table"
    if len(dimensions) > 2 or is_picture(dimensions):
        return "image"
    first, second = dimensions
    if second in (2, 3) and first > 1:
        return "cloud"
    return "signal" if first < second else "table"


def usual_candidates(dimensions: Sequence[int]) -> tuple[str, ...]:
    """The names that are compared for inputs of these dimensions where nothing is named."""
    form = form_of(dimensions)
    named = CANDIDATES[form]
    is_wide = form == "table" and (len(dimensions) > 1 or not 2 <= dimensions[0] <= FEW_COLUMNS)
    return named[:-1] if is_wide else named


MOST_ALIKE = 4
"""Points of the same kind in an example."""


def family_of(invariance: object) -> Family | None:
    """The family of data that an invariance moves; None if it moves any rows, or is unknown."""
    if isinstance(invariance, str):
        return NAMES[invariance].family if invariance in NAMES else None
    found = own_shape(invariance)
    return None if found is None else found[0]


def own_shape(invariance: object) -> tuple[Family, tuple[int, ...]] | None:
    """The family of an orbit or functional, and the shape of its inputs, if known."""
    for part in invariance.modules() if isinstance(invariance, nn.Module) else ():
        shape, signal = getattr(part, "image_shape", None), getattr(part, "signal_shape", None)
        if shape is not None:
            return "image", tuple(shape)
        if signal is not None:
            return "signal", tuple(signal)
        points, dimensions = getattr(part, "num_points", None), getattr(part, "num_dimensions", None)
        if points is not None and dimensions is not None:
            return "cloud", (points, dimensions)
    return None


def check_family(invariance: object, family: Family) -> None:
    """Raise a ValueError if an invariance is not one of this family; rows of a table may be anything."""
    own = family_of(invariance)
    if own is None or own == family:
        return
    if family == "table" and not isinstance(invariance, str):
        return  # a row may be a signal or a cloud written one number after the other
    raise ValueError(
        f"{named(invariance)} is an invariance of {PLURALS[own]}, but these inputs are {PLURALS[family]}: "
        f"use {INSTEAD[family]}."
    )


def is_picture(dimensions: Sequence[int]) -> bool:
    """Whether inputs of two dimensions may be taken for pictures without asking."""
    short, long = sorted(dimensions)
    return short >= LEAST_SIDE and long <= MOST_RATIO * (short - 2)


def check_picture(invariance: object, dimensions: Sequence[int], ask: str | None = None) -> None:
    """Raise a ValueError if an invariance of images is used with inputs that do not look like images."""
    if len(dimensions) != 2 or is_picture(dimensions):
        return
    shape = tuple(int(size) for size in dimensions)
    said = f"image_shape={shape}" if ask is None else ask
    raise ValueError(
        f"{named(invariance)} is an invariance of images, but inputs of shape {shape} look like "
        f"{looks_like(shape)}. If they are pictures of {shape[0]} x {shape[1]} pixels, say {said}."
    )


def looks_like(dimensions: Sequence[int]) -> str:
    """What inputs of two dimensions that are not plausible pictures may be, and orbits that move them."""
    first, second = dimensions
    cloud = (
        f"clouds of {first} points in {second} dimensions, which 'cloud:rotation' and "
        f"PointCloudOrbit(num_points={first}, num_dimensions={second}, angle=0.5) move"
    )
    channels, length = (first, second) if first <= second else (second, first)
    turned = "" if first <= second else " once they are (channels, length)"
    signal = (
        f"signals of {channels} channel{'s' if channels > 1 else ''} and {length} samples, which "
        f"'signal:shift' and SignalOrbit(signal_shape=({channels}, {length}), shift=1.0) move{turned}"
    )
    return f"{cloud}, or {signal}" if second in (2, 3) else signal


def whole_points(invariance: str, dimensions: Sequence[int], estimator: str) -> str:
    """What an invariance of columns does, and code for an invariance of whole points [points, size]."""
    points, size = dimensions
    does, wanted, imported, made = {
        "cyclic": (
            "shifts single columns",
            f"shift whole points of {size} numbers each",
            "cyclic_shifts",
            f"cyclic_shifts({points}, {size})",
        ),
        "permutation": (
            "exchanges single columns",
            f"exchange whole points of {size} numbers each",
            "block_permutations",
            f"block_permutations({points}, {size})",
        ),
        "sign": (
            "changes the signs of single columns",
            "mirror an axis of all points at once",
            "SignedPermutations, negation, sign_changes",
            f"SignedPermutations(negation({points * size}).index[:1].repeat({2**size}, 1), "
            f"sign_changes({size}).sign.repeat(1, {points}), is_group=True)",
        ),
    }[invariance]
    if invariance == "permutation" and math.factorial(points) > MAX_ELEMENTS:
        # all orders are too many, but those of a few like points are not
        kinds = f"[0] * {MOST_ALIKE} + list(range(1, {points - MOST_ALIKE + 1}))"
        wanted = f"{wanted} that are of the same kind, here the first {MOST_ALIKE} (all have too many orders)"
        imported, made = "exchange_permutations", f"exchange_permutations({kinds}, {size})"
    return (
        f"{invariance!r} {does} of X [n_samples, n_features]. To {wanted}:\n\n"
        "    from orbitwise.orbits import FiniteOrbit\n"
        f"    from orbitwise.transforms import {imported}\n"
        f"    orbit = FiniteOrbit({made})\n"
        f"    {estimator}(invariance=orbit).fit(X.reshape(len(X), -1), y)\n"
    )


def not_a_table(invariance: object, dimensions: tuple[int, ...], estimator: str) -> str:
    """What to do with inputs that have dimensions where the invariance is one of tables or of other data."""
    images = "Images need an invariance of images or image_shape=(height, width)."
    if family_of(invariance) != "table":
        return f"{named(invariance)} takes one input as two dimensions. {images}"
    if len(dimensions) != 2 or is_picture(dimensions):
        return f"{named(invariance)} moves single columns of X [n_samples, n_features]. {images}"
    looks = f"They look like {looks_like(dimensions)}."
    return f"{whole_points(str(invariance), dimensions, estimator)}\n{looks} {images}"


def named(invariance: object) -> str:
    """The words for an invariance in a message."""
    return repr(invariance) if isinstance(invariance, str) else type(invariance).__name__
