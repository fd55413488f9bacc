"""Learned ranges of orbits: the search on more and more nodes, starts from nested families, and error bars.

Error bars come from the curvature of the evidence at its maximum (Laplace).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from orbitwise.functionals.averages import features_of, freeze_at
from orbitwise.functionals.functional import Functional
from orbitwise.inference.fit_result import LearnedRanges
from orbitwise.inference.linear_algebra import NOT_COMPUTABLE
from orbitwise.inference.optimise.checkpoints import Journal
from orbitwise.inference.optimise.cost import check_cost, exact_cost
from orbitwise.inference.optimise.orbit_search import (
    LEAST,
    OTHERS,
    RETRIED,
    Coordinates,
    OrbitSearch,
    SearchResult,
    covariance_of,
)
from orbitwise.inference.optimise.training import CUT_SHORT, Box, Vector, curvature_of, standard_errors
from orbitwise.inference.optimise.watching import Callback
from orbitwise.orbits.orbit import ZERO, Interval, LearnedWidths, Orbit, vanishing_widths
from orbitwise.process.double_sums import takes_double_sums
from orbitwise.process.process import Process


@final
@dataclass(frozen=True)
class Start:
    """The start of a fit: the solution of a fitted member on `num_nodes` nodes, kept for 0 iterations."""

    member: Any
    num_nodes: int
    max_iterations: int


def may_contain(family: Any, member: Any) -> bool:
    """Whether one fitted estimator learned all the ranges of another, and more.

    Because of fixed settings it may still not contain it; only the evidence at its solution shows that.
    """
    orbit, smaller = (getattr(each, "orbit_", None) for each in (family, member))
    if orbit is None or not orbit.is_drawn or not hasattr(family, "begin_at"):
        return False
    # the default kernel of no invariance may have a lengthscale for each column
    shapes = [[each.shape for each in model.kernel_.parameters()] for model in (family, member)]
    if shapes[0] != shapes[1]:
        return False
    if smaller is None:
        return member.functional_.is_identity
    return type(smaller) is type(orbit) and set(smaller.learned()) < set(orbit.learned())


@torch.no_grad()
def adopt(modules: Sequence[nn.Module], members: Sequence[nn.Module]) -> None:
    """Copy all parameters that both have, by name; ranges that the members lack become zero."""
    for module, member in zip(modules, members, strict=True):
        known, adopted = dict(member.named_parameters()), set()
        for name, parameter in module.named_parameters():
            if name in known and known[name].shape == parameter.shape:
                parameter.copy_(known[name])
                adopted.add(id(parameter))
        for widths in vanishing_widths(module):
            flat, places = widths.parameter.view(-1), widths.places.to(widths.parameter.device)
            raw = flat[places].double().cpu()
            # orbits keep a tiny width for moves that they do not make
            is_zero = (widths.width(raw) / widths.natural).square() <= LEAST
            if id(widths.parameter) not in adopted:
                is_zero = torch.ones_like(is_zero)
            flat[places] = torch.where(is_zero, ZERO, raw).to(flat)


LEAST_NOISE = 1e-6
"""The least noise for targets of unit variance, which makes single precision safe; the error of averages over
nodes is larger."""

FEWEST_NODES, MOST_NODES = 4, {"cpu": 64, "cuda": 128}
"""Numbers of nodes if none is given; predictions cost their square."""
OPERATIONS = {"cpu": 1e12, "cuda": 1e14}
"""Operations allowed per evaluation if the number of nodes is not given: some seconds."""

ROUNDING = 0.005
"""If single and double precision differ by more than this, in nats per row, the search ends in double
precision."""

HOUR = 3600.0
"""Exact fits that are estimated to take longer than this many seconds give a warning."""

EVALUATIONS = 30
"""Assumed evaluations of a search on its largest number of nodes, including those for Hessians."""

Objective = Callable[[Functional, torch.dtype], Callable[[], Tensor]]
"""(frozen functional, precision of rows) → the objective of the model."""


@torch.no_grad()
def widen_zeros(functional: Functional) -> None:
    """Make ranges of zero a little wider, for engines that would never move them again."""
    for widths in vanishing_widths(functional):
        flat, places = widths.parameter.view(-1), widths.places.to(widths.parameter.device)
        start = widths.raw(widths.natural * RETRIED**0.5).to(flat)
        flat[places] = torch.where(flat[places] <= ZERO / 2, start, flat[places])


def most_nodes(num_rows: int, width: int, device: torch.device, each_point: float = 0.0) -> int:
    """The largest number of nodes, a power of two, with which one evaluation takes some seconds.

    `each_point` is the number of operations for the features of one point.
    """
    kind = "cpu" if device.type == "cpu" else "cuda"
    allowed, nodes = OPERATIONS[kind], FEWEST_NODES

    def operations(nodes: int) -> float:
        return exact_cost(num_rows, nodes, width, 1).operations + each_point * num_rows * nodes

    while nodes < MOST_NODES[kind] and operations(2 * nodes) <= allowed:
        nodes *= 2
    return nodes


def check_exact_cost(
    process: Process, functional: Functional, x: Tensor, steps: int, is_drawn: bool, num_others: int = 0
) -> None:
    """Warn if exact inference on all atoms would take hours, or more memory than there is.

    The functional is frozen; `is_drawn` means that its atoms are nodes whose number can be chosen. There are
    `num_others` observations of other functionals, such as slopes.
    """
    with torch.no_grad():
        first = functional.atoms(x[:1])
        one_sided = process.shares_symmetry(first)
    atoms, width = first.points.shape[-2:]
    fewer = ", an orbit of fewer elements" if atoms > 1 else ""
    fewer = ", a smaller num_nodes" if is_drawn else fewer
    each = f" that average {atoms:,} points each" if atoms > 1 else ""
    count = len(x) + num_others
    engines = "" if num_others else f"inference='collapsed' or 'variational'{fewer}, or "
    check_cost(
        exact_cost(count, atoms, width, steps, one_sided),
        f"Exact inference on {count:,} rows{each}",
        f"use {engines}fewer rows",
        patience=HOUR,
        refuses=False,
    )


def learn_orbit(
    objective: Objective,
    functional: Functional,
    process: Process,
    modules: Sequence[nn.Module],
    floors: Mapping[nn.Parameter, float],
    x: Tensor,
    num_nodes: int | None,
    max_nodes: int | None,
    max_evaluations: int,
    max_seconds: float | None = None,
    callback: Callback | None = None,
    journal: Journal | None = None,
    num_starts: int = 0,
    generator: torch.Generator | None = None,
    is_noisy: bool = True,
    is_resumed: bool = False,
) -> LearnedRanges:
    """Search for all learned parameters of `modules`, including the ranges of the functional's orbits.

    The search ends on `num_nodes` nodes, whether they suffice or not; None doubles them up to `max_nodes`, or
    until one evaluation takes some seconds. `num_starts` random starts from the generator are tried as well.
    `is_noisy` means that the noise of every row is at least `LEAST_NOISE`. With `is_resumed` the search
    resumes from the present parameters on these nodes; see `OrbitSearch.run`.
    """
    coordinates = Coordinates(modules, floors)
    with torch.no_grad():
        some = freeze_at(functional, 2).atoms(x[:1])
    width = some.points.shape[-1]
    if num_nodes is not None:
        most = num_nodes
    elif max_nodes is not None:
        most = max_nodes
    else:
        features = features_of(functional)
        most = most_nodes(len(x), width, x.device, 0.0 if features is None else features.operations)
    check_exact_cost(process, freeze_at(functional, most), x, EVALUATIONS if max_evaluations else 1, True)
    if (max_evaluations == 0 and not is_resumed) or not len(coordinates):
        return _unlearned(objective, functional, coordinates, x, most)
    # products of fewer digits than those of single precision, such as TF32, do not serve distances
    is_whole = torch.get_float32_matmul_precision() == "highest"
    is_fast = is_noisy and is_whole and takes_double_sums(process.kernel, some, some)
    precision = torch.float32 if is_fast else x.dtype
    begun = time.monotonic()

    def search(kind: torch.dtype) -> OrbitSearch:
        left = None if max_seconds is None else max_seconds - (time.monotonic() - begun)
        return OrbitSearch(
            lambda nodes, scramble: objective(freeze_at(functional, nodes, scramble), kind),
            coordinates,
            len(x),
            most,
            max_evaluations,
            left,
            callback,
            journal,
            is_given=num_nodes is not None,
            num_starts=num_starts,
            generator=generator,
        )

    found = _searched(search, precision, x.dtype, is_resumed)
    frozen = freeze_at(functional, found.num_nodes)
    if not found.others:
        # the search was cut short, so its error is known only from other nodes
        with torch.no_grad():
            sets = [freeze_at(functional, found.num_nodes, other) for other in range(1, 1 + OTHERS)]
            found.others = [float(objective(each, x.dtype)()) for each in sets]
    if precision != x.dtype and found.message not in CUT_SHORT:
        with torch.no_grad():
            value = float(objective(frozen, x.dtype)())
        if not abs(value - found.value) < ROUNDING * len(x):
            found = search(x.dtype).finished(found)
    return LearnedRanges(found, frozen, coordinates)


def _searched(
    search: Callable[[torch.dtype], OrbitSearch],
    precision: torch.dtype,
    safest: torch.dtype,
    is_resumed: bool,
) -> SearchResult:
    """The result of a search in this precision, or, if that fails at every start, in the safest one."""
    try:
        return search(precision).run(is_resumed)
    except ValueError:
        if precision == safest:
            raise
        return search(safest).run(is_resumed)


@torch.no_grad()
def _unlearned(
    objective: Objective, functional: Functional, coordinates: Coordinates, x: Tensor, num_nodes: int
) -> LearnedRanges:
    """The result without learning: the present parameters, with the objective on these and on other nodes."""
    sets = [freeze_at(functional, num_nodes, scramble) for scramble in range(1 + OTHERS)]
    value, *others = (float(objective(frozen, x.dtype)()) for frozen in sets)
    point = coordinates.point()
    is_settled = len(point) == 0
    message = "nothing was to be learned"
    found = SearchResult(point, num_nodes, value, message, [], [], is_settled, np.zeros_like(point))
    found.others = others
    return LearnedRanges(found, sets[0], coordinates)


STEP = 0.02
LARGEST = 3.0
"""Errors of raw parameters are cut off here: a larger one means that the data do not determine the
parameter."""

NORMAL = 1.96
"""Half the width of a 95 % interval, in standard errors."""
ONE_ERROR, TWO_ERRORS = 0.5, 0.5 * NORMAL**2
"""The fall of the evidence, in nats, within one standard error, and within a 95 % interval."""

WIDEST, HALVINGS = 4.0, 12
"""The largest width tried for the error of a range of zero, in natural widths, and the steps of the
bisection."""

Ranges = Mapping[str, Interval]


def searched_errors(
    learned: Callable[[], Ranges], coordinates: Coordinates, found: SearchResult
) -> tuple[dict[str, float], dict[str, Interval]]:
    """The standard error and the 95 % interval of the upper end of each learned range.

    Both include the uncertainty from the data (curvature) and from the choice of nodes.
    """
    if found.curvature is None:
        return {}, {}
    coordinates.assign(found.point)
    covariance = np.diag(covariance_of(found, coordinates))
    shifts = found.node_variance
    box, here = coordinates.box, learned()
    is_at_bound = box.at_bound(found.point, found.gradient)
    falls = _slopes_away(found, box)
    squares, ends, touched = dict.fromkeys(here, 0.0), {}, dict.fromkeys(here, 0)
    for i, at in enumerate(found.point):
        spread = math.sqrt(covariance[i] + shifts[i])
        reaches = [spread, NORMAL * spread]
        if is_at_bound[i]:
            # the others follow: C_ii - C_if C_ff⁻¹ C_fi
            free = np.append(np.flatnonzero(~is_at_bound), i)
            curvature = 1 / np.linalg.inv(found.curvature[np.ix_(free, free)])[-1, -1]
            one, two = (_distance(falls[i], curvature, drop) for drop in (ONE_ERROR, TWO_ERRORS))
            moved = math.sqrt(shifts[i])
            reaches = [math.hypot(one, moved), math.hypot(two, NORMAL * moved)]
        ranges = []
        for reach in reaches:
            for sign in (-1, 1):
                other = found.point.copy()
                other[i] = at + sign * reach
                coordinates.assign(box.clip(other))
                ranges.append(learned())
        for name in here:
            low, high, lowest, highest = (each[name][1] for each in ranges)
            if (lowest, highest) != (here[name][1], here[name][1]):
                touched[name] += 1
                squares[name] += (max(high - low, 0.0) / (1 if is_at_bound[i] else 2)) ** 2
                ends[name] = min(lowest, highest), max(lowest, highest)
    coordinates.assign(found.point)
    errors = {name: value**0.5 for name, value in squares.items()}
    for name, (_, high) in here.items():
        if touched[name] > 1:
            ends[name] = high - NORMAL * errors[name], high + NORMAL * errors[name]
    return errors, {name: ends.get(name, (high, high)) for name, (_, high) in here.items()}


def _slopes_away(found: SearchResult, box: Box) -> Vector:
    """The slope with which the quadratic model falls away from the nearer bound of each coordinate, or 0."""
    if found.curvature is None or found.slope is None or found.centre is None:
        return np.abs(found.gradient)
    # the model's gradient at the point: g(centre) + C (centre - point)
    gradient = found.slope + found.curvature @ (found.centre - found.point)
    is_low = found.point - box.lower < box.upper - found.point
    return np.maximum(np.where(is_low, -gradient, gradient), 0.0)


def _distance(slope: float, curvature: float, drop: float) -> float:
    """The distance d at which slope·d + ½ curvature·d² = `drop`."""
    return 2 * drop / (slope + math.sqrt(slope**2 + 2 * curvature * drop))


def parameter_errors(objective: Callable[[], Tensor], parameters: list[nn.Parameter]) -> list[Tensor]:
    """The standard deviation of every entry of the parameters: √diag(H⁻¹), H the Hessian of -objective.

    The Hessian is computed by differences of gradients. Directions in which the evidence is flat or still
    rises have infinite errors.
    """
    hessian = curvature_of(objective, parameters, STEP)
    parts = torch.from_numpy(standard_errors(hessian)).split([p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


def expected_seconds(objective: Callable[[], Tensor], parameters: list[nn.Parameter], orbit: Orbit) -> float:
    """How long `range_errors` will take on this machine.

    It computes a gradient per entry of the parameters, each about three times as expensive as the objective,
    and the objective at every step of the bisection for each range of zero.
    """
    start = time.perf_counter()
    with torch.no_grad():
        objective()
    gradients = 1 + sum(parameter.numel() for parameter in parameters)
    num_zeros = sum(1 for _ in _zero_widths(orbit))
    values = 1 + num_zeros * (1 + HALVINGS) if num_zeros else 0
    return (3 * gradients + values) * (time.perf_counter() - start)


def range_errors(
    orbit: Orbit, objective: Callable[[], Tensor], parameters: list[nn.Parameter]
) -> dict[str, float]:
    """The standard error of each learned range's upper end, by the curvature of the objective.

    The error of a range of zero combines those of its width (`zero_range_errors`) and of its centre, if that
    is learned too.
    """
    errors = learned_errors(orbit.learned, parameters, parameter_errors(objective, parameters))
    zeros = zero_range_errors(orbit, objective)
    return {name: math.hypot(error, zeros.get(name, 0.0)) for name, error in errors.items()}


def learned_errors(
    learned: Callable[[], Ranges],
    parameters: list[nn.Parameter],
    errors: list[Tensor],
) -> dict[str, float]:
    """The error of each learned range's upper end, from moving each parameter by one deviation."""
    squares = dict.fromkeys(learned(), 0.0)
    for parameter, error in zip(parameters, errors, strict=True):
        flat, spread = parameter.data.view(-1), error.reshape(-1).clamp_max(LARGEST)
        for i in range(flat.numel()):
            old = flat[i].clone()
            ends = []
            for sign in (1, -1):
                flat[i] = old + sign * spread[i].to(old)
                ends.append(learned())
            flat[i] = old
            for name in squares:
                squares[name] += ((ends[0][name][1] - ends[1][name][1]) / 2) ** 2
    return {name: value**0.5 for name, value in squares.items()}


