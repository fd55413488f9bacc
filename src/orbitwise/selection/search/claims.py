"""Claims on f that a search may test: what f does not care about, as plain data with a learned value.

mirror[0]      f is the same in a mirror of column 0, whose centre is learned
odd[0]         f changes its sign in that mirror
swap[0,1]      f is the same when two columns are exchanged
permutation    f is the same for any order of the columns
period[0]      f repeats itself in column 0 exactly, with a learned period, under any kernel
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import final

import numpy as np
from numpy.typing import NDArray

from orbitwise.estimators.invariances import SEARCHED, find
from orbitwise.functionals.averages import OrbitAverage
from orbitwise.functionals.functional import Functional
from orbitwise.functionals.points import Evaluation, Wrap
from orbitwise.kernels.spelling import Expression, Product, Sum, Term, terms
from orbitwise.kernels.starts import spectral_peaks
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.mirrors import MirrorOrbit
from orbitwise.transforms.permutations import exchange_permutations

KINDS = SEARCHED
MOST_COLUMNS = 6
"""In inputs of more columns no claim is tried unless it is named: there would be too many."""

NUM_CENTRES = 601
"""Places where a mirror is tried: fast cycles tell centres apart that are a small part of the range away."""

CLAIM = re.compile(
    r"\s*(\w+)\s*(?:\[\s*([\d\s,]*)\])?\s*(?:\(\s*(?:centre|period)\s*=\s*([-+.\deE]+)\s*\))?\s*"
)


@final
@dataclass(frozen=True)
class Claim:
    """One claim; `value` is its centre or period, fixed where `is_given`."""

    kind: str
    columns: tuple[int, ...] = ()
    value: float | None = None
    is_given: bool = False

    @property
    def structure(self) -> Claim:
        """The claim without the value that was learned."""
        return self if self.is_given else replace(self, value=None)

    @property
    def num_parameters(self) -> int:
        """How many numbers of the claim are learned."""
        return int(self.kind in ("mirror", "odd", "period") and not self.is_given)

    def __str__(self) -> str:
        columns = f"[{','.join(map(str, self.columns))}]" if self.columns else ""
        given = f"({'period' if self.kind == 'period' else 'centre'}={self.value:g})" if self.is_given else ""
        return self.kind + columns + given


def claims_of(names: str | Sequence[str] | None, num_dims: int) -> list[Claim]:
    """The claims to try: "auto" for all that have a meaning, a list of names, or None for none."""
    if names is None:
        return []
    if isinstance(names, str):
        if names != "auto":
            raise ValueError(f"invariances must be 'auto', None or a list of names, not {names!r}.")
        names = KINDS if num_dims <= MOST_COLUMNS else ()
    return list(dict.fromkeys(claim for name in names for claim in _read(name, num_dims)))


def _read(name: str, num_dims: int) -> list[Claim]:
    match = CLAIM.fullmatch(name) if isinstance(name, str) else None
    if match is None or match[1] not in KINDS:
        find(str(name), "search")  # says what is near, or which estimator takes it
        raise ValueError(f"Unknown invariance {name!r}; known names are {', '.join(KINDS)}.")
    kind, columns = match[1], tuple(int(each) for each in re.findall(r"\d+", match[2] or ""))
    if any(column >= num_dims for column in columns):
        raise ValueError(
            f"The invariance {name!r} names a column that inputs of {num_dims} columns do not have."
        )
    value = None if match[3] is None else float(match[3])
    is_given = value is not None
    if kind == "permutation":
        chosen = columns or tuple(range(num_dims))
        return [Claim(kind, columns)] if len(chosen) > 2 or (columns and len(chosen) > 1) else []
    if kind == "swap":
        pairs = [columns] if columns else list(combinations(range(num_dims), 2))
        if columns and len(columns) != 2:
            raise ValueError(f"A swap names two columns, not {name!r}.")
        return [Claim(kind, pair) for pair in pairs]
    each = [columns] if columns else [(column,) for column in range(num_dims)]
    if kind == "period" and columns and len(columns) != 1:
        raise ValueError(f"A period belongs to one column, not {name!r}.")
    return [Claim(kind, chosen, value, is_given) for chosen in each]


def started(claim: Claim, x: NDArray[np.float64], y: NDArray[np.float64], seed: int | None) -> Claim:
    """The claim with a value to start from: where a mirror fits best, or the strongest line."""
    if claim.value is not None or claim.num_parameters == 0:
        return claim
    random = np.random.default_rng(seed)
    column = x[:, claim.columns[0]]
    if claim.kind == "period":
        peaks = spectral_peaks(column, y, 3).frequencies
        place = 0 if seed is None else int(random.integers(len(peaks) or 1))
        period = 1.0 / peaks[place] if len(peaks) else float(np.ptp(column)) / 2 or 1.0
        return replace(claim, value=float(period))
    # the same for every seed: elsewhere a mirror hardly ever finds its centre
    return replace(claim, value=best_mirror(column, y, claim.kind == "odd"))


def best_mirror(column: NDArray[np.float64], y: NDArray[np.float64], is_odd: bool) -> float:
    """The centre about which rows agree best with what lies between the neighbours of their mirror images.

    Many rows that agree well say more than few that agree very well: n log(cost), a likelihood ratio.
    """
    order = np.argsort(column, kind="stable")
    x, targets = column[order], y[order] - (0.0 if is_odd else y.mean())
    low, high = np.quantile(x, [0.2, 0.8])
    centres = np.linspace(low, high, NUM_CENTRES) if high > low else np.array([float(np.median(x))])
    costs = []
    for centre in centres:
        mirrored = 2 * centre - x
        inside = (mirrored >= x[0]) & (mirrored <= x[-1])
        seen = np.interp(mirrored[inside], x, targets)
        difference = targets[inside] + seen if is_odd else targets[inside] - seen
        spread = (np.square(targets[inside]).mean() + np.square(seen).mean()) if inside.any() else 0.0
        cost = np.square(difference).mean() / spread if spread > 0 else 1.0
        costs.append(inside.sum() * math.log(max(cost, 1e-12)))
    return float(centres[int(np.argmin(costs))])


def functional_of_claims(claims: Sequence[Claim], num_dims: int) -> Functional:
    """The functional L with f(x) = L_x g for which all claims hold; a period acts on the inside."""
    total: Functional = Evaluation()
    for claim in sorted(claims, key=lambda each: each.kind == "period"):
        total = total @ _functional(claim, num_dims)
    return total


def _functional(claim: Claim, num_dims: int) -> Functional:
    if claim.kind in ("mirror", "odd"):
        orbit = MirrorOrbit(claim.value or 0.0, claim.columns, claim.kind == "odd", not claim.is_given)
        return OrbitAverage(orbit)
    if claim.kind == "period":
        return Wrap(claim.value or 1.0, claim.columns[0], not claim.is_given)
    moved = claim.columns or tuple(range(num_dims))
    labels = ["moved" if column in moved else column for column in range(num_dims)]
    return OrbitAverage(FiniteOrbit(exchange_permutations(labels)))


def learned_claims(claims: Sequence[Claim], functional: Functional) -> tuple[Claim, ...]:
    """The claims with the values that the functional's parameters have now."""
    mirrors = [module for module in functional.modules() if isinstance(module, MirrorOrbit)]
    wraps = [module for module in functional.modules() if isinstance(module, Wrap)]
    values: dict[tuple[str, tuple[int, ...]], float] = {}
    for mirror in mirrors:
        values["odd" if mirror.is_odd else "mirror", mirror.columns or ()] = mirror.centre[0].item()
    for wrap in wraps:
        values["period", (wrap.column,)] = wrap.period.item()
    return tuple(
        replace(claim, value=values.get((claim.kind, claim.columns), claim.value)) for claim in claims
    )


