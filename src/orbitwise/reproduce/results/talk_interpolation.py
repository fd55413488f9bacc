"""From no invariance to strict invariance: f(x) = ∫ g(x_a) p(x_a | x) dx_a with rotations up to an angle."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from orbitwise.functionals.averages import OrbitAverage
from orbitwise.functionals.functional import Evaluation, Functional
from orbitwise.inference import exact
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.talk_demo import process_of
from orbitwise.transforms.vectors import Rotation

ANGLES = (0.0, 30.0, 60.0, 90.0, 135.0, 180.0)
"""Degrees up to which inputs are turned, in both directions; 180 is strict invariance."""
LENGTHSCALE, NODES, SIDE, NOISE = 0.6, 48, 31, 0.2
TRUTHS = {"none": 0.0, "up to 60°": 60.0, "strict": 180.0}


def turned(angle: float) -> Functional:
    """The average over rotations up to `angle` degrees, at evenly spaced nodes."""
    if angle == 0:
        return Evaluation()
    nodes = math.radians(angle) * ((2 * torch.arange(NODES, dtype=torch.float64) + 1) / NODES - 1)
    return OrbitAverage(FiniteOrbit(Rotation(), nodes[:, None])).double()


def square() -> Tensor:
    """The places of a picture."""
    places = torch.linspace(-2, 2, SIDE, dtype=torch.float64)
    return torch.stack(torch.meshgrid(places, places, indexing="xy"), -1).reshape(-1, 2)


@torch.no_grad()
def prior(angle: float, num_rows: int, num_draws: int, seed: int, device: str) -> Numbers:
    """How much f changes by any rotation under the prior, and one draw of f.

    `changes` are means of (f(x) - f(tx))² over x and t, in units of the variance of f, and the share beyond
    each of some limits.
    """
    generator = torch.Generator().manual_seed(seed)
    process, functional = process_of(LENGTHSCALE), turned(angle)
    x = 4 * torch.rand(num_rows, 2, generator=generator, dtype=torch.float64) - 2
    turns = 2 * math.pi * torch.rand(num_rows, 1, 1, generator=generator, dtype=torch.float64)
    both = functional.atoms(torch.cat([x, Rotation()(x, turns)[:, 0]]))
    values = exact.sample_prior(process, both, num_draws, generator)
    change = (values[:num_rows] - values[num_rows:]).square() / process.variance(both).mean()
    numbers: Numbers = {
        "angle": angle,
        "change": float(change.mean()),
        "beyond": {f"{limit:g}": float((change > limit).double().mean()) for limit in (0.01, 0.1, 1.0)},
    }
    if seed == 0:
        # the same g for every angle, given by its values on a lattice that is finer than its lengthscale
        lattice = torch.linspace(-3.2, 3.2, 15, dtype=torch.float64)
        nodes = torch.stack(torch.meshgrid(lattice, lattice, indexing="xy"), -1).reshape(-1, 2)
        heights = exact.sample_prior(process, Evaluation().atoms(nodes), 1, torch.Generator().manual_seed(1))
        g = exact.condition(
            process, Evaluation().atoms(nodes), heights, torch.full((len(nodes),), 1e-6).double()
        )
        picture = g.row_mean(functional.atoms(square()))[:, 0]
        numbers["picture"] = [[round(float(each), 3) for each in row] for row in picture.reshape(SIDE, SIDE)]
    return numbers


@torch.no_grad()
def choice(truth: str, num_rows: int, seed: int, device: str) -> Numbers:
    """The evidence of every angle for data that are drawn from f with one of them."""
    generator = torch.Generator().manual_seed(100 + seed)
    process = process_of(LENGTHSCALE)
    x = 4 * torch.rand(num_rows, 2, generator=generator, dtype=torch.float64) - 2
    rows = {angle: turned(angle).atoms(x) for angle in ANGLES}
    scales = {angle: process.variance(rows[angle]).mean().sqrt() for angle in ANGLES}
    f = exact.sample_prior(process, rows[TRUTHS[truth]], 1, generator) / scales[TRUTHS[truth]]
    y = f + NOISE * torch.randn(num_rows, 1, generator=generator, dtype=torch.float64)
    noise = torch.full((num_rows,), NOISE**2, dtype=torch.float64)
    # f has variance one at every angle, so that only the invariance is compared
    evidence = {
        f"{angle:g}": exact.evidence(
            process, rows[angle], y * scales[angle], noise * scales[angle] ** 2
        ).value.item()
        + num_rows * math.log(scales[angle].item())
        for angle in ANGLES
    }
    return {"truth": truth, "evidence": evidence}


def cells(setting: Setting) -> Mapping[str, Cell]:
    """The prior at every angle, and the evidence for data of three kinds."""
    num_rows, num_draws = setting.pick((60, 20), (200, 200), (400, 1000))
    num_data = setting.pick(60, 150, 300)
    found = {}
    for seed in setting.seeds:
        for angle in ANGLES:
            options = {"angle": angle, "num_rows": num_rows, "num_draws": num_draws, "seed": seed}
            found[f"prior, {angle:g}°, seed {seed}"] = Cell(prior, options, 2.0)
        for truth in TRUTHS:
            options = {"truth": truth, "num_rows": num_data, "seed": seed}
            found[f"data, {truth}, seed {seed}"] = Cell(choice, options, 4.0)
    return found


def changes(numbers: Cells) -> dict[float, float]:
    """The mean change of f by a rotation for every angle."""
    found = [each for each in numbers.values() if "change" in each]
    return {
        angle: float(np.mean([each["change"] for each in found if each["angle"] == angle]))
        for angle in ANGLES
    }


def evidences(numbers: Cells, truth: str) -> dict[float, float]:
    """The mean evidence of every angle for data of one kind."""
    found = [each["evidence"] for each in numbers.values() if each.get("truth") == truth]
    return {angle: float(np.mean([each[f"{angle:g}"] for each in found])) for angle in ANGLES}


def claims(numbers: Cells) -> list[Claim]:
    """What the talk says of insensitivity."""
    change = changes(numbers)
    values = list(change.values())
    # Markov's inequality, as in LIM-A: P[(f(x) - f(tx))² > L] ≤ E/L
    limits = [
        (float(limit), share, each["change"])
        for each in numbers.values()
        if "change" in each
        for limit, share in each["beyond"].items()
    ]
    worst = max(share * limit / max(mean, 1e-12) for limit, share, mean in limits if share > 0)
    chosen = {truth: evidences(numbers, truth) for truth in TRUTHS}
    best = {truth: max(values, key=lambda angle: values[angle]) for truth, values in chosen.items()}
    return [
        Claim.of(
            "p(x_a | x) interpolates between non-invariant and invariant",
            "no number",
            "mean squared change of f by any rotation, in variances of f: "
            + ", ".join(f"{value:.2g} at {angle:g}°" for angle, value in change.items()),
            all(a > b for a, b in itertools.pairwise(values)) and values[0] > 1,
        ),
        Claim.of(
            "At its end the invariance is strict",
            "f(x) = f(t(x)) (eq. 9)",
            f"{values[-1]:.1e} variances at 180° with {NODES} nodes",
            values[-1] < 1e-3,
        ),
        Claim.of(
            "Softer invariance: a limit on P[(f(x) − f(t(x)))² > L] (eq. 10)",
            "no number",
            f"largest share beyond L is {worst:.2f} of what the mean change allows (L = 0.01, 0.1, 1)",
            worst <= 1,
        ),
        Claim.of(
            "The marginal likelihood selects the invariance",
            "no number",
            "; ".join(f"data with {truth}: {angle:g}° is best" for truth, angle in best.items()),
            all(abs(ANGLES.index(angle) - ANGLES.index(TRUTHS[truth])) <= 1 for truth, angle in best.items()),
            "so few data hardly tell neighbouring angles apart",
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """One g averaged over more and more rotations, the change of f, and the evidence."""
    figure.set_size_inches(12, 5.2)
    places = figure.add_gridspec(2, len(ANGLES), height_ratios=(1, 1.2))
    axes = {angle: figure.add_subplot(places[0, i]) for i, angle in enumerate(ANGLES)}
    half = len(ANGLES) // 2
    left, right = figure.add_subplot(places[1, :half]), figure.add_subplot(places[1, half:])
    pictures = {each["angle"]: each["picture"] for each in numbers.values() if "picture" in each}
    for angle, picture in pictures.items():
        axis = axes[angle]
        axis.imshow(picture, origin="lower", extent=(-2, 2, -2, 2))
        axis.set(title=f"±{angle:g}°" if angle else "g itself", xticks=[], yticks=[])
    change = changes(numbers)
    left.plot(list(change), list(change.values()), "o-")
    left.set(xlabel="rotations up to, degrees", ylabel="E(f(x) − f(tx))² / Var f", xticks=ANGLES)
    for truth in TRUTHS:
        values = evidences(numbers, truth)
        top = max(values.values())
        right.plot(list(values), [value - top for value in values.values()], "o-", label=f"data: {truth}")
    right.set(xlabel="rotations up to, degrees", ylabel="log evidence, less the best", xticks=ANGLES)
    right.set_yscale("symlog", linthresh=10)
    right.legend(fontsize=8)


RESULT = Result(
    name="talk-interpolation",
    title="From no invariance to strict invariance by a density of transformed inputs",
    source="Talk, Insensitivity; Interpolating to strict invariance (eq. 9, 10, 14)",
    printed="An animation of f, g and p(x_a | x); no numbers.",
    cells=cells,
    claims=claims,
    draw=draw,
)
