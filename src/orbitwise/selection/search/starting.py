"""Where the fit of a new hypothesis starts: known values stay, and a new term begins at what is left over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import count

import numpy as np
from numpy.typing import NDArray

from orbitwise.kernels.spelling import (
    Expression,
    Product,
    Sum,
    Term,
    add,
    build,
    expression_of,
    multiply,
    summands,
    terms,
)
from orbitwise.kernels.starts import detrend, start, strongest_periods
from orbitwise.selection.search.claims import relocated, started
from orbitwise.selection.search.hypotheses import SMOOTH, Hypothesis, bare

Array = NDArray[np.float64]
CYCLES = ("periodic", "cosine")
NUM_PERIODS = 6
SHARP = 0.3
FASTER = (0.3, 0.1)
SLOW = 3.0
"""A smooth factor starts this many spreads long, so that a product starts near what it was made of."""


def fresh(hypothesis: Hypothesis, x: Array, y: Array, seed: int | None) -> Hypothesis:
    """The structure with every value started from the data."""
    structure = bare(hypothesis.expression)
    _, width = relocated(structure, hypothesis.claims, x.shape[1])
    claims = tuple(started(claim.structure, x, y, seed) for claim in hypothesis.claims)
    if width != x.shape[1]:
        # lengthscales around a circle are started by those along the line
        structure = _each(structure, lambda term: _valued(term, x, y, seed))
    else:
        structure = expression_of(start(build(structure, width), x, y, seed=seed), values=True, digits=17)
    return Hypothesis(structure, claims, None)


def grown(hypothesis: Hypothesis, new: Term | None, x: Array, y: Array, left: Array) -> list[Hypothesis]:
    """Starts with values for what is new: from the residuals `left` of the hypothesis it grew from.

    A new cycle has a start for every period that stands out in the residuals or in the targets, for
    the likelihood has a mode at each of them; a smooth term may be slow or fast, and a line that multiplies
    may vanish in the middle of the data or at an end, each a mode of its own.
    """
    claims = tuple(started(claim, x, y, None) for claim in hypothesis.claims)
    if new is None:
        return [replace(hypothesis, claims=claims)]
    expression = _completed(hypothesis.expression, x, left)
    first = replace(hypothesis, expression=expression, claims=claims)
    place = _place_of_new(hypothesis)
    changes: list[dict[str, float]] = []
    if new.name in SMOOTH:
        slow = dict(terms(expression)[place].values)["lengthscale"][0]
        changes = [{"lengthscale": slow * factor} for factor in FASTER]
    elif new.name in CYCLES:
        changes = _cycles(new, x, y, left)
    elif new.name == "linear" and _is_factor(new, hypothesis.expression) and len(new.columns or (0,)) == 1:
        changes = [{"centre": end} for end in (_column(new, x).min(), _column(new, x).max())]
    return _varied(first, place, changes)


def anew(hypothesis: Hypothesis, new: Term | None, x: Array, y: Array) -> list[Hypothesis]:
    """Starts from the data alone; of a new cycle, for several periods.

    What a parent has learned may already stand for the new term: a fast change for a cycle.
    """
    first = fresh(hypothesis, x, y, None)
    if new is None or new.name not in CYCLES:
        return [first]
    return _varied(first, _place_of_new(hypothesis), _periods(new, x, detrend(_column(new, x), y)[0]))


def _place_of_new(hypothesis: Hypothesis) -> int:
    """The number of the term that has no values yet."""
    return next(i for i, term in enumerate(terms(hypothesis.expression)) if not term.values)


def _varied(first: Hypothesis, place: int, changes: list[dict[str, float]]) -> list[Hypothesis]:
    """A start, and others that differ from it in one term."""
    return [first, *(replace(first, expression=_changed(first.expression, place, each)) for each in changes)]


def _is_factor(new: Term, expression: Expression) -> bool:
    return all(part != new for part in summands(expression))


def _column(term: Term, x: Array) -> Array:
    """The first column that a term sees."""
    return x[:, 0 if term.columns is None else term.columns[0]]


def _cycles(new: Term, x: Array, y: Array, left: Array) -> list[dict[str, float]]:
    """Periods, and shapes, that a new cycle may have."""
    found = _periods(new, x, left)
    changes = [*found, *_periods(new, x, detrend(_column(new, x), y)[0])]
    if new.name == "periodic":
        # What a smooth parent leaves of a cycle may be its overtones alone, as of a shape with sharp turns.
        overtones = [number * each["period_length"] for each in found[:2] for number in (2, 3, 4)]
        changes += [{"period_length": period, "lengthscale": SHARP} for period in overtones]
    return changes


def _periods(new: Term, x: Array, y: Array) -> list[dict[str, float]]:
    """The periods that stand out in y."""
    half = 0.5 if new.name == "cosine" else 1.0  # GPyTorch's cosine repeats itself after twice its period
    found = _strongest(_column(new, x).tobytes(), y.tobytes())
    return [{"period_length": half * each} for each in found]


@lru_cache(maxsize=64)
def _strongest(column: bytes, y: bytes) -> tuple[float, ...]:
    """The strongest periods; the same data are asked about for every option of a step."""
    return tuple(strongest_periods(np.frombuffer(column), np.frombuffer(y), NUM_PERIODS).tolist())


def beside_a_line(hypothesis: Hypothesis, new: Term, x: Array, y: Array) -> list[Hypothesis]:
    """A start for a line that is added: it takes what least squares give it, the others start from the rest.

    Of what they were only their periods are kept, for without the line they had to make up for it.
    """
    others = [part for part in summands(hypothesis.expression) if part != new]
    columns = (0,) if new.columns is None else new.columns
    if not others or len(others) == len(summands(hypothesis.expression)) or len(columns) != 1:
        return []
    rest, share = detrend(x[:, columns[0]], y, degree=1)
    before = terms(add(*others))
    started = fresh(replace(hypothesis, expression=add(*others)), x, rest, None)
    parts = [multiply(part, factor=max(1 - share, 1e-6)) for part in summands(started.expression)]
    expression: Expression = add(*parts)
    for place, term in enumerate(before):
        kept = {name: values[0] for name, values in term.values if name == "period_length"}
        expression = _changed(expression, place, kept) if kept else expression
    line = multiply(_valued(new, x, y, None), factor=max(share, 1e-6))
    return [replace(started, expression=add(expression, line))]


def _changed(expression: Expression, place: int, change: dict[str, float]) -> Expression:
    """The expression with other hyperparameters of its term number `place`."""
    numbers = count()

    def changed(term: Term) -> Term:
        if next(numbers) != place:
            return term
        values = {**dict(term.values), **{name: (float(value),) for name, value in change.items()}}
        return replace(term, values=tuple(values.items()))

    return _each(expression, changed)


def _completed(expression: Expression, x: Array, left: Array) -> Expression:
    """Terms without values get some: additive ones the size of the residuals, factors a slow start."""
    if isinstance(expression, Term):
        return expression if expression.values else _additive(expression, x, left)
    if isinstance(expression, Sum):
        return add(*(_completed(part, x, left) for part in expression.parts))
    return multiply(
        *(_each(part, lambda term: _factor(term, x, left)) for part in expression.parts),
        factor=expression.factor,
    )


def _additive(term: Term, x: Array, left: Array) -> Expression:
    size = float(np.var(left)) or 1e-6
    return multiply(_valued(term, x, left, None), factor=max(size, 1e-6))


def _factor(term: Term, x: Array, left: Array) -> Expression:
    if term.values:
        return term
    valued = _valued(term, x, left, None)
    if term.name in SMOOTH and isinstance(valued, Term):
        slower = tuple(
            (name, tuple(SLOW * each for each in values) if name == "lengthscale" else values)
            for name, values in valued.values
        )
        return replace(valued, values=slower)
    return valued


def _valued(term: Term, x: Array, y: Array, seed: int | None) -> Expression:
    """The term with hyperparameters started from data, without an amplitude."""
    if term.values:
        return term
    valued = expression_of(start(build(term, x.shape[1]), x, y, seed=seed), values=True, digits=17)
    return multiply(*valued.parts) if isinstance(valued, Product) else valued


def _each(expression: Expression, change: Callable[[Term], Expression]) -> Expression:
    if isinstance(expression, Term):
        return change(expression)
    parts = [_each(part, change) for part in expression.parts]
    return add(*parts) if isinstance(expression, Sum) else multiply(*parts, factor=expression.factor)
