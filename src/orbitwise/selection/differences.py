"""The difference between the evidence of two candidates on common nodes, and what might still reverse it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, final, runtime_checkable

import numpy as np

from orbitwise.estimators.convergence import num_nodes_of, shortfall
from orbitwise.estimators.estimator import EngineEstimator
from orbitwise.estimators.learned_ranges import may_contain
from orbitwise.functionals.averages import OTHER_GAUSS, freeze_at, freeze_in_common, gauss_dimensions
from orbitwise.orbits.orbit import FrozenOrbit

HELD_OUT = (1, 2, 3, 4)
"""Sets of nodes on which candidates are compared. Fits use set 0; sets 1 to 3 also give their errors."""


@runtime_checkable
class EvidenceModel(Protocol):
    """A fitted estimator that can be compared by its evidence."""

    log_evidence_: float
    evidence_kind_: str


@final
@dataclass(frozen=True)
class CommonNodes:
    """The nodes on which all candidates are compared: how many nodes per set, and the numbers of the sets.

    If only one candidate is drawn, `is_own` is True, and the nodes are of the kind that its fit used. In one
    or two dimensions these are Gauss's nodes, which are more accurate.
    """

    num_nodes: int
    sets: tuple[int, ...] = HELD_OUT
    is_own: bool = False

    def evidences(self, estimator: EvidenceModel) -> tuple[tuple[float, ...], float]:
        """The evidence of a fitted estimator on each set of nodes, and its gain over half as many nodes."""
        if nodes_of(estimator) is None or not isinstance(estimator, EngineEstimator):
            return (estimator.log_evidence_,) * len(self.sets), 0.0
        values = self._on(estimator, self.num_nodes)
        return values, float(np.mean(values) - np.mean(self._on(estimator, max(1, self.num_nodes // 2))))

    def _on(self, estimator: EngineEstimator, num_nodes: int) -> tuple[float, ...]:
        freeze = freeze_at if self.is_own else freeze_in_common
        return tuple(
            estimator.evidence_on(partial(freeze, num_nodes=num_nodes, scramble=number))
            for number in self.sets
        )


def common_nodes(estimators: Sequence[EvidenceModel]) -> CommonNodes | None:
    """The nodes on which to compare estimators; None if nothing is drawn or if any evidence is a bound."""
    drawn = [each for each in estimators if nodes_of(each) is not None]
    if not drawn or any(each.evidence_kind_ != "exact" for each in estimators):
        return None
    functionals = [each.functional_ for each in drawn if isinstance(each, EngineEstimator)]
    if len(functionals) < len(drawn):
        return None
    most = max(nodes_of(each) or 1 for each in drawn)
    if len(drawn) == 1 and gauss_dimensions(functionals[0]):
        return CommonNodes(most, tuple(range(1, len(OTHER_GAUSS))), is_own=True)
    return CommonNodes(most)


def nodes_of(estimator: object) -> int | None:
    """The final number of nodes of a fit; None if nothing was drawn."""
    functional = getattr(estimator, "functional_", None)
    parts = [] if functional is None else functional.modules()
    sizes = [len(each.nodes) for each in parts if isinstance(each, FrozenOrbit)]
    if not sizes:
        return None
    return num_nodes_of(estimator) if getattr(estimator, "search_", []) else max(sizes)


def has_data(estimator: EngineEstimator) -> bool:
    """Whether an estimator still has its training data, which model files do not contain."""
    return len(estimator.model_.observations[0]) > 0


@final
@dataclass(frozen=True)
class Candidate:
    """One invariance, fitted.

    `difference` is its evidence minus that of the leader, in nats, and `difference_error` the standard error
    of this difference; both are None before a comparison. If nodes were used, `evidences` are the values on
    common sets of nodes, and `gain` is their gain over half as many nodes. `half_bound` is the bound with
    half as many inducing points, and `upper` an upper bound; both are None if they do not exist.
    """

    name: str
    log_evidence: float
    standard_error: float
    per_datum: float
    evidence_kind: str
    learned: dict[str, tuple[float, float]]
    seconds: float
    estimator: Any
    evidences: tuple[float, ...] = ()
    gain: float = 0.0
    half_bound: float | None = None
    upper: float | None = None
    difference: float | None = None
    difference_error: float | None = None

    @property
    def score(self) -> float:
        """The number by which candidates are ranked: the mean evidence on common nodes, or the evidence."""
        return sum(self.evidences) / len(self.evidences) if self.evidences else self.log_evidence


WORTH_MENTIONING = math.log(3)
"""Odds below three to one are "not worth more than a bare mention" (Kass and Raftery 1995): a tie."""

Doubt = Literal["nodes", "draws", "learning", "family", "order", "trend", "brackets"]
"""Why a difference may be undecided; the last three reasons concern inducing points."""

LONGER = "Longer learning (num_steps, max_iterations or max_nodes)"
MORE_INDUCING = "More inducing points (num_inducing)"
DOUBTS: dict[Doubt, tuple[str, str]] = {
    "nodes": ("less than the choice of nodes may change", "More nodes (num_nodes or max_nodes)"),
    "draws": ("less than other random draws may change", "More steps, or more draws for each row,"),
    "learning": ("but one or both had not converged", LONGER),
    "family": ("but {other} contains it, so {other} was not learned to the end", LONGER),
    "order": ("but with half as many inducing points the order is reversed", MORE_INDUCING),
    "trend": (
        "but {other} caught up by more than that when inducing points doubled",
        MORE_INDUCING,
    ),
    "brackets": ("but the brackets of their evidence overlap", MORE_INDUCING),
}
"""For each reason, its explanation and the remedy."""


def is_tie(difference: float, error: float) -> bool:
    """Whether evidences differ by at most two standard errors, or by odds of at most three to one."""
    return abs(difference) <= max(WORTH_MENTIONING, 2 * error)


@final
@dataclass(frozen=True)
class Difference:
    """How much more evidence one candidate has than another, in nats.

    `spread` is the standard error over sets of nodes or draws, and `trend` the change of the difference when
    the nodes were last doubled. `half` is the difference with half as many inducing points, and `overlap` the
    overlap of the brackets of both; they are None if not known. `kind` is the kind of the evidence.
    `is_inverted` means that the candidate with less evidence is a family that contains the other one, so its
    learning ended too early. `is_unsettled` means that the learning of at least one has not converged.
    """

    nats: float
    spread: float
    trend: float = 0.0
    half: float | None = None
    overlap: float | None = None
    kind: str = "exact"
    is_inverted: bool = False
    is_unsettled: bool = False

    @property
    def error(self) -> float:
        """The standard error, including the trend if more nodes favour the candidate that is behind.

        With more nodes, a drawn orbit gains evidence and no invariance does not; so a lead of the orbit would
        only grow, but a lead of no invariance may shrink.
        """
        return math.hypot(self.spread, self.trend) if self.trend * self.nats < 0 else self.spread

    @property
    def is_tie(self) -> bool:
        """Whether the difference is within two standard errors of zero, or below odds of three to one."""
        return is_tie(self.nats, self.error)

    @property
    def doubt(self) -> Doubt | None:
        """Why the order is undecided; None if only other data could change it."""
        if self.overlap is not None:
            return "brackets" if self.overlap > WORTH_MENTIONING else None
        if self.is_inverted and not self.is_tie:
            return "family"
        if self.half is not None and max(abs(self.nats), abs(self.half)) > WORTH_MENTIONING:
            if self.half * self.nats <= 0:
                return "order"
            # the same change once more would reverse the order
            if abs(self.half) >= 2 * abs(self.nats):
                return "trend"
        if self.is_tie and max(2 * self.error, abs(self.trend)) > WORTH_MENTIONING:
            return "nodes" if self.kind == "exact" else "draws"
        return "learning" if self.is_tie and self.is_unsettled else None

    @property
    def tie_reason(self) -> str:
        """The reason why the difference is a tie."""
        return "within two standard errors" if abs(self.nats) <= 2 * self.error else "odds below 3 to 1"

    def text(self) -> str:
        """The difference without its sign, with its error."""
        error = f" ± {self.error:,.1f}" if self.error >= 0.05 else ""
        if not error and abs(self.nats) < 0.05:
            return "less than 0.1 nats"
        return f"{abs(self.nats):,.1f}{error} nats"


def difference_between(first: Candidate, second: Candidate) -> Difference:
    """The lead of one candidate over another, on common nodes if both were evaluated there."""
    kind = "exact" if first.evidence_kind == second.evidence_kind == "exact" else "lower bound"
    unsettled = _is_unsettled(first) or _is_unsettled(second)
    if first.evidences and len(first.evidences) == len(second.evidences):
        each = np.subtract(first.evidences, second.evidences)
        spread = float(each.std(ddof=1) / math.sqrt(len(each))) if len(each) > 1 else 0.0
        return Difference(float(each.mean()), spread, first.gain - second.gain, is_unsettled=unsettled)
    nats = first.log_evidence - second.log_evidence
    spread = math.hypot(first.standard_error, second.standard_error)
    half, overlap = None, None
    if first.half_bound is not None or second.half_bound is not None:
        halves = [_half(each) for each in (first, second)]
        half = None if None in halves else halves[0] - halves[1]  # pyright: ignore[reportOperatorIssue]
    if first.upper is not None and second.upper is not None:
        overlap = min(first.upper, second.upper) - max(first.log_evidence, second.log_evidence)
    ahead, behind = (first, second) if nats > 0 else (second, first)
    is_inverted = may_contain(behind.estimator, ahead.estimator)
    return Difference(nats, spread, 0.0, half, overlap, kind, is_inverted, unsettled)


def _half(candidate: Candidate) -> float | None:
    """The bound of half as many inducing points; evidence that is exact needs none."""
    return candidate.log_evidence if candidate.evidence_kind == "exact" else candidate.half_bound


def _is_unsettled(candidate: Candidate) -> bool:
    """Whether the learning of a candidate has not converged, so that its evidence may still rise."""
    return hasattr(candidate.estimator, "fit") and shortfall(candidate.estimator) is not None


def verdict_of(
    leader: Candidate,
    best: Candidate,
    others: Sequence[tuple[Candidate, Difference]],
    num_nodes: int | None,
) -> str:
    """The verdict of a comparison in words; `others` are all but the leader, the nearest first."""
    if not others:
        return f"{leader.name} is the only candidate."
    sentences = []
    for other, difference in others:
        if difference.doubt is not None:
            reason, cure = DOUBTS[difference.doubt]
            sentences.append(
                f"Undecided {_where(difference, leader, num_nodes)}: {leader.name} leads {other.name} by "
                f"{difference.text()}, {reason.format(other=other.name)}. {cure} would decide."
            )
    tied = [other.name for other, difference in others if difference.is_tie and difference.doubt is None]
    if tied:
        names = " and ".join([leader.name, *tied])
        sentences.append(f"A tie: {names} differ by less than odds of 3 to 1. Only more rows would decide.")
    if best is not leader:
        sentences.append(f"{best.name} is kept, the simplest of those that tie.")
    if not sentences:
        nearest, difference = others[0]
        sentences = [f"{best.name} is best, {difference.text()} ahead of {nearest.name}."]
    return " ".join(sentences)


def _where(difference: Difference, leader: Candidate, num_nodes: int | None) -> str:
    if difference.kind == "exact":
        return "on the nodes of the fits" if num_nodes is None else f"on {num_nodes} nodes"
    estimator = leader.estimator
    number = getattr(getattr(estimator, "certificate_", estimator), "num_inducing", None)
    return "at this bound" if number is None else f"at num_inducing={number}"
