"""The answer in a sentence: what f does not care about, what the evidence says of it, ties called ties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from orbitwise.report.numbers import with_error
from orbitwise.report.ranges import Range, symmetry_phrase
from orbitwise.selection.compare import NO_INVARIANCE, Candidate, Comparison, is_tie


@final
@dataclass(frozen=True)
class Lead:
    """How much more evidence one candidate has than another, in nats, with its standard error."""

    nats: float
    error: float

    @property
    def is_tie(self) -> bool:
        """Whether it is within two standard errors of nothing, or not worth mentioning."""
        return is_tie(self.nats, self.error)

    @property
    def excuse(self) -> str:
        """Why a tie is one."""
        return "within two standard errors" if abs(self.nats) <= 2 * self.error else "odds below 3 to 1"

    def text(self) -> str:
        """The difference without its sign."""
        if max(abs(self.nats), self.error) < 0.05:
            return "less than 0.1 nats"
        return with_error(abs(self.nats), self.error, " nats")


def lead(first: Any, second: Any) -> Lead:
    """The lead of one candidate over another."""
    return Lead(
        first.log_evidence - second.log_evidence, math.hypot(first.standard_error, second.standard_error)
    )


def candidate_of(model: Any, comparison: Comparison) -> Candidate | None:
    """The candidate that is this model, also where the model was saved and loaded since."""
    for candidate in comparison.candidates:
        if candidate.estimator is model or candidate.log_evidence == model.log_evidence_:
            return candidate
    return None


def headline(model: Any, ranges: Sequence[Range], comparison: Comparison | None) -> str:
    """What f does not care about; and how much better than no invariance that is, where it was compared."""
    if ranges:
        what = ", ".join(each.phrase() for each in ranges)
    elif symmetry := symmetry_phrase(model):
        what = f"indifferent to {symmetry}"
    else:
        what = "no invariance"
    against = _against(model, comparison)
    text = f"{what}; {against}." if against else f"{what}."
    return text[0].upper() + text[1:]


def standing(model: Any, comparison: Comparison | None) -> list[str]:
    """Sentences on the place of this model among the candidates."""
    own = None if comparison is None else candidate_of(model, comparison)
    if comparison is None or own is None:
        return []
    others = [each for each in comparison.candidates if each is not own and each.name != NO_INVARIANCE]
    tied = [each for each in others if lead(own, each).is_tie]
    better = [each for each in others if each not in tied and lead(each, own).nats > 0]
    sentences = [
        f"A tie with {each.name}: {lead(own, each).text()} apart, {lead(own, each).excuse}." for each in tied
    ]
    sentences += [f"Less evidence than {each.name}, by {lead(own, each).text()}." for each in better]
    worse = [each for each in others if each not in tied and each not in better]
    if worse:
        nearest = max(worse, key=lambda each: each.log_evidence)
        sentences.append(f"Better than {nearest.name} by {lead(own, nearest).text()}.")
    return sentences


def _against(model: Any, comparison: Comparison | None) -> str:
    own = None if comparison is None else candidate_of(model, comparison)
    if comparison is None or own is None:
        return ""
    plain = next((each for each in comparison.candidates if each.name == NO_INVARIANCE), None)
    if own is plain:
        rivals = [each for each in comparison.candidates if each is not own]
        if not rivals:
            return ""
        rival = max(rivals, key=lambda each: each.log_evidence)
        return _verdict(lead(own, rival), rival.name)
    return "" if plain is None else _verdict(lead(own, plain), "no invariance")


def _verdict(difference: Lead, other: str) -> str:
    if difference.is_tie:
        return f"a tie with {other} ({difference.text()} apart)"
    word = "better" if difference.nats > 0 else "worse"
    return f"{word} than {other} by {difference.text()}"
