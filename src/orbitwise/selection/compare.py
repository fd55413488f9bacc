"""Which invariance do the data support? Candidates ranked by evidence, with the winner fitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import type_of_target

from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.convergence import fit_quietly, iterations_of, warn_of_shortfalls
from orbitwise.estimators.estimator import EngineEstimator
from orbitwise.estimators.features import unfitted_copy
from orbitwise.estimators.invariances import NO_INVARIANCE as NO_INVARIANCE
from orbitwise.estimators.invariances import (
    Invariance,
    check_picture,
    is_of_images,
    name_of,
    usual_candidates,
)
from orbitwise.estimators.learned_ranges import Start, may_contain
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.estimators.validation import as_array
from orbitwise.inference.optimise.orbit_search import FINELY
from orbitwise.selection.differences import (
    Candidate,
    CommonNodes,
    Difference,
    EvidenceModel,
    common_nodes,
    difference_between,
    has_data,
    nodes_of,
    verdict_of,
)
from orbitwise.selection.differences import is_tie as is_tie
from orbitwise.selection.table import ResultTable

Model = TypeVar("Model", bound=BaseEstimator)
Refit = Callable[["Candidate", "Candidate", CommonNodes, ArrayLike, ArrayLike], "Candidate"]
"""Refits a candidate from the solution of a member; both have their evidence on common nodes."""


@dataclass(frozen=True)
class Comparison:
    """Candidates ranked by evidence; the simplest of those that tie for the highest evidence is the best.

    Parameters
    ----------
    candidates : tuple of Candidate
        The candidates, from the highest evidence to the lowest.
    num_nodes : int, default=None
        The number of common nodes on which differences were computed; None if no nodes were needed.

    Attributes
    ----------
    leader : Candidate
        The candidate with the highest evidence.
    best : Candidate
        The simplest candidate that ties for the highest evidence: no invariance, or the fewest learned
        ranges.
    best_estimator : estimator
        The estimator of `best`, fitted.
    tied : tuple of str
        The other candidates within log 3 nats, or two standard errors, of the highest evidence.
    undecided : tuple of str
        Candidates that might overtake the leader with more nodes or inducing points.
    verdict : str
        Which candidate is best, by how much, and how to decide what is still open.

    Examples
    --------
    >>> import numpy as np
    >>> from orbitwise import compare
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> comparison = compare(X, np.sin(X).sum(axis=1), [None, "permutation", "sign"])
    >>> [each.name for each in comparison.candidates]
    ['permutation', 'none', 'sign']
    """

    candidates: tuple[Candidate, ...]
    num_nodes: int | None = None

    @property
    def leader(self) -> Candidate:
        """The candidate with the highest evidence."""
        return max(self.candidates, key=lambda each: each.score)

    @property
    def best(self) -> Candidate:
        """The simplest candidate that ties for the highest evidence: none, or the fewest learned ranges."""
        leader = self.leader
        tied = [each for each in self.candidates if self.difference(leader, each).is_tie]
        return min(tied, key=lambda each: (each.name != NO_INVARIANCE, len(each.learned), -each.score))

    @property
    def best_estimator(self) -> Any:
        """The fitted estimator of `best`."""
        return self.best.estimator

    @property
    def tied(self) -> tuple[str, ...]:
        """The other candidates within log 3 nats, or two standard errors, of the highest evidence."""
        best, leader = self.best, self.leader
        return tuple(
            each.name for each in self.candidates if each is not best and self.difference(leader, each).is_tie
        )

    @property
    def undecided(self) -> tuple[str, ...]:
        """Candidates that might overtake the leader with more nodes or inducing points."""
        return tuple(each.name for each, difference in self._others if difference.doubt is not None)

    @property
    def verdict(self) -> str:
        """Which candidate is best, by how much, and how to decide what is still open."""
        return verdict_of(self.leader, self.best, self._others, self.num_nodes)

    def difference(self, first: Candidate, second: Candidate) -> Difference:
        """The lead of one candidate over another, with its error."""
        return difference_between(first, second)

    @property
    def _others(self) -> list[tuple[Candidate, Difference]]:
        """All candidates but the leader, with their differences from it, the smallest first."""
        leader = self.leader
        others = [(each, self.difference(leader, each)) for each in self.candidates if each is not leader]
        return sorted(others, key=lambda pair: pair[1].nats)

    def table(self) -> ResultTable:
        """The comparison as a table; its caption is the verdict."""
        headings = ("invariance", "log evidence", "behind", "per datum", "learned", "seconds")
        title = "Invariances by evidence of the training data"
        table = ResultTable(title, headings, words=("learned",), caption=self.verdict)
        best, leader, tied, undecided = self.best, self.leader, self.tied, self.undecided
        for candidate in self.candidates:
            note = " (undecided)" if candidate.name in undecided and candidate is not best else ""
            note = " (tie)" if candidate.name in tied else note
            evidence = f"{candidate.log_evidence:,.1f}"
            if candidate.standard_error > 0:
                evidence += f" ± {candidate.standard_error:,.1f}"
            behind = self.difference(leader, candidate).text().removesuffix(" nats")
            table.add_row(
                candidate.name + note,
                evidence,
                "" if candidate is leader else behind,
                f"{candidate.per_datum:,.3f}",
                learned_text(candidate) or "-",
                f"{candidate.seconds:.1f}",
                style="bold" if candidate is best else None,
            )
        return table

    def __str__(self) -> str:
        return str(self.table())


def compare(
    X: ArrayLike,
    y: ArrayLike,
    invariances: Sequence[Invariance] | None = None,
    estimator: BaseEstimator | None = None,
    n_jobs: int | None = None,
    **settings: Any,
) -> Comparison:
    """Which invariance do the data support? Fit one estimator for each, and rank them by evidence.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features) or (n_samples, ...)
        Rows, or images, signals and point clouds with their own dimensions.
    y : array-like of shape (n_samples,)
        Labels or targets.
    invariances : sequence of (None, str, Orbit or Functional), default=None
        The candidates. None chooses no invariance and others by the form of X: for images rotation, affine
        maps, and affine maps with deformations; for signals [n, channels, length] shifts, shifts with uneven
        time, and loudness; for clouds [n, points, 2 or 3] rotation and the order of the points; for a table
        the sign of a row, and with few columns also their order.
    estimator : estimator, default=None
        The estimator that is fitted for each candidate. None takes `InvariantGPClassifier` or
        `InvariantGPRegressor`, depending on y.
    n_jobs : int, default=None
        The number of fits that run at the same time, through joblib. None takes that of
        `joblib.parallel_config`, whose back-ends include Dask clusters.
    **settings
        Parameters of the estimator. If X has the dimensions of images, `image_shape` is not needed.

    Returns
    -------
    Comparison
        The candidates from the highest evidence to the lowest. It prints as a table; `best_estimator` is the
        fitted estimator of the best candidate; `verdict` states in words which candidate is best, by how
        much, and what more nodes or inducing points might still change.

    Notes
    -----
    Nodes are fixed points that represent an orbit. Exact fits on nodes are compared on common nodes that none
    of them was fitted on. If a family has less evidence than one of its members (rotations are affine maps),
    it is fitted once more from the member's solution. Of candidates that tie, the simplest is the best. One
    ConvergenceWarning names all fits that did not converge.

    Examples
    --------
    >>> import numpy as np
    >>> from orbitwise import compare
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = np.sin(X).sum(axis=1)
    >>> compare(X, y).best.name
    'permutation'
    """
    X, y = as_array(X), as_array(y)
    if invariances is not None and not len(invariances):
        raise ValueError("compare needs at least one invariance; None means no invariance.")
    if estimator is None:
        is_regression = type_of_target(np.asarray(y)).startswith("continuous")
        estimator = InvariantGPRegressor() if is_regression else InvariantGPClassifier()
    given = {**estimator.get_params(deep=False), **settings}
    if invariances is None:
        invariances = _default_invariances(X, given)
    meant = next((each for each in invariances if is_of_images(each)), None)
    dimensions = np.asarray(X).shape[1:]
    if meant is not None and len(dimensions) > 1 and given.get("image_shape", ()) is None:
        # all candidates, also no invariance, must treat the rows as the same images
        check_picture(meant, dimensions)
        settings = {**settings, "image_shape": dimensions}
    copies = [
        unfitted_copy(estimator).set_params(**settings, invariance=invariance) for invariance in invariances
    ]
    fits = cast(
        "list[tuple[EvidenceModel, float]]",
        Parallel(n_jobs=n_jobs)(delayed(_fit)(each, X, y) for each in copies),
    )
    candidates = [
        candidate_of(name_of(invariance), fitted, seconds, len(np.asarray(y)))
        for invariance, (fitted, seconds) in zip(invariances, fits, strict=True)
    ]
    comparison = judge(candidates, X, y)
    names = [each.name for each in candidates]
    final = sorted(comparison.candidates, key=lambda each: names.index(each.name))
    warn_of_shortfalls([each.name for each in final], [each.estimator for each in final])
    return comparison


def judge(
    candidates: Sequence[Candidate], X: ArrayLike, y: ArrayLike, refit: Refit | None = None
) -> Comparison:
    """Compare fitted candidates, on common nodes if they were fitted on nodes; see `compare`.

    Parameters
    ----------
    candidates : sequence of Candidate
        Fitted candidates.
    X, y : array-like
        The training data of the candidates, which models loaded from files do not contain.
    refit : callable, default=None
        The function that refits a family that has less evidence than its member; None takes
        `fit_from_member`.

    Returns
    -------
    Comparison
        The candidates from the highest evidence to the lowest, each with its difference from the leader.
    """
    nodes = common_nodes([each.estimator for each in candidates])
    if nodes is not None:
        evaluated = [_on_nodes(each, nodes, X, y) for each in candidates]
        candidates = _refined(evaluated, nodes, X, y, fit_from_member if refit is None else refit)
    ranked = Comparison(tuple(sorted(candidates, key=lambda each: -each.score)))
    leads = [difference_between(each, ranked.leader) for each in ranked.candidates]
    judged = tuple(
        replace(each, difference=lead.nats, difference_error=lead.error)
        for each, lead in zip(ranked.candidates, leads, strict=True)
    )
    return Comparison(judged, None if nodes is None else nodes.num_nodes)


def _on_nodes(candidate: Candidate, nodes: CommonNodes, X: ArrayLike, y: ArrayLike) -> Candidate:
    """The candidate with its evidence on common nodes."""
    evidences, gain = nodes.evidences(_with_data(candidate.estimator, X, y))
    return replace(candidate, evidences=evidences, gain=gain)


def _with_data(estimator: EvidenceModel, X: ArrayLike, y: ArrayLike) -> EvidenceModel:
    """The estimator; if it was loaded without its training data, an equal one that has them."""
    num_nodes = nodes_of(estimator)
    if num_nodes is None or not isinstance(estimator, EngineEstimator) or has_data(estimator):
        return estimator
    again = unfitted_copy(estimator).set_params(checkpoint=None, callback=None)
    again.begin_at(Start(estimator, num_nodes, 0))
    return fit_quietly(again, X, y)


def _refined(
    candidates: Sequence[Candidate], nodes: CommonNodes, X: ArrayLike, y: ArrayLike, refit: Refit
) -> list[Candidate]:
    """The candidates, from small to large; those with less evidence than a member are refitted from it."""
    done: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda each: len(each.learned)):
        for member in sorted(done, key=lambda each: -each.score):
            if member.score - candidate.score <= FINELY:
                break
            if may_contain(candidate.estimator, member.estimator):
                candidate = refit(candidate, member, nodes, X, y)
        done.append(candidate)
    return done


def fit_from_member(
    candidate: Candidate,
    member: Candidate,
    nodes: CommonNodes,
    X: ArrayLike,
    y: ArrayLike,
    callback: Callable[[int, float], None] | None = None,
) -> Candidate:
    """The best of a candidate, its refit from a member's solution, and that solution itself."""
    best, given = candidate, candidate.estimator
    most = iterations_of(given)
    for iterations in (most, 0) if most > 0 else ():
        estimator = unfitted_copy(given).set_params(checkpoint=None, callback=callback)
        estimator.begin_at(Start(member.estimator, nodes.num_nodes, iterations))
        estimator, seconds = _fit(estimator, X, y)
        estimator.set_params(checkpoint=given.checkpoint, callback=given.callback)
        # a refit on one number of nodes does not see the gain from doubling them; the first fit may have
        estimator.log_evidence_error_ = max(estimator.log_evidence_error_, given.log_evidence_error_)
        if iterations == 0:
            estimator.converged_ = member.estimator.converged_
        tried = candidate_of(candidate.name, estimator, best.seconds + seconds, len(np.asarray(y)))
        tried = _on_nodes(tried, nodes, X, y)
        best = max(replace(best, seconds=tried.seconds), tried, key=lambda each: each.score)
        if best.score >= member.score:
            break
    return best


