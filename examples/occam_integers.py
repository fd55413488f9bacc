"""
Which rule continues −1, 3, 7, 11?
==================================

Two hypotheses explain the numbers (Lecture 1.4, after MacKay). H₁: an arithmetic progression, x → x + n.
H₂: a cubic, x → c·x³ + d·x² + e, which goes on with −19.9 and 1,043.8. Both fit perfectly. Bayes' rule
prefers H₁ by tens of millions to one, with equal prior odds, because H₂ had so many more ways to be
wrong. Here the odds are counted, not estimated: all settings of both hypotheses are tried under a stated
prior.

(The lecture prints the cubic's first coefficient with the wrong sign: it is −1/11.)

`python examples/occam_integers.py --out DIR` writes `occam_integers.png` and `occam_integers.json`.
"""

import argparse
import json
from fractions import Fraction
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

parser = argparse.ArgumentParser(description="The odds of two rules for a sequence of integers.")
parser.add_argument("--out", type=Path, default=Path("build/occam_integers"), help="folder for the results")
parser.add_argument(
    "--largest", type=int, default=50, help="integers and numerators from -largest to largest"
)
options = parser.parse_known_args()[0]
out, largest = options.out, options.largest
out.mkdir(parents=True, exist_ok=True)

SEQUENCE = (-1, 3, 7, 11)

# %%
# H₁: try every first number and every increment
# ----------------------------------------------
# Both are integers from −50 to 50, all equally probable.

integers = np.arange(-largest, largest + 1)
first, increment = np.meshgrid(integers, integers, indexing="ij")
fits = np.all([first + k * increment == value for k, value in enumerate(SEQUENCE)], axis=0)
(found,) = np.argwhere(fits)
progression = {"first": int(integers[found[0]]), "increment": int(integers[found[1]])}
probability_progression = int(fits.sum()) / fits.size
print(f"H1: {fits.sum()} of {fits.size:,} settings gives {SEQUENCE}: {probability_progression:.3g}")

# %%
# H₂: try every first number and every triple of fractions
# --------------------------------------------------------
# A coefficient is a numerator from −50 to 50 over a denominator from 1 to 50, all pairs equally probable,
# so that equal fractions count as often as they can be written: −1/11 = −2/22 = −3/33 = −4/44. All pairs
# (c, d) are tried in integers, without rounding: differences of the three equations are free of e. Where
# they hold, all e are tried.

numerators, denominators = (
    each.ravel() for each in np.meshgrid(integers, np.arange(1, largest + 1), indexing="ij")
)
before, after = SEQUENCE[:-1], SEQUENCE[1:]


def holds(c: tuple, d: tuple, cubes: int, squares: int, change: int) -> np.ndarray:
    """Whether c·cubes + d·squares = change, for fractions c and d as (numerator, denominator)."""
    return c[0] * d[1] * cubes + d[0] * c[1] * squares == change * c[1] * d[1]


pairs = []
for i, c in enumerate(zip(numerators.tolist(), denominators.tolist(), strict=True)):
    fits = np.ones(len(numerators), dtype=bool)
    for k in range(2):
        cubes, squares = (before[k + 1] ** power - before[k] ** power for power in (3, 2))
        fits &= holds(c, (numerators, denominators), cubes, squares, after[k + 1] - after[k])
    pairs += [(i, int(j)) for j in np.flatnonzero(fits)]
triples = []
for i, j in pairs:
    c, d = (Fraction(int(numerators[k]), int(denominators[k])) for k in (i, j))
    e = after[0] - c * before[0] ** 3 - d * before[0] ** 2
    written = numerators * e.denominator == e.numerator * denominators
    triples += [(c, d, Fraction(int(numerators[k]), int(denominators[k]))) for k in np.flatnonzero(written)]
