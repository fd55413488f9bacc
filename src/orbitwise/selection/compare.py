"""Which invariance do the data support? Candidates ranked by evidence, with the winner fitted."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import ArrayLike
from rich.console import Console
from rich.table import Table
from sklearn.base import BaseEstimator, clone
from sklearn.utils.multiclass import type_of_target

from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.convergence import fit_quietly, warn_of_shortfalls
from orbitwise.estimators.families import check_picture
from orbitwise.estimators.names import Invariance, is_of_images
from orbitwise.estimators.regressor import InvariantGPRegressor

DEFAULT_INVARIANCES: tuple[Invariance, ...] = (None, "rotation", "affine", "affine+deformation")
OF_TABLES: tuple[Invariance, ...] = (None, "negation")
FEW_COLUMNS = 5
"""Permutations of more columns have orbits of more than 120 points."""
NO_INVARIANCE = "none"
WORTH_MENTIONING = math.log(3)
"""Odds below three to one are not worth more than a bare mention (Kass and Raftery 1995): a tie."""


def is_tie(difference: float, error: float) -> bool:
    """Whether evidences differ by no more than two standard errors, or than is worth mentioning."""
    return abs(difference) <= max(WORTH_MENTIONING, 2 * error)


@dataclass(frozen=True)
class Candidate:
    """One invariance, fitted."""

    name: str
    log_evidence: float
    standard_error: float
    per_datum: float
    evidence_kind: str
    learned: dict[str, tuple[float, float]]
    seconds: float
    estimator: Any


@dataclass(frozen=True)
class Comparison:
    """Candidates from the most evidence to the least; the simplest of those that tie for it is the best."""

    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The simplest of those that tie for the most evidence: none, or the fewest learned ranges."""
        return min(
            self._leading,
            key=lambda each: (each.name != NO_INVARIANCE, len(each.learned), -each.log_evidence),
        )

    @property
    def best_estimator(self) -> Any:
        """The winner, fitted."""
        return self.best.estimator

    @property
    def tied(self) -> tuple[str, ...]:
        """The other candidates within log 3 nats, or two standard errors, of the most evidence."""
        best = self.best
        return tuple(each.name for each in self._leading if each is not best)

    @property
    def _leading(self) -> list[Candidate]:
        first = max(self.candidates, key=lambda each: each.log_evidence)
        return [
            each
            for each in self.candidates
            if is_tie(
                first.log_evidence - each.log_evidence, math.hypot(first.standard_error, each.standard_error)
            )
        ]

    def table(self) -> Table:
        """The comparison as a rich table."""
        table = Table(title="Invariances by evidence of the training data")
        for heading in ("invariance", "log evidence", "per datum", "learned", "seconds"):
            table.add_column(heading, justify="left" if heading in ("invariance", "learned") else "right")
        for candidate in self.candidates:
            name = f"{candidate.name} (tie)" if candidate.name in self.tied else candidate.name
            evidence = f"{candidate.log_evidence:,.1f}"
            if candidate.standard_error > 0:
                evidence += f" ± {candidate.standard_error:,.1f}"
            table.add_row(
                name,
                evidence,
                f"{candidate.per_datum:,.3f}",
                learned_text(candidate) or "-",
                f"{candidate.seconds:.1f}",
                style="bold" if candidate is self.best else None,
            )
        return table

    def __str__(self) -> str:
        console = Console(width=120, no_color=True)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get()


def compare(
    X: ArrayLike,
    y: ArrayLike,
    invariances: Sequence[Invariance] | None = None,
    estimator: BaseEstimator | None = None,
    n_jobs: int | None = None,
    **settings: Any,
) -> Comparison:
    """Fit the estimator once for every invariance and rank the fits by their evidence.

    `invariances` None takes those of the data's form: none, rotation, affine maps and these with deformations
    for images; none, and the sign of a row, for a table; there its few columns may be permuted as well.
    `estimator` None takes the classifier or the regressor, by the kind of y. `settings` are parameters of the
    estimator; images that come with their dimensions need no `image_shape`. Fits run in parallel through
    joblib (`n_jobs`), so its back-ends for clusters serve them. One ConvergenceWarning names all fits that
    did not converge.
    """
    if invariances is not None and not len(invariances):
        raise ValueError("compare needs at least one invariance; None stands for no invariance.")
    if estimator is None:
        is_regression = type_of_target(np.asarray(y)).startswith("continuous")
        estimator = InvariantGPRegressor() if is_regression else InvariantGPClassifier()
    prototype: Any = estimator
    given = {**prototype.get_params(deep=False), **settings}
    if invariances is None:
        invariances = _default_invariances(X, given)
    meant = next((each for each in invariances if is_of_images(each)), None)
    dimensions = np.shape(cast(Any, X))[1:]
    if meant is not None and len(dimensions) > 1 and given.get("image_shape", ()) is None:
        # what is an image to one candidate is one to all, also to none
        check_picture(meant, dimensions)
        settings = {**settings, "image_shape": dimensions}
    fits: Any = Parallel(n_jobs=n_jobs)(
        delayed(_fit)(cast(Any, clone(prototype)).set_params(**settings, invariance=invariance), X, y)
        for invariance in invariances
    )
    warn_of_shortfalls([_name(each) for each in invariances], [fitted for fitted, _ in fits])
    candidates = [
        candidate_of(_name(invariance), fitted, seconds, len(np.asarray(y)))
        for invariance, (fitted, seconds) in zip(invariances, fits, strict=True)
    ]
    return Comparison(tuple(sorted(candidates, key=lambda candidate: -candidate.log_evidence)))


def _default_invariances(X: ArrayLike, given: Mapping[str, Any]) -> tuple[Invariance, ...]:
    """Candidates for images where X or `image_shape` says that there are some, else for a table."""
    shape = np.shape(cast(Any, X))
    if len(shape) != 2 or given.get("image_shape") is not None:
        return DEFAULT_INVARIANCES
    return (*OF_TABLES, "permutation") if 2 <= shape[1] <= FEW_COLUMNS else OF_TABLES


def _fit(estimator: Any, X: ArrayLike, y: ArrayLike) -> tuple[Any, float]:
    start = time.perf_counter()
    fit_quietly(estimator, X, y)
    return estimator, time.perf_counter() - start


def candidate_of(name: str, estimator: Any, seconds: float, count: int) -> Candidate:
    """A fitted estimator as a candidate; `count` rows were fitted."""
    orbit = getattr(estimator, "orbit_", None)
    return Candidate(
        name,
        estimator.log_evidence_,
        getattr(estimator, "log_evidence_error_", 0.0),
        estimator.log_evidence_ / count,
        estimator.evidence_kind_,
        {} if orbit is None else dict(orbit.learned()),
        seconds,
        estimator,
    )


def learned_text(candidate: Candidate) -> str:
    """What a candidate learned, in natural units."""
    orbit = getattr(candidate.estimator, "orbit_", None)
    return "" if orbit is None else orbit.describe()


def _name(invariance: Invariance) -> str:
    if invariance is None:
        return NO_INVARIANCE
    return invariance if isinstance(invariance, str) else type(invariance).__name__
