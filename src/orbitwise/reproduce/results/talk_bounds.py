"""The talk's bounds on the evidence: both meet as inducing points are added, the lower one first."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from matplotlib.figure import Figure

from orbitwise.inference import exact
from orbitwise.inference.sparse.bounds import collapsed_bound, gather_totals, upper_bound
from orbitwise.inference.sparse.inducing import greedy_choice, inducing_factor
from orbitwise.inference.sparse.iterative import NoisySystem
from orbitwise.inference.stored_rows import held_rows
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.talk_demo import process_of, waves

NOISE, LENGTHSCALE = 0.25, 0.5
CLOSE = 1.0
"""Nats within which a bound has arrived."""
CURVES = {
    "upper": ("upper bound", "tab:red", "-"),
    "upper_solved": ("upper bound, quadratic form solved", "tab:red", ":"),
    "lower_solved": ("lower bound, quadratic form solved", "tab:blue", ":"),
    "tight": ("lower bound, tight (2025)", "tab:blue", "-"),
    "titsias": ("lower bound (eq. 8)", "tab:blue", "--"),
}


@torch.no_grad()
def run(num_rows: int, most: int, seed: int, device: str) -> Numbers:
    """All bounds at fixed hyperparameters, for the first points of one greedy choice."""
    rows, process = waves(num_rows, NOISE, seed), process_of(LENGTHSCALE)
    noise = torch.tensor(NOISE**2, dtype=torch.float64)
    truth = exact.evidence(process, rows.atoms(), rows.targets, noise.expand(num_rows)).value.item()
    order = rows.x[greedy_choice(process, held_rows(rows.x), most).index]
    sizes = list(range(2, len(order) + 1))
    found: dict[str, list[float]] = {name: [] for name in CURVES}
    for size in sizes:
        points = order[:size]
        lower = inducing_factor(process, points)
        totals = gather_totals(process, rows, points, lower, noise)
        system = NoisySystem(process, rows, noise)
        solved = system.bracket(
            points, lower, system.solve(system.preconditioner(points, lower), 1e-4, 100).vectors
        )
        found["titsias"].append(collapsed_bound(totals, noise, tight=False).item())
        found["tight"].append(collapsed_bound(totals, noise).item())
        found["upper"].append(upper_bound(totals, noise).item())
        found["lower_solved"].append(collapsed_bound(solved.totals, noise, quadratic=solved.upper).item())
        found["upper_solved"].append(upper_bound(solved.totals, noise, quadratic=solved.lower).item())
    return {"rows": num_rows, "log_evidence": truth, "sizes": sizes, **found}


def cells(setting: Setting) -> Mapping[str, Cell]:
    """One set of rows for each seed."""
    num_rows, most = setting.pick((100, 24), (300, 32), (1000, 40))
    return {
        f"bounds, seed {seed}": Cell(run, {"num_rows": num_rows, "most": most, "seed": seed}, 3.0)
        for seed in setting.seeds
    }


def arrived(found: Numbers, name: str) -> float:
    """The least M from which a bound stays within a nat of the evidence."""
    late = [
        size
        for size, value in zip(found["sizes"], found[name], strict=True)
        if abs(value - found["log_evidence"]) > CLOSE
    ]
    return max(late, default=found["sizes"][0] - 1) + 1


def claims(numbers: Cells) -> list[Claim]:
    """Eq. 7 and 8, and the two bullets of the demo."""
    found = list(numbers.values())
    slack = [value - each["log_evidence"] for each in found for value in each["titsias"] + each["tight"]]
    above = [value - each["log_evidence"] for each in found for value in each["upper"]]
    gains = [b - a for each in found for a, b in zip(each["titsias"], each["titsias"][1:], strict=False)]
    lower = max(arrived(each, "titsias") for each in found)
    upper = max(arrived(each, "upper") for each in found)
    rows = found[0]["rows"]
    return [
        Claim.of(
            "The ELBO is a lower bound, so maximising it does not overfit",
            "eq. 7 and 8",
            f"at most {max(slack):.1e} nats above the evidence, over {len(slack)} bounds",
            max(slack) < 1e-4,
        ),
        Claim.of(
            "Maximising the ELBO over Z only reduces the distance: more points never lower it",
            "no number",
            f"least gain by one more point: {min(gains):.1e} nats",
            min(gains) > -1e-5,
        ),
        Claim.of(
            "There is an upper bound, too",
            "footnote 5",
            f"at least {min(above):.1e} nats above the evidence",
            min(above) > -1e-4,
        ),
        Claim.of(
            "The ELBO converges with M ≪ N",
            "no number",
            f"within {CLOSE:g} nat from M = {lower} of N = {rows}",
            4 * lower <= rows,
            "so few rows need an inducing point for every few of them",
        ),
        Claim.of(
            "The upper bound converges later to confirm good quality",
            "no number",
            f"within {CLOSE:g} nat from M = {upper}; the ELBO from M = {lower}",
            lower <= upper <= found[0]["sizes"][-1],
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """All bounds of the first seed against M."""
    figure.set_size_inches(6.5, 4.2)
    axis, (found, *_) = figure.subplots(), numbers.values()
    truth = found["log_evidence"]
    axis.axhline(truth, color="black", linewidth=1, label="log evidence")
    for name, (label, colour, style) in CURVES.items():
        axis.plot(found["sizes"], found[name], color=colour, linestyle=style, label=label)
    axis.set_ylim(truth - 0.6 * found["rows"], truth + 0.8 * found["rows"])
    axis.set(xlabel="inducing points M", ylabel="nats", title=f"{found['rows']:,} rows")
    axis.legend(fontsize=8)


RESULT = Result(
    name="talk-bounds",
    title="Lower and upper bounds on the log evidence meet as inducing points are added",
    source="Talk, Sparse GP regression and Demo",
    printed="An animation; the ELBO converges with M ≪ N, the upper bound later. No numbers.",
    cells=cells,
    claims=claims,
    draw=draw,
)