(rule,) = set(triples)
ways = [len({i for i, _ in pairs}), len({j for _, j in pairs})]
ways.append(len(triples) // (ways[0] * ways[1]))
num_fractions = len(numerators)
probability_cubic = len(triples) / (len(integers) * num_fractions**3)
odds = probability_progression / probability_cubic
print(
    f"H2: {len(triples)} of {len(integers) * num_fractions**3:.3g} settings give them, all with "
    f"x → {rule[0]}·x³ + {rule[1]}·x² + {rule[2]}: {probability_cubic:.3g}"
)
print(f"odds of H1 over H2, with equal prior odds: {odds:,.0f} to 1 (the lecture: about 40 million)")


# %%
# What each says comes next
# -------------------------


def cubic(x: Fraction) -> Fraction:
    return rule[0] * x**3 + rule[1] * x**2 + rule[2]


straight, curved = [Fraction(SEQUENCE[-1])], [Fraction(SEQUENCE[-1])]
for _ in range(2):
    straight.append(straight[-1] + progression["increment"])
    curved.append(cubic(curved[-1]))
assert [cubic(Fraction(value)) for value in before] == list(after)
print(
    "next:",
    *(f"{float(value):.1f}" for value in straight[1:]),
    "or",
    *(f"{float(v):.1f}" for v in curved[1:]),
)

# %%
# Picture and numbers
# -------------------

INK, FAINT, SIMPLE, COMPLEX = "#22303a", "#c9d0d5", "#0072b2", "#d55e00"
plt.rcParams.update(
    {
        "font.size": 11,
        "axes.titlesize": 12.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
)
figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.8), layout="constrained", width_ratios=(0.8, 1))
places = np.arange(1, 7)
left.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
for values, colour, name in (
    (straight, SIMPLE, "$H_1$:  $x + 4$"),
    (curved, COMPLEX, "$H_2$:  $-x^3/11 + 9x^2/11 + 23/11$"),
):
    ahead = [float(value) for value in values]
    left.plot(places[3:], ahead, "o--", color=colour, linewidth=1.6, markersize=7, label=name)
    for place, value in zip(places[4:], ahead[1:], strict=True):
        text = f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
        left.annotate(
            text.replace("-", "−"),
            (place, value),
            (0, 10) if colour == SIMPLE else (10, -5) if place == 5 else (-10, -5),
            textcoords="offset points",
            color=colour,
            ha="center" if colour == SIMPLE else "left" if place == 5 else "right",
        )
left.plot(places[:4], SEQUENCE, "o-", color=INK, linewidth=1.6, markersize=8, label="seen")
for place, value in zip(places, SEQUENCE, strict=False):
    left.annotate(
        f"{value}".replace("-", "−"), (place, value), (0, 9), textcoords="offset points", ha="center"
    )
left.set_yscale("symlog", linthresh=20, linscale=1.6)
left.set(xlim=(0.6, 6.5), ylim=(-70, 3000), xlabel="place in the sequence", yticks=[-20, 0, 20, 100, 1000])
left.set_yticklabels(["−20", "0", "20", "100", "1,000"])
left.set_title("Both rules fit what was seen", pad=14)
left.legend(frameon=False, loc="upper left", fontsize=10.5)

FACTORS = {
    "$H_1$": [("first number", 1, len(integers)), ("increment", 1, len(integers))],
    "$H_2$": [
        ("first number", 1, len(integers)),
        *(
            (f"${name}={value}$", way, num_fractions)
            for name, value, way in zip("cde", rule, ways, strict=True)
        ),
    ],
}
for row, factors in enumerate(FACTORS.values()):
    start = 0.0
    for k, (what, count, total) in enumerate(factors):
        width = np.log10(total / count)
        colour = SIMPLE if row == 0 else COMPLEX
        right.barh(
            1 - row, width, left=start, height=0.46, color=colour, alpha=1 - 0.08 * k, edgecolor="white"
        )
        right.text(
            start + width / 2,
            1 - row,
            f"{what}\n{count}/{total:,}",
            ha="center",
            va="center",
            color="white",
            fontsize=9.5,
        )
        start += width
    probability = (probability_progression, probability_cubic)[row]
    power = int(np.floor(np.log10(probability)))
    text = f"$p(D\\mid H_{row + 1}) = {probability / 10.0**power:.1f}\\cdot 10^{{{power}}}$"
    right.text(start + 0.15, 1 - row, text, va="center", fontsize=12, color=colour)
right.set(xlim=(0, 16), ylim=(-0.55, 1.55), yticks=[1, 0], yticklabels=["$H_1$", "$H_2$"])
right.set_xticks(range(0, 16, 2), [f"$10^{{{-power}}}$" if power else "1" for power in range(0, 16, 2)])
right.set_xlabel("probability of the sequence, one factor after the other")
right.tick_params(axis="y", length=0, labelsize=13)
right.spines["left"].set_visible(False)
right.set_title(f"The cubic needed more luck: {odds / 1e6:.0f} million to one", pad=14)
figure.savefig(out / "occam_integers.png", dpi=140)
record = {
    "largest": largest,
    "probability_progression": probability_progression,
    "probability_cubic": probability_cubic,
    "odds": odds,
    "progression": progression,
    "cubic": [str(value) for value in rule],
    "ways": ways,
    "settings_that_fit": len(triples),
    "next_by_progression": [float(value) for value in straight[1:]],
    "next_by_cubic": [float(value) for value in curved[1:]],
}
(out / "occam_integers.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
print(f"wrote {out / 'occam_integers.png'} and {out / 'occam_integers.json'}")
