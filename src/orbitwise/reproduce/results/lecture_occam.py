"""Occam's razor counted: the rule of a sequence, and the order of a polynomial under two priors."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from matplotlib.figure import Figure

from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.kernels import BasisKernel, PolynomialBasis
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.selection.model_posterior import model_posterior

SEQUENCE = (-1, 3, 7, 11)
PRIORS = {"isotropic": "Occam's hill", "geometric": "Occam's asymptote"}
NUM_DATA, NOISE, RANGE = 40, 0.2, 1.5


def run_integers(largest: int, device: str) -> Numbers:
    """The share of all settings of both rules that give the sequence.

    H₁ is x → x + n, H₂ is x → c·x³ + d·x² + e. First numbers and n are integers from -largest to largest, and
    coefficients are such integers over denominators from 1 to largest, all pairs equally probable.
    """
    integers = np.arange(-largest, largest + 1)
    fits = [
        (int(first), int(step))
        for first in integers
        for step in integers
        if all(first + k * step == value for k, value in enumerate(SEQUENCE))
    ]
    over, under = (each.ravel() for each in np.meshgrid(integers, np.arange(1, largest + 1), indexing="ij"))
    before, after = SEQUENCE[:-1], SEQUENCE[1:]
    # two differences of the three equations are linear in c and d alone, which fixes both
    first, second = (
        (before[k + 1] ** 3 - before[k] ** 3, before[k + 1] ** 2 - before[k] ** 2, after[k + 1] - after[k])
        for k in (0, 1)
    )
    determinant = first[0] * second[1] - second[0] * first[1]
    c = Fraction(first[2] * second[1] - second[2] * first[1], determinant)
    d = Fraction(first[0] * second[2] - second[0] * first[2], determinant)
    e = after[0] - c * before[0] ** 3 - d * before[0] ** 2
    ways = [int((over * each.denominator == each.numerator * under).sum()) for each in (c, d, e)]
    simple = len(fits) / len(integers) ** 2
    complex_ = np.prod([way / len(over) for way in ways]) / len(integers)
    following = [Fraction(SEQUENCE[-1])]
    for _ in range(2):
        following.append(c * following[-1] ** 3 + d * following[-1] ** 2 + e)
    return {
        "largest": largest,
        "settings": fits,
        "rule": [str(each) for each in (c, d, e)],
        "ways": ways,
        "progression": simple,
        "cubic": float(complex_),
        "next": [float(each) for each in following[1:]],
    }


def truth(x: np.ndarray) -> np.ndarray:
    """A function that is no polynomial, but near ones of low order."""
    return np.exp(-x) - 1.5


def run_polynomials(prior: str, largest: int, seed: int, device: str) -> Numbers:
    """The evidence of every order, with the prior's one parameter and the noise integrated out."""
    rng = np.random.default_rng(seed)
    x = np.linspace(-RANGE, RANGE, NUM_DATA)[:, None]
    y = truth(x[:, 0]) + NOISE * rng.normal(size=NUM_DATA)
    models = {}
    for order in range(largest + 1):
        if prior == "isotropic":
            kernel = BasisKernel(PolynomialBasis(order))
        else:
            kernel = BasisKernel(PolynomialBasis(order), "geometric")
            kernel.raw_variance.requires_grad_(False)  # a₀ ~ N(0, 1)
        models[str(order)] = InvariantGPRegressor(kernel, normalize_y=False)
    found = model_posterior(models, x, y)
    by_order = {int(each.name): each for each in found.models}
    grid = np.linspace(-RANGE, RANGE, 121)[:, None]
    error = np.sqrt(np.mean((found.predict(grid) - truth(grid[:, 0])) ** 2))
    return {
        "prior": prior,
        "evidence": [by_order[order].log_evidence for order in range(largest + 1)],
        "probability": [by_order[order].probability for order in range(largest + 1)],
        "error_of_average": float(error),
    }