def _default_invariances(X: ArrayLike, given: Mapping[str, Any]) -> tuple[Invariance, ...]:
    """The invariances that suit the form of X, or images if `image_shape` is given."""
    dimensions = given.get("image_shape")
    return usual_candidates(np.asarray(X).shape[1:] if dimensions is None else (*dimensions, 1)[:3])


def _fit(estimator: Model, X: ArrayLike, y: ArrayLike) -> tuple[Model, float]:
    start = time.perf_counter()
    fit_quietly(estimator, X, y)
    return estimator, time.perf_counter() - start


def candidate_of(name: str, estimator: EvidenceModel, seconds: float, count: int) -> Candidate:
    """A fitted estimator as a candidate; `count` is the number of training rows."""
    orbit = getattr(estimator, "orbit_", None)
    certificate = getattr(estimator, "certificate_", None)
    result = getattr(estimator, "fit_result_", None)
    return Candidate(
        name,
        estimator.log_evidence_,
        getattr(estimator, "log_evidence_error_", 0.0),
        estimator.log_evidence_ / count,
        estimator.evidence_kind_,
        {} if orbit is None else dict(orbit.learned()),
        seconds,
        estimator,
        half_bound=None if result is None else result.half_bound,
        upper=None if certificate is None else certificate.upper,
    )


def learned_text(candidate: Candidate) -> str:
    """The learned ranges of a candidate, in natural units."""
    orbit = getattr(candidate.estimator, "orbit_", None)
    return "" if orbit is None else orbit.describe()
