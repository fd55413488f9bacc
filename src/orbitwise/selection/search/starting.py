"""Where the fit of a new hypothesis starts: known values stay, and a new term begins at what is left over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from orbitwise.kernels.building import build
from orbitwise.kernels.expressions import Expression, Product, Sum, Term, add, multiply
from orbitwise.kernels.spelling import expression_of
from orbitwise.kernels.starts import start
from orbitwise.selection.search.claims import relocated, started
from orbitwise.selection.search.hypotheses import SMOOTH, Hypothesis, bare

Array = NDArray[np.float64]
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


def grown(hypothesis: Hypothesis, new: Term | None, x: Array, left: Array) -> Hypothesis:
    """The hypothesis with values for what is new in it, from the residuals of the one it grew from."""
    claims = tuple(started(claim, x, left, None) for claim in hypothesis.claims)
    expression = hypothesis.expression
    if new is not None:
        expression = _completed(expression, x, left)
    return replace(hypothesis, expression=expression, claims=claims)


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