def cells(setting: Setting) -> Mapping[str, Cell]:
    """The sequence once, and polynomials for every draw of the noise."""
    largest, top = setting.pick((25, 6), (50, 16), (50, 20))
    found = {"integers": Cell(run_integers, {"largest": largest}, 0.5)}
    for seed in setting.seeds:
        for prior in PRIORS:
            options = {"prior": prior, "largest": top, "seed": seed}
            found[f"polynomials, {prior}, seed {seed}"] = Cell(run_polynomials, options, 15.0)
    return found


def evidences(numbers: Cells, prior: str) -> np.ndarray:
    """The mean evidence of every order."""
    return np.mean([each["evidence"] for each in numbers.values() if each.get("prior") == prior], axis=0)


def claims(numbers: Cells) -> list[Claim]:
    """Sections 1.4 and 1.5."""
    integers = numbers["integers"]
    odds = integers["progression"] / integers["cubic"]
    hill, asymptote = (evidences(numbers, prior) for prior in PRIORS)
    best, last = int(hill.argmax()), len(hill) - 1
    lost = float(hill.max() - hill[-1]), float(asymptote.max() - asymptote[-1])
    too_simple = float(hill.max() - hill[0])
    return [
        Claim(
            "Both rules give −1, 3, 7, 11; the cubic goes on with another number",
            "c = 1/11, d = 9/11, e = 23/11",
            f"c, d, e = {', '.join(integers['rule'])}, then {integers['next'][0]:.1f}",
            "holds" if integers["rule"] == ["1/11", "9/11", "23/11"] else "differs",
            "the printed c has the wrong sign: with +1/11 the sequence is not −1, 3, 7, 11",
        ),
        Claim.of(
            "Bayes' rule prefers the progression",
            "10⁻⁴ / 2.3·10⁻¹² ≈ 40 million",
            f"{integers['progression']:.2g} / {integers['cubic']:.2g}, {odds / 1e6:.3g} million to one, by "
            f"integers up to {integers['largest']}",
            1e7 < odds < 1e8 or (integers["largest"] < 50 and odds > 1e4),
        ),
        Claim.of(
            "Occam's hill: with equal priors on all coefficients too simple and too complex models lose",
            "figure 6, no numbers",
            f"most evidence at order {best}; {too_simple:.1f} nats less at order 0, {lost[0]:.1f} "
            f"at order {last}",
            0 < best < last and too_simple > 1 and lost[0] > 1,
        ),
        Claim.of(
            "Occam's asymptote: with a prior that shrinks with the order complex models do not lose",
            "figure 7, no numbers",
            f"{lost[1]:.1f} nats less than at its best at order {last}",
            lost[1] < 0.5 * lost[0],
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """The two rules, and the hill and the asymptote."""
    figure.set_size_inches(11, 3.4)
    axes, integers = figure.subplots(1, 3), numbers["integers"]
    axes[0].plot(range(1, 5), SEQUENCE, "ko-", label="seen")
    axes[0].plot([4, 5, 6], [11, 15, 19], "o--", color="tab:blue", label="x + 4")
    axes[0].plot([4, 5, 6], [11, *integers["next"]], "o--", color="tab:red", label="cubic")
    axes[0].set_yscale("symlog", linthresh=20)
    axes[0].set(title="Which rule goes on?", xlabel="place in the sequence")
    axes[0].legend(fontsize=8)
    for axis, (prior, title) in zip(axes[1:], PRIORS.items(), strict=True):
        values = evidences(numbers, prior)
        axis.plot(values, "o-")
        axis.set(title=title, xlabel="order of the polynomial", ylabel="log evidence, nats")
        axis.set_ylim(values.max() - 40, values.max() + 3)


RESULT = Result(
    name="lecture-occam",
    title="Odds of two rules for a sequence, and the evidence of polynomials under two priors",
    source="Lecture 1.4 and 1.5, figures 6 and 7",
    printed="Odds of about 40 million; a hill and an asymptote without numbers.",
    cells=cells,
    claims=claims,
    draw=draw,
    seeds=(1, 1, 5),
)
