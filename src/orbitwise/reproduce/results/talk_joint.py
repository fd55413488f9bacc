"""The talk's demo: Z and θ learned together, with poor fits while M is too small."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning

from orbitwise.estimators.sparse_regressor import SparseGPRegressor
from orbitwise.inference.sparse.bounds import collapsed_bound, gather_totals, upper_bound
from orbitwise.inference.sparse.inducing import inducing_factor
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.stored_rows import held_rows
from orbitwise.process.process import Process
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.talk_demo import grid, rounded, wave, waves

NOISE = 0.25
CLOSE = 1.0
"""Nats within which a bound has arrived."""


def run(num_inducing: int, num_rows: int, seed: int, device: str) -> Numbers:
    """Inducing points and hyperparameters that maximise Titsias' bound, and what they predict."""
    rows, places = waves(num_rows, NOISE, seed), grid(141)
    model = SparseGPRegressor(
        ScaleKernel(RBFKernel()),
        num_inducing=num_inducing,
        bound="titsias",
        optimize_inducing=True,
        selection="kmeans",
        normalize_y=False,
        max_iterations=200,
        random_state=seed,
        device="cpu",
    )
    with warnings.catch_warnings():
        # that M is too small is what is shown
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(held_rows(rows.x).numpy(), rows.targets[:, 0].numpy())
    mean, deviation = model.predict(places.numpy(), return_std=True, include_noise=True)
    kernel = model.kernel_
    assert isinstance(kernel, ScaleKernel)
    posterior = model.posterior_
    assert isinstance(posterior, SparsePosterior)
    assert isinstance(posterior.inducing, torch.Tensor)
    points, noise = posterior.inducing.detach(), torch.tensor(float(model.noise_), dtype=torch.float64)
    process = Process(None, kernel.requires_grad_(False))
    totals = gather_totals(process, rows, points, inducing_factor(process, points), noise, tight=False)
    inside = (places[:, 0] >= 0) & (places[:, 0] <= 6)
    found: Numbers = {
        "inducing": num_inducing,
        "rows": num_rows,
        "elbo": collapsed_bound(totals, noise, tight=False).item(),
        "upper": upper_bound(totals, noise).item(),
        "noise": float(noise.sqrt()),
        "lengthscale": float(kernel.base_kernel.lengthscale.item()),
        "rmse": float(np.sqrt(np.mean((mean - wave(places)[:, 0].numpy())[inside.numpy()] ** 2))),
    }
    if seed == 0:
        found |= {
            "x": rounded(places),
            "mean": np.round(mean, 4).tolist(),
            "deviation": np.round(deviation, 4).tolist(),
            "points": rounded(points),
            "data": [rounded(held_rows(rows.x), 4), rounded(rows.targets, 4)],
        }
    return found


def cells(setting: Setting) -> Mapping[str, Cell]:
    """M from far too few to more than enough."""
    sizes = setting.pick(
        (2, 8, 14, 18), (2, 4, 6, 8, 10, 12, 16, 20), (2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24)
    )
    num_rows = setting.pick(100, 200, 1000)
    return {
        f"M = {size}, seed {seed}": Cell(run, {"num_inducing": size, "num_rows": num_rows, "seed": seed}, 2.0)
        for seed in setting.seeds
        for size in sizes
    }


def series(numbers: Cells, key: str) -> dict[int, float]:
    """The mean over seeds for every M."""
    sizes = sorted({each["inducing"] for each in numbers.values()})
    return {
        size: float(np.mean([each[key] for each in numbers.values() if each["inducing"] == size]))
        for size in sizes
    }


def arrived(short: dict[int, float]) -> int:
    """The least M from which something stays below a nat."""
    late = [size for size, value in short.items() if value > CLOSE]
    return min((size for size in short if size > max(late, default=0)), default=max(short))


def claims(numbers: Cells) -> list[Claim]:
    """The three bullets of the demo."""
    errors, noises = series(numbers, "rmse"), series(numbers, "noise")
    elbo, upper = series(numbers, "elbo"), series(numbers, "upper")
    few, many = min(errors), max(errors)
    gap = {size: upper[size] - elbo[size] for size in elbo}
    first, last = arrived({size: elbo[many] - value for size, value in elbo.items()}), arrived(gap)
    num_rows = next(iter(numbers.values()))["rows"]
    return [
        Claim.of(
            "Approximation and fit are poor when M is too small",
            "no number",
            f"with M = {few} the error is {errors[few]:.2f} and the noise {noises[few]:.2f} (true: {NOISE}), "
            f"with M = {many} {errors[many]:.2f} and {noises[many]:.2f}",
            errors[few] > 2 * errors[many] and noises[few] > 1.5 * noises[many],
        ),
        Claim.of(
            "The ELBO converges with M ≪ N",
            "no number",
            f"within {CLOSE:g} nat of its end from M = {first} of N = {num_rows}",
            4 * first <= num_rows,
        ),
        Claim.of(
            "The upper bound converges later to confirm good quality",
            "no number",
            f"the bracket is at most {CLOSE:g} nat wide from M = {last}; at M = {many} it is {gap[many]:.2g}",
            last >= first and gap[many] <= CLOSE,
            "the bracket is still open at the largest M",
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """The fits of the first seed for some M, and the bounds of all."""
    figure.set_size_inches(12, 6)
    shown = [each for each in numbers.values() if "mean" in each]
    picked = [shown[round(place)] for place in np.linspace(0, len(shown) - 1, min(3, len(shown)))]
    axes = figure.subplots(2, 3)
    for axis, found in zip(axes[0], picked, strict=False):
        x, mean, deviation = (np.array(found[key]) for key in ("x", "mean", "deviation"))
        axis.fill_between(x, mean - 2 * deviation, mean + 2 * deviation, alpha=0.2)
        axis.plot(x, mean, color="tab:blue")
        axis.plot(*found["data"], "k.", markersize=2)
        axis.plot(found["points"], [-2.4] * len(found["points"]), "^", color="tab:red", markersize=5)
        axis.set(ylim=(-2.6, 2.6), title=f"M = {found['inducing']}: noise {found['noise']:.2f}", xlabel="x")
    panels = (("elbo", "upper"), ("noise", "lengthscale"), ("rmse",))
    for axis, keys in zip(axes[1], panels, strict=True):
        for key in keys:
            values = series(numbers, key)
            axis.plot(list(values), list(values.values()), "o-", label=key, markersize=4)
        axis.set_xlabel("inducing points M")
        axis.legend(fontsize=8)
    end = list(series(numbers, "elbo").values())[-1]
    axes[1, 0].set_ylim(end - 200, end + 100)


RESULT = Result(
    name="talk-joint",
    title="Inducing points and hyperparameters learned together as M grows",
    source="Talk, Demo",
    printed="An animation: poor fits when M is too small, the ELBO converges, the upper bound later.",
    cells=cells,
    claims=claims,
    draw=draw,
)
