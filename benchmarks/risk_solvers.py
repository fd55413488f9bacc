"""Solvers of one regularised risk side by side, and what the scaling of its rows does to them.

Two of the 8×8 digits, 40 labels with the logistic loss, tangents of images as rows with the squared or the
ε-insensitive loss. The last problem is the first with tangents in units that differ a thousandfold, for which
their weights make up: the least risk and its function stay the same, the coordinates alone change. Solvers in
function space do not notice; plain L-BFGS needs its rows scaled.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from torch import Tensor

from orbitwise.experiments.records import command_line, versions_and_machine, write_record
from orbitwise.functionals import Evaluation, ImageTangent
from orbitwise.inference.risk import (
    DenseGram,
    Problem,
    Solution,
    Term,
    coordinate_descent,
    lbfgs,
    newton,
    newton_cg,
    stochastic,
)
from orbitwise.inference.risk.iterative import MEMORY
from orbitwise.inference.risk.problem import Iterate
from orbitwise.losses import EpsilonInsensitive, Logistic, Loss, Squared
from orbitwise.process import Process

ROOT = Path(__file__).resolve().parents[1]
DIGITS, NUM_LABELS, BANDWIDTH, SMOOTHING = (4, 9), 40, 3.0, 1.0
RATE, STRENGTH, TOLERANCE, SPREAD = 10.0, 0.1, 1e-6, 1000.0
CLOSE = 1 + 1e-5
UNLIKE = "squared, unlike units"
FIRST_ORDER = ("L-BFGS, function space", "L-BFGS, scaled rows", "L-BFGS, rows as they are")
LOSSES: dict[str, Loss] = {"squared": Squared(), "ε-insensitive": EpsilonInsensitive(0.1)}
Solver = Callable[[Problem], Solution]


def solvers(seed: int) -> dict[str, Solver]:
    """All solvers, each with its own limit."""
    return {
        "Newton": lambda problem: newton(problem, tolerance=TOLERANCE),
        "Newton-CG": lambda problem: newton_cg(problem, tolerance=TOLERANCE, max_iterations=2000),
        "L-BFGS, function space": lambda problem: lbfgs(problem, tolerance=TOLERANCE),
        "L-BFGS, scaled rows": lambda problem: plain(problem, True),
        "L-BFGS, rows as they are": lambda problem: plain(problem, False),
        "steepest coordinates": lambda problem: coordinate_descent(problem, "steepest", tolerance=TOLERANCE),
        "random coordinates": lambda problem: coordinate_descent(
            problem, "random", tolerance=TOLERANCE, generator=torch.Generator().manual_seed(seed)
        ),
        "stochastic": lambda problem: stochastic(
            problem, tolerance=TOLERANCE, max_epochs=60, generator=torch.Generator().manual_seed(seed)
        ),
    }


@torch.no_grad()
def plain(problem: Problem, scaled: bool, max_iterations: int = 2000) -> Solution:
    """scipy's L-BFGS on α itself, with rows scaled to norm 1 or as they are: two products per iteration."""
    f, history = problem.iterate(), []
    norms = problem.gram.diagonal().clamp_min(1e-300)
    scale = norms.rsqrt() if scaled else torch.ones_like(norms)

    def at(flat: np.ndarray) -> Iterate:
        coefficients = scale * torch.from_numpy(flat)
        return problem.with_best_beta(Iterate(coefficients, problem.gram.product(coefficients), f.beta))

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal f
        f = at(flat)
        gradient = problem.gram.product(f.coefficients + problem.slope(problem.values(f)))
        history.append(float(problem.risk(f)))
        return history[-1], (scale * gradient).numpy()

    options = {"maxiter": max_iterations, "maxfun": 2 * max_iterations, "maxcor": MEMORY, "gtol": 0.0}
    options["ftol"] = 0.01 * TOLERANCE
    result = minimize(objective, f.coefficients.numpy(), jac=True, method="L-BFGS-B", options=options)
    return problem.certified(at(result.x), result.nit, 2 * len(history) + 1, TOLERANCE, history)


def problem_of(num_images: int, loss: Loss, spread: float = 1.0) -> Problem:
    """Labels and tangents of two digits, `spread` is the ratio of the rows' units.

    A row in a unit u times as small is u times as long: L′ = uL. With the squared loss, a weight u² times as
    small makes up for it exactly.
    """
    if spread != 1 and not isinstance(loss, Squared):
        raise ValueError("Weights make up for units with the squared loss alone.")
    images, classes = load_digits(return_X_y=True)
    chosen = np.flatnonzero(np.isin(classes, DIGITS))[:num_images]
    x = torch.from_numpy(images[chosen] / 16.0)
    y = torch.from_numpy(np.where(classes[chosen] == DIGITS[0], 1.0, -1.0))[:NUM_LABELS]
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(BANDWIDTH, dtype=torch.float64)
    process = Process(None, kernel).requires_grad_(False)
    blocks = [Evaluation().atoms(x[:NUM_LABELS]), ImageTangent((8, 8), smoothing=SMOOTHING).atoms(x)]
    gram = torch.cat([torch.cat([process.covariance(one, two) for two in blocks], 1) for one in blocks])
    count = blocks[1].num_rows
    logs = torch.linspace(-0.5, 0.5, count, dtype=x.dtype) * math.log(spread)
    unit = logs[torch.randperm(count, generator=torch.Generator().manual_seed(0))].exp()
    scale = torch.cat([torch.ones_like(y), unit])
    terms = [
        Term(Logistic(), y, torch.full_like(y, RATE)),
        Term(loss, torch.zeros(count, dtype=x.dtype), STRENGTH / unit.square()),
    ]
    basis = torch.cat([torch.ones_like(y), torch.zeros_like(unit)])[:, None]
    return Problem(DenseGram(scale[:, None] * gram * scale), terms, basis)