def relocated(expression: Expression, claims: Sequence[Claim], num_dims: int) -> tuple[Expression, int]:
    """The expression in the columns that g lives on, and their number: a wrapped column has become two."""
    wrapped = _wrapped(claims)
    if wrapped is None:
        return expression, num_dims
    places = [(c, c + 1) if c == wrapped else (c + (c > wrapped),) for c in range(num_dims)]
    return _in_columns(expression, places), num_dims + 1


def located_back(expression: Expression, claims: Sequence[Claim]) -> Expression:
    """The inverse of `relocated`."""
    wrapped = _wrapped(claims)
    if wrapped is None:
        return expression
    most = max((c for term in terms(expression) for c in term.columns or ()), default=0)
    places = [() if c == wrapped + 1 else (c - (c > wrapped),) for c in range(most + 1)]
    return _in_columns(expression, places)


def _wrapped(claims: Sequence[Claim]) -> int | None:
    return next((claim.columns[0] for claim in claims if claim.kind == "period"), None)


def _in_columns(expression: Expression, places: Sequence[tuple[int, ...]]) -> Expression:
    """The expression with every column replaced by its places."""
    if isinstance(expression, Term):
        if expression.columns is None:
            return expression
        return replace(expression, columns=tuple(p for column in expression.columns for p in places[column]))
    parts = tuple(_in_columns(part, places) for part in expression.parts)
    return Sum(parts) if isinstance(expression, Sum) else Product(parts, expression.factor)
