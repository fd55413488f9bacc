"""The paper's own procedure, all pairs and Adam on q, beside independent halves and natural steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

import torch
from matplotlib.figure import Figure

from orbitwise.functionals.averages import OrbitAverage, freeze_functional
from orbitwise.functionals.functional import Evaluation
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.inducing import random_orbit_points
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.stochastic.trainer import StochasticTrainer
from orbitwise.kernels.bases import default_kernel
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.process.process import Process
from orbitwise.process.unbiased import Method
from orbitwise.reproduce.images import (
    degrees_of,
    legend,
    load_images,
    mean_over,
    orbit_of,
    randomly_turned,
    source_of,
)
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.tables import over_seeds

TURNED = 90.0
NOISE, NODES, ROWS_AT_ONCE = 0.01, 32, 512
VARIANTS: Mapping[str, tuple[Literal["natural", "adam"], Method]] = {
    "natural steps, halves": ("natural", "halves"),
    "natural steps, all pairs": ("natural", "all_pairs"),
    "Adam, halves": ("adam", "halves"),
    "Adam, all pairs": ("adam", "all_pairs"),
}
OURS, PAPERS = "natural steps, halves", "Adam, all pairs"
COLOURS = dict(zip(VARIANTS, ("tab:blue", "tab:cyan", "tab:orange", "tab:red"), strict=True))


def run(
    images: Mapping[str, Any],
    variant: str,
    num_steps: int,
    num_inducing: int,
    batch_size: int,
    seed: int,
    device: str,
) -> Numbers:
    """A number of steps by one procedure, with the bound and the test error of the q that was reached."""
    place = torch.device(
        "cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu")
    )
    found = randomly_turned(load_images(**images, seed=seed), TURNED, seed)
    x, x_test = (torch.from_numpy(each).flatten(1).double().to(place) for each in (found.x, found.x_test))
    orbit = orbit_of("rotation", found.shape)
    assert orbit is not None
    process, functional = Process(None, default_kernel(x, False)).to(place), OrbitAverage(orbit).to(place)
    likelihood = Gaussian(NOISE).to(place)
    targets = likelihood.encode_labels(torch.from_numpy(found.y), 10).to(place)
    generator = torch.Generator(place).manual_seed(seed)
    inducing = random_orbit_points(functional, x, num_inducing, generator)
    q_update, method = VARIANTS[variant]
    model = LatentModel(process, functional, likelihood)
    rows = Observations(Evaluation(), x, targets)
    trainer = StochasticTrainer(
        model, rows, inducing, generator, batch_size, method=method, q_update=q_update
    )
    start = time.perf_counter()
    trainer.run(num_steps, min(40, num_steps // 3))
    seconds = time.perf_counter() - start
    bound = trainer.estimate(2)
    with torch.no_grad():
        posterior = SparsePosterior(process, trainer.inducing_rows(), trainer.q)
        frozen = freeze_functional(functional, NODES, generator)
        scores = torch.cat([posterior.mean(frozen, part) for part in x_test.split(ROWS_AT_ONCE)])
    wrong = scores.argmax(1).cpu() != torch.from_numpy(found.y_test)
    return {
        "bound": bound.mean,
        "bound_error": bound.standard_error,
        "error": 100 * float(wrong.double().mean()),
        "ranges": {name: list(ends) for name, ends in orbit.learned().items()},
        "noise": float(likelihood.noise),
        "training_seconds": round(seconds, 2),
        "failed_steps": trainer.history.back_offs,
    }


def cells(setting: Setting) -> Mapping[str, Cell]:
    """Every procedure at every number of steps, the smaller ones with the first seed only."""
    source = source_of(setting, (60, 1000, 60_000))
    steps = setting.pick((6,), (50, 150, 450), (100, 400, 1600, 3200))
    found = {}
    for variant in VARIANTS if setting.scale != "tiny" else (OURS, PAPERS):
        for num_steps in steps:
            for seed in setting.seeds if num_steps == steps[-1] else [0]:
                options = {
                    "images": {**source, "num_test": min(source["num_test"], setting.pick(100, 500, 10_000))},
                    "variant": variant,
                    "num_steps": num_steps,
                    "num_inducing": setting.pick(10, 100, 750),
                    "batch_size": setting.pick(20, 64, 200),
                    "seed": seed,
                }
                seconds = setting.pick(1.0, 2 + 0.04 * num_steps, 5 + 0.012 * num_steps)
                found[f"{variant}, {num_steps} steps, seed {seed}"] = Cell(
                    run, options, seconds, (source["data"],)
                )
    return found


def by_steps(numbers: Cells, variant: str) -> dict[int, list[Numbers]]:
    """The runs of a procedure by their number of steps."""
    groups = dict.fromkeys(name.rpartition(", seed ")[0] for name in numbers)
    own = [group for group in groups if group.startswith(f"{variant}, ") and group.endswith("steps")]
    return {int(group.removeprefix(f"{variant}, ").split()[0]): over_seeds(numbers, group) for group in own}


def claims(numbers: Cells) -> list[Claim]:
    """What the choice of the estimator and that of the optimiser matter."""
    ours, papers = by_steps(numbers, OURS), by_steps(numbers, PAPERS)
    last = max(ours)
    reached = mean_over(papers[last], "bound")
    enough = next((steps for steps, fits in ours.items() if mean_over(fits, "bound") >= reached), None)
    texts = [
        f"{mean_over(each[last], 'bound'):,.0f} and {mean_over(each[last], 'error'):.2f} %"
        for each in (papers, ours)
    ]
    found = [
        Claim(
            "q is learned by Adam, together with everything else",
            "“the optimiser has difficulty finding a good solution” (caption of figure 5)",
            f"bound and error after {last:,} steps: {texts[0]} by Adam and all pairs, "
            f"{texts[1]} by natural steps and halves",
            "holds" if enough is not None else "does not hold",
            f"natural steps reach Adam's bound in {enough:,} steps"
            if enough is not None
            else "Adam is ahead",
        )
    ]
    pairs = by_steps(numbers, "natural steps, all pairs")
    if pairs:
        one, other = (mean_over(each[last], "bound") for each in (ours, pairs))
        seconds = [mean_over(each[last], "training_seconds") for each in (ours, pairs)]
        angles = [degrees_of(each[last][0]) for each in (ours, pairs)]
        scale = abs(mean_over(ours[min(ours)], "bound") - one)
        found.append(
            Claim.of(
                "All pairs of draws give an unbiased estimate; independent halves, which we take, do as well",
                "LIM equation 21, no number",
                f"bound {one:,.0f} by halves in {seconds[0]:.0f} s, {other:,.0f} by all pairs in "
                f"{seconds[1]:.0f} s; angle ±{angles[0]:.0f}° and ±{angles[1]:.0f}°",
                abs(one - other) <= 0.1 * scale,
                "they differ by more than a tenth of what training gained",
            )
        )
    return found


def draw(numbers: Cells, figure: Figure) -> None:
    """Angle, test error and bound against the number of steps."""
    figure.set_size_inches(11, 3.4)
    axes = figure.subplots(1, 3)
    for variant, colour in COLOURS.items():
        fits = by_steps(numbers, variant)
        look = {"color": colour, "marker": ".", "label": variant}
        if fits:
            axes[0].plot(list(fits), [degrees_of(each[0]) for each in fits.values()], **look)
            axes[1].plot(list(fits), [mean_over(each, "error") for each in fits.values()], **look)
            axes[2].plot(list(fits), [mean_over(each, "bound") for each in fits.values()], **look)
    axes[0].axhline(TURNED, color="black", linewidth=0.6)
    for axis, title, unit in zip(
        axes, ("rotation", "test error", "bound"), ("degrees", "%", "nats"), strict=True
    ):
        legend(axis, title, "stochastic steps", unit, logarithmic=True)


RESULT = Result(
    name="lim-estimators",
    title="All pairs and Adam on q, as in the paper, beside independent halves and natural steps",
    source="LIM, sections 4.4 and 5.3",
    printed="The procedure of the paper; no comparison.",
    cells=cells,
    claims=claims,
    draw=draw,
)