def _zero_widths(orbit: Orbit) -> Iterator[tuple[LearnedWidths, int, int]]:
    """The learned widths that are zero: their group, and their indices in it and in the parameter."""
    for widths in vanishing_widths(orbit):
        flat = widths.parameter.detach().view(-1)
        for number, place in enumerate(widths.places.tolist()):
            if float(flat[place]) <= ZERO / 2:
                yield widths, number, place


def _raw_width(widths: LearnedWidths, number: int, factor: float) -> float:
    """The raw value at which one of the widths is `factor` times its natural size, or at its limit."""
    raw = widths.raw(torch.minimum(factor * widths.natural, widths.largest))
    return float(raw.broadcast_to(widths.places.shape)[number])


@torch.no_grad()
def zero_range_errors(orbit: Orbit, objective: Callable[[], Tensor]) -> dict[str, float]:
    """The width of each range of zero at which the evidence has fallen by ½ nat, as at one standard error.

    Curvature does not give this error, because the slope in the raw parameter vanishes at zero. All other
    parameters are fixed. The error is infinite if even at four times the natural width the evidence has
    fallen by less.
    """
    zeros = list(_zero_widths(orbit))
    best, here = float(objective()) if zeros else 0.0, orbit.learned()
    found: dict[str, float] = {}

    def fall() -> float:
        try:
            value = float(objective())
        except NOT_COMPUTABLE:
            return math.inf
        return best - value if math.isfinite(value) else math.inf

    for widths, number, place in zeros:
        flat = widths.parameter.view(-1)
        kept = flat[place].clone()

        try:
            low, high = 0.0, WIDEST
            flat[place] = _raw_width(widths, number, high)
            is_known = fall() > ONE_ERROR
            for _ in range(HALVINGS if is_known else 0):
                middle = 0.5 * (low + high)
                flat[place] = _raw_width(widths, number, middle)
                low, high = (low, middle) if fall() > ONE_ERROR else (middle, high)
            flat[place] = _raw_width(widths, number, high)
            moved = orbit.learned()
        finally:
            flat[place] = kept
        for name, (_, end) in here.items():
            if moved[name][1] != end:
                found[name] = moved[name][1] - end if is_known else math.inf
    return found