def timed(solver: Solver, problem: Problem, repeats: int) -> tuple[Solution, float]:
    """What a solver finds, and the shortest of its times."""
    runs = []
    for _ in range(repeats):
        start = time.perf_counter()
        found = solver(problem)
        runs.append((found, time.perf_counter() - start))
    return runs[0][0], min(seconds for _, seconds in runs)


def measure(problem: Problem, repeats: int, seed: int) -> list[dict[str, Any]]:
    """Every solver's result; `reached` is how many risks it looked at before one was close to the least."""
    results = {name: timed(solver, problem, repeats) for name, solver in solvers(seed).items()}
    least = min(found.objective.item() for found, _ in results.values())
    return [
        {
            "solver": name,
            "objective": found.objective.item(),
            "excess": found.objective.item() / least - 1,
            "gap": found.gap.item(),
            "iterations": found.iterations,
            "products": found.products,
            "reached": next((i for i, risk in enumerate(found.history) if risk <= least * CLOSE), None),
            "coefficients": int((found.coefficients != 0).sum()),
            "converged": found.converged,
            "seconds": seconds,
        }
        for name, (found, seconds) in results.items()
    ]


def show(console: Console, title: str, records: list[dict[str, Any]]) -> None:
    """One table."""
    table = Table(title=title, title_justify="left")
    table.add_column("solver", no_wrap=True)
    for heading in ("objective", "above", "gap", "steps", "products", "rows", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for record in records:
        table.add_row(
            record["solver"] + ("" if record["converged"] else " *"),
            f"{record['objective']:.6f}",
            f"{record['excess']:.1e}",
            f"{record['gap']:.1e}",
            f"{record['iterations']:,}",
            f"{record['products']:,}",
            f"{record['coefficients']:,}",
            f"{record['seconds']:.2f}",
        )
    console.print(table)


def show_scaling(console: Console, tables: dict[str, Any]) -> None:
    """What unlike units cost the solvers that see gradients alone."""
    table = Table(title=f"Risks looked at until {CLOSE - 1:.0e} above the least", title_justify="left")
    table.add_column("solver", no_wrap=True)
    alike, unlike = (tables[name] for name in ("squared", UNLIKE))
    for each in (alike, unlike):
        table.add_column(f"lengths 1 to {each['length_ratio']:,.0f}", justify="right")
    for name in FIRST_ORDER:
        found = [next(row for row in each["records"] if row["solver"] == name) for each in (alike, unlike)]
        table.add_row(
            name, *("not reached" if row["reached"] is None else f"{row['reached']:,}" for row in found)
        )
    console.print(table)


def length_ratio(gram: Tensor) -> float:
    """The longest row over the shortest."""
    return (gram.diagonal().max() / gram.diagonal().min()).sqrt().item()


def main() -> None:
    """Run all solvers on every problem, print the tables, write the figures; fail where a solver is wrong."""
    parser = command_line(
        "Solvers of one regularised risk, in one run.", ROOT / "results" / "risk_solvers.json"
    )
    parser.add_argument("--num-images", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    problems = {name: problem_of(options.num_images, loss) for name, loss in LOSSES.items()}
    problems[UNLIKE] = problem_of(options.num_images, LOSSES["squared"], SPREAD)
    console, tables = Console(width=110), {}
    for name, problem in problems.items():
        ratio = length_ratio(problem.gram.matrix)  # pyright: ignore
        records = measure(problem, options.repeats, options.seed)
        tables[name] = {"rows": problem.gram.num_rows, "length_ratio": ratio, "records": records}
        show(console, f"{name}: {problem.gram.num_rows} rows, longest over shortest {ratio:.3g}", records)
    console.print(f"*: not within {TOLERANCE:g} of the least risk, by its certificate, when it ended")
    show_scaling(console, tables)
    report = {
        "command": " ".join(["python benchmarks/risk_solvers.py", *sys.argv[1:]]),
        **versions_and_machine(),
        "num_images": options.num_images,
        "num_labels": NUM_LABELS,
        "tolerance": TOLERANCE,
        "problems": tables,
    }
    write_record(report, options.out)
    console.print(f"wrote {os.path.relpath(options.out)}")
    wrong = [
        f"{record['solver']} ({name})"
        for name, table in tables.items()
        for record in table["records"]
        if record["converged"] and record["excess"] > 2 * TOLERANCE
    ]
    if wrong:
        raise SystemExit("Further from the least risk than certified: " + ", ".join(wrong))


if __name__ == "__main__":
    main()
