"""The last slides of the talk: training loss chooses hyperparameters that overfit, the evidence does not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.figure import Figure

from orbitwise.inference import exact
from orbitwise.inference.stored_rows import held_rows
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.tables import mean_of, over_seeds
from orbitwise.reproduce.talk_demo import grid, process_of, rounded, wave, waves

NOISE, NUM_TEST = 0.25, 400
CRITERIA = ("training loss", "marginal likelihood")


@torch.no_grad()
def run(num_rows: int, num_lengthscales: int, seed: int, device: str) -> Numbers:
    """Lengthscale and noise on a grid: training error (eq. 15), evidence and test error of each."""
    train, test = waves(num_rows, NOISE, 2 * seed), waves(NUM_TEST, NOISE, 2 * seed + 1)
    lengthscales, noises = np.geomspace(0.02, 5, num_lengthscales), np.geomspace(1e-4, 1, 17)
    rows = []
    for lengthscale in lengthscales.tolist():
        process = process_of(lengthscale)
        for noise in noises.tolist():
            found = exact.condition(
                process, train.atoms(), train.targets, torch.full((num_rows,), noise, dtype=torch.float64)
            )
            errors = [
                float((found.row_mean(part.atoms()) - part.targets).square().mean().sqrt())
                for part in (train, test)
            ]
            rows.append((lengthscale, noise, found.evidence().value.item(), *errors))
    table = np.array(rows)
    chosen = dict(zip(CRITERIA, (table[:, 3].argmin(), table[:, 2].argmax()), strict=True))
    best = table.reshape(len(lengthscales), len(noises), 5)
    numbers: Numbers = {
        "least_test": float(table[:, 4].min()),
        "curve": [best[i, best[i, :, 2].argmax()].tolist() for i in range(len(lengthscales))],
    }
    for criterion, place in chosen.items():
        lengthscale, noise, evidence, training, test_error = table[place].tolist()
        numbers[criterion] = {
            "lengthscale": lengthscale,
            "noise": noise,
            "log_evidence": evidence,
            "training": training,
            "test": test_error,
        }
        if seed == 0:
            variances = torch.full((num_rows,), noise, dtype=torch.float64)
            posterior = exact.condition(process_of(lengthscale), train.atoms(), train.targets, variances)
            moments = posterior.row_moments(train.functional.atoms(grid(281)))
            numbers[criterion] |= {
                "mean": rounded(moments.mean),
                "deviation": rounded((moments.variance + noise).sqrt()),
            }
    if seed == 0:
        numbers["data"] = [rounded(held_rows(train.x)), rounded(train.targets)]
    flat: Numbers = {
        f"{key} of {name}": numbers[name][key] for name in CRITERIA for key in ("training", "test")
    }
    return numbers | flat


def cells(setting: Setting) -> Mapping[str, Cell]:
    """One draw of the data for each seed."""
    count = setting.pick(9, 33, 33)
    return {
        f"draw, seed {seed}": Cell(run, {"num_rows": 40, "num_lengthscales": count, "seed": seed}, 1.0)
        for seed in setting.seeds
    }


def claims(numbers: Cells) -> list[Claim]:
    """Eq. 15 and 16 and the slide after them."""

    def mean(key: str, criterion: str) -> float:
        return mean_of(numbers, "draw", f"{key} of {criterion}")

    loss, evidence = CRITERIA
    lengthscales = [each[loss]["lengthscale"] for each in over_seeds(numbers, "draw")]
    noises = [each[loss]["noise"] for each in over_seeds(numbers, "draw")]
    return [
        Claim.of(
            "We can fit anything with a tiny lengthscale and noise variance",
            "no number",
            f"training error {mean('training', loss):.1e} at lengthscales up to {max(lengthscales):.2g} and "
            f"noise variances up to {max(noises):.2g}",
            mean("training", loss) < 0.2 * NOISE and max(noises) < 1e-3,
        ),
        Claim.of(
            "Marginal likelihood fixes things: a more sensible fit",
            "no number",
            f"test error {mean('test', evidence):.3f} by marginal likelihood, {mean('test', loss):.3f} by "
            f"training loss, {mean_of(numbers, 'draw', 'least_test'):.3f} at best",
            mean("test", evidence) < 0.8 * mean("test", loss),
        ),
        Claim.of(
            "Data fit gets worse",
            "no number",
            f"training error {mean('training', evidence):.3f} by marginal likelihood",
            mean("training", evidence) > mean("training", loss),
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """Both fits, and training error, test error and evidence against the lengthscale."""
    figure.set_size_inches(12, 3.8)
    axes, found = figure.subplots(1, 3), numbers["draw, seed 0"]
    places = grid(281)
    for axis, criterion in zip(axes, CRITERIA, strict=False):
        mean, deviation = (np.array(found[criterion][key]) for key in ("mean", "deviation"))
        axis.plot(places[:, 0], mean, color="tab:blue")
        axis.fill_between(places[:, 0], mean - 2 * deviation, mean + 2 * deviation, alpha=0.2)
        axis.plot(*found["data"], "k.", markersize=5)
        axis.plot(places[:, 0], wave(places)[:, 0], "k:", linewidth=1)
        axis.set(ylim=(-2.5, 2.5), xlabel="x")
        axis.set_title(f"by {criterion}: test error {found[criterion]['test']:.2f}", fontsize=10)
    curve = np.array(found["curve"])
    axes[2].plot(curve[:, 0], curve[:, 3], color="tab:green", label="training error")
    axes[2].plot(curve[:, 0], curve[:, 4], color="tab:purple", label="test error")
    axes[2].set(xscale="log", xlabel="lengthscale (noise by evidence)", ylabel="root mean square error")
    axes[2].legend(fontsize=8)
    twin = axes[2].twinx()
    twin.plot(curve[:, 0], curve[:, 2], color="tab:blue", linestyle="--")
    twin.set_ylabel("log evidence, nats", color="tab:blue")


RESULT = Result(
    name="talk-overfitting",
    title="Hyperparameters chosen by training loss and by marginal likelihood",
    source="Talk, Minimising training loss; Marginal likelihood fixes things (eq. 15, 16)",
    printed="An animation; the data fit gets worse as the marginal likelihood rises. No numbers.",
    cells=cells,
    claims=claims,
    draw=draw,
    seeds=(1, 5, 20),
)
