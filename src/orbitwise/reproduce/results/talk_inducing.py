"""What inducing points do: Z and q(f(Z)) are free, and the ELBO says how far q(f) is from the posterior."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from gpytorch.kernels import MaternKernel
from matplotlib.figure import Figure
from torch import Tensor

from orbitwise.inference import exact
from orbitwise.inference.linear_algebra import cholesky, log_determinant, solve_factored
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse.bounds import best_q, gather_totals
from orbitwise.inference.sparse.inducing import inducing_factor
from orbitwise.inference.sparse.posterior import SparsePosterior, Whitened
from orbitwise.inference.stored_rows import held_rows
from orbitwise.process.process import Process
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.talk_demo import grid, rounded, waves

NOISE, LENGTHSCALE = 0.25, 1.0
PANELS = {
    "prior": "q is the prior",
    "bunched": "points on one side",
    "wrong mean": "spread, but μ is half of the best",
    "too certain": "spread, but Σ is a tenth of the best",
    "few": "too few, best μ and Σ",
    "spread": "spread, best μ and Σ",
}


def process_of() -> Process:
    """A process whose covariance matrices are well conditioned, so that divergences can be computed."""
    kernel = MaternKernel(nu=2.5)
    kernel.lengthscale = torch.tensor(LENGTHSCALE)
    return Process(None, kernel).double().requires_grad_(False)


def places_of(panel: str, most: int) -> Tensor:
    """Z of a panel."""
    low, high, count = {"bunched": (0.2, 2.5, most), "few": (0.5, 5.5, most // 3)}.get(
        panel, (0.2, 5.8, most)
    )
    return torch.linspace(low, high, count, dtype=torch.float64)[:, None]


def changed(q: Whitened, panel: str) -> Whitened:
    """The q of a panel, from the best one for its Z."""
    if panel == "prior":
        return Whitened.prior(len(q.precision), 1, True)
    if panel == "too certain":
        return Whitened(10 * q.precision, 10 * q.shift)
    return Whitened(q.precision, 0.5 * q.shift if panel == "wrong mean" else q.shift)


def divergence(
    mean: Tensor, covariance: Tensor, other_mean: Tensor, other_covariance: Tensor, jitter: float = 1e-12
) -> float:
    """KL[N(m, S) ‖ N(m′, S′)], with a little added to both covariances."""
    size = jitter * torch.eye(len(mean), dtype=mean.dtype)
    lower, other = (cholesky(each + size).lower for each in (covariance, other_covariance))
    residual = (other_mean - mean)[:, None]
    trace = torch.linalg.solve_triangular(other, lower, upper=False).square().sum()
    square = (residual * solve_factored(other, residual)).sum()
    spread = log_determinant(other) - log_determinant(lower)
    return 0.5 * (trace + square - len(mean) + spread).item()


def elbo(process: Process, posterior: SparsePosterior, rows: Observations, noise: Tensor) -> float:
    """Eq. 7 for Gaussian noise and any q(f(Z))."""
    moments = posterior.row_moments(rows.atoms())
    square = (rows.targets - moments.mean).square().sum() + moments.variance.sum()
    count = len(rows.x)
    expected = -0.5 * count * torch.log(2 * torch.pi * noise) - 0.5 * square / noise
    return (expected - posterior.q.divergence()).item()


@torch.no_grad()
def run(panel: str, num_rows: int, most: int, seed: int, device: str) -> Numbers:
    """q(f) of one panel, its ELBO by eq. 7, and the distance from the exact posterior at data and points."""
    rows, process, places = waves(num_rows, NOISE, seed), process_of(), grid(141)
    points, noise = places_of(panel, most), torch.tensor(NOISE**2, dtype=torch.float64)
    lower = inducing_factor(process, points)
    q = changed(best_q(gather_totals(process, rows, points, lower, noise), noise), panel)
    posterior = SparsePosterior(process, points, q, lower)
    truth = exact.condition(process, rows.atoms(), rows.targets, noise.expand(num_rows))
    asked = rows.functional.atoms(places)
    moments, wanted = posterior.row_moments(asked), truth.row_moments(asked)
    # KL[q(f) ‖ p(f | y)] needs only the values that the ELBO sees: those at the data, with u
    seen = rows.functional.atoms(torch.cat([held_rows(rows.x), points]))
    apart = divergence(
        posterior.row_mean(seen)[:, 0],
        posterior.covariance(seen).reshape(len(rows.x) + len(points), -1),
        truth.row_mean(seen)[:, 0],
        truth.covariance(seen),
    )
    return {
        "elbo": elbo(process, posterior, rows, noise),
        "log_evidence": truth.evidence().value.item(),
        "divergence": apart,
        "points": rounded(points),
        "x": rounded(places),
        "mean": rounded(moments.mean),
        "deviation": rounded(moments.variance.sqrt()),
        "exact_mean": rounded(wanted.mean),
        "exact_deviation": rounded(wanted.variance.sqrt()),
        "data": [rounded(held_rows(rows.x)), rounded(rows.targets)],
    }


def cells(setting: Setting) -> Mapping[str, Cell]:
    """One cell for every panel."""
    num_rows, most = setting.pick((12, 15), (30, 18), (30, 18))
    return {
        f"{panel}, seed {seed}": Cell(
            run, {"panel": panel, "num_rows": num_rows, "most": most, "seed": seed}, 0.3
        )
        for seed in setting.seeds
        for panel in PANELS
    }


def claims(numbers: Cells) -> list[Claim]:
    """Steps 2 and 3 of variational inference, and what the slides show."""
    apart = [
        abs(each["log_evidence"] - each["elbo"] - each["divergence"]) / max(1.0, each["divergence"])
        for each in numbers.values()
    ]
    first = {name.partition(",")[0]: each for name, each in numbers.items() if name.endswith("seed 0")}
    best = first["spread"]
    others = {name: each["elbo"] for name, each in first.items() if name != "spread"}
    difference = max(
        abs(a - b)
        for key in ("mean", "deviation")
        for a, b in zip(best[key], best[f"exact_{key}"], strict=True)
    )
    return [
        Claim.of(
            "ELBO = log p(y) − KL[q(f) ‖ p(f | y)]",
            "step 2",
            f"KL computed by itself agrees to {max(apart):.1e} of it in all {len(apart)} cases",
            max(apart) < 1e-3,
        ),
        Claim.of(
            "We can control Z and μ, Σ of q(f(Z)): maximising the ELBO finds good ones",
            "no number",
            f"ELBO {best['elbo']:.1f} with spread points and the best q; "
            + ", ".join(f"{PANELS[name]} {value:.1f}" for name, value in others.items()),
            all(value < best["elbo"] for value in others.values()),
        ),
        Claim.of(
            "With enough inducing points q(f) is the exact posterior",
            "no number",
            f"largest difference of means and deviations {difference:.1e}, KL {best['divergence']:.1e} nats",
            difference < 0.05,
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """q(f) in every panel over the exact posterior."""
    figure.set_size_inches(12, 6)
    shown = [each for name, each in numbers.items() if name.endswith("seed 0")]
    axes = figure.subplots(2, 3, sharex=True, sharey=True).flat
    for axis, title, found in zip(axes, PANELS.values(), shown, strict=True):
        for prefix, colour in (("exact_", "grey"), ("", "tab:blue")):
            mean, deviation = (torch.tensor(found[prefix + key]) for key in ("mean", "deviation"))
            axis.fill_between(
                found["x"], mean - 2 * deviation, mean + 2 * deviation, color=colour, alpha=0.2, linewidth=0
            )
            axis.plot(found["x"], mean, color=colour)
        axis.plot(*found["data"], "k.", markersize=4)
        axis.plot(found["points"], [-2.8] * len(found["points"]), "^", color="tab:red")
        axis.set(ylim=(-3, 3), title=f"{title}\nKL {found['divergence']:.3g} nats")


RESULT = Result(
    name="talk-inducing",
    title="The approximate posterior for several inducing points and q(f(Z))",
    source="Talk, Understanding inducing points; Variational inference for Gaussian processes",
    printed="Pictures of q(f) while Z, μ and Σ change; no numbers.",
    cells=cells,
    claims=claims,
    draw=draw,
)
