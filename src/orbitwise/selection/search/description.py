"""A structure in plain words: one phrase per component and one sentence per invariance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from orbitwise.kernels.spelling import Expression, Term, terms
from orbitwise.selection.search.hypotheses import SMOOTH, Claim

TREND = 0.2
"""A smooth component is called a trend when it changes over more than this share of the range of x."""

ORDERS = {1: "a straight line", 2: "a quadratic trend", 3: "a cubic trend"}


@final
class Words:
    """The names of the columns, the unit of x, and the range of each column."""

    def __init__(self, names: Sequence[str], extents: NDArray[np.float64], unit: str = "") -> None:
        self.names, self.extents, self.unit = list(names), extents, unit

    def length(self, value: float) -> str:
        """A length along x, with its unit."""
        return f"{value:.3g}{f' {self.unit}' if self.unit else ''}"

    def of(self, columns: Sequence[int]) -> str:
        """The names of some columns."""
        names = [self.names[column] for column in columns]
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

    def lengths(self, values: Sequence[float], columns: Sequence[int]) -> str:
        """A length along each of some columns."""
        texts = [f"{self.length(value)} in {self.names[c]}" for value, c in zip(values, columns, strict=True)]
        return f"{', '.join(texts[:-1])} and {texts[-1]}"

    def inside(self, columns: Sequence[int]) -> str:
        """ " in x0", or nothing where there is one column only."""
        return "" if len(self.names) == 1 else f" in {self.of(columns)}"


def component_phrase(component: Expression, words: Words) -> str:
    """A component, which is a product of base kernels, in words."""
    groups: dict[tuple[int, ...], list[Term]] = {}
    for term in terms(component):
        groups.setdefault(term.columns or tuple(range(len(words.names))), []).append(term)
    phrases = [_of_columns(group, columns, words) for columns, group in groups.items()]
    return ", times ".join(phrases)


def _of_columns(group: Sequence[Term], columns: tuple[int, ...], words: Words) -> str:
    cycles = [term for term in group if term.name in ("periodic", "cosine")]
    lines = [term for term in group if term.name in ("linear", "dot")]
    smooth = [term for term in group if term.name in SMOOTH]
    others = [term for term in group if term not in (*cycles, *lines, *smooth)]
    inside = words.inside(columns)
    if cycles:
        phrase = f"{_cycle(cycles[0], words)}{inside}"
        phrase += "".join(f", modulated by {_cycle(term, words)}" for term in cycles[1:])
        if smooth:
            shortest = min(_value(term, "lengthscale") for term in smooth)
            phrase += f" whose shape drifts over about {words.length(shortest)}"
    elif smooth:
        phrase = _smooth(smooth, columns, words)
    elif others:
        phrase = f"{_other(others.pop(0))}{inside}"
    else:
        phrase = ORDERS.get(len(lines), f"a polynomial trend of degree {len(lines)}") + inside
        lines = []
    if lines:
        centre = _value(lines[0], "centre")
        phrase += f", growing with the distance from {words.of(columns)} = {centre:.4g}"
    return phrase + "".join(f", times {_other(term)}" for term in others)


def _cycle(term: Term, words: Words) -> str:
    period = _value(term, "period_length") * (2 if term.name == "cosine" else 1)
    if words.unit.startswith("year") and abs(period - 1) < 0.02:
        cycle = "a yearly cycle"
    else:
        cycle = f"a cycle that repeats every {words.length(period)}"
    return cycle if term.name == "periodic" and _value(term, "lengthscale") < 10 else f"{cycle} (a pure wave)"


def _smooth(group: Sequence[Term], columns: tuple[int, ...], words: Words) -> str:
    """A product of smooth factors, described by the shortest; several lengthscales are all named."""
    term = min(group, key=lambda each: _value(each, "lengthscale"))
    lengths = dict(term.values).get("lengthscale", (1.0,))
    is_trend = bool((np.array(lengths) > TREND * words.extents[list(columns)].max()).all())
    kind = {"matern12": "rough ", "matern32": "fairly rough ", "matern52": "fairly smooth "}.get(
        term.name, "smooth "
    )
    noun = "trend" if is_trend else "variation"
    scales = "at many scales around" if any(each.name == "rq" for each in group) else "over about"
    if len(set(lengths)) > 1:
        return f"a {kind}{noun} that changes {scales} {words.lengths(lengths, columns)}"
    return f"a {kind}{noun} that changes {scales} {words.length(min(lengths))}{words.inside(columns)}"


def _other(term: Term) -> str:
    kinds = {
        "constant": "a constant",
        "sm": f"a mixture of {term.option} spectral lines",
        "polynomial": f"a polynomial of degree {term.option}",
    }
    return kinds.get(term.name, f"a component of the kernel {term.name}")


def _value(term: Term, name: str) -> float:
    values = dict(term.values).get(name, (1.0,))
    return float(np.exp(np.mean(np.log(values)))) if min(values) > 0 else float(np.mean(values))


def claim_sentence(claim: Claim, words: Words) -> str:
    """An invariance of f as a sentence."""
    columns = claim.columns or tuple(range(len(words.names)))
    name = words.of(columns)
    if claim.kind == "mirror":
        return f"f does not change when {name} is mirrored about {claim.value:.4g}."
    if claim.kind == "odd":
        return f"f changes its sign when {name} is mirrored about {claim.value:.4g}."
    if claim.kind == "period":
        return f"f repeats itself exactly every {words.length(claim.value or 0.0)} in {name}."
    if claim.kind == "swap":
        return f"f does not change when {name} are exchanged."
    return f"f does not depend on the order of {name}."


def summary(
    components: Sequence[Expression],
    shares: Sequence[float],
    claims: Sequence[Claim],
    words: Words,
    noise: float,
) -> str:
    """The whole structure, the strongest component first, with its shares of the variance of the targets."""
    order = np.argsort(shares)[::-1]
    phrases = [f"{component_phrase(components[i], words)} ({shares[i]:.0%} of the variance)" for i in order]
    text = "; plus ".join(phrases)
    sentences = [f"{text[0].upper()}{text[1:]}."]
    sentences += [claim_sentence(claim, words) for claim in claims]
    sentences.append(f"Noise has a standard deviation of {noise:.3g}.")
    return " ".join(sentences)
