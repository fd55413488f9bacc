"""The answer in a sentence: what f does not care about, what the evidence says of it, ties called ties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orbitwise.report.ranges import Range, symmetry_phrase
from orbitwise.selection.compare import NO_INVARIANCE, Candidate, Comparison
from orbitwise.selection.differences import Difference, difference_between


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
    tied = [each for each in others if difference_between(own, each).is_tie]
    better = [each for each in others if each not in tied and difference_between(each, own).nats > 0]
    sentences = [
        f"A tie with {each.name}: {found.text()} apart, {found.tie_reason}."
        for each in tied
        if (found := difference_between(own, each))
    ]
    sentences += [
        f"Less evidence than {each.name}, by {difference_between(own, each).text()}." for each in better
    ]
    worse = [each for each in others if each not in tied and each not in better]
    if worse:
        nearest = max(worse, key=lambda each: each.score)
        sentences.append(f"Better than {nearest.name} by {difference_between(own, nearest).text()}.")
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
        rival = max(rivals, key=lambda each: each.score)
        return _verdict(difference_between(own, rival), rival.name)
    return "" if plain is None else _verdict(difference_between(own, plain), "no invariance")


def _verdict(difference: Difference, other: str) -> str:
    if difference.is_tie:
        return f"a tie with {other} ({difference.text()} apart)"
    word = "better" if difference.nats > 0 else "worse"
    return f"{word} than {other} by {difference.text()}"
