"""Burt's scaling: the inducing points that close a certificate grow like a power of log N."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.figure import Figure

from orbitwise.functionals.functional import Evaluation
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse.bounds import collapsed_bound, gather_totals, upper_bound
from orbitwise.inference.sparse.inducing import greedy_choice, inducing_factor
from orbitwise.inference.stored_rows import held_rows
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.talk_demo import process_of

NOISE = 0.5
GAP = 1.0
"""Nats between the bounds when the certificate has closed."""
LENGTHSCALES = {1: 0.5, 2: 1.0}
MOST = {1: 80, 2: 900}


def data(num_rows: int, columns: int, seed: int, device: str) -> Observations:
    """Gaussian inputs, as in the theorem, and a function of them with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, columns, generator=generator, dtype=torch.float64)
    errors = torch.randn(num_rows, 1, generator=generator, dtype=torch.float64)
    y = torch.sin(3 * x).sum(1, keepdim=True) + NOISE * errors
    return Observations(Evaluation(), x.to(device), y.to(device))


@torch.no_grad()
def run(num_rows: int, columns: int, seed: int, device: str) -> Numbers:
    """The least M for which lower and upper bounds are within a nat, by greedy choice and bisection."""
    place = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    rows, process = data(num_rows, columns, seed, place), process_of(LENGTHSCALES[columns]).to(place)
    noise = torch.tensor(NOISE**2, dtype=torch.float64, device=place)
    order = rows.x[
        greedy_choice(process, held_rows(rows.x), min(MOST[columns], num_rows), separation=1e-14).index
    ]

    def bracket(size: int) -> tuple[float, float]:
        points = order[:size]
        totals = gather_totals(process, rows, points, inducing_factor(process, points), noise)
        return collapsed_bound(totals, noise).item(), upper_bound(totals, noise).item()

    low, high = 1, len(order)
    while low < high:
        middle = (low + high) // 2
        lower, upper = bracket(middle)
        low, high = (low, middle) if upper - lower <= GAP else (middle + 1, high)
    lower, upper = bracket(low)
    return {"columns": columns, "rows": num_rows, "inducing": low, "lower": lower, "upper": upper}


def cells(setting: Setting) -> Mapping[str, Cell]:
    """Rows that double, with one column and with two."""
    doublings = setting.pick({1: 4, 2: 3}, {1: 8, 2: 6}, {1: 10, 2: 11})
    seconds = setting.pick(0.3, 4.0, 20.0)
    return {
        f"{columns} columns, {250 * 2**i} rows, seed {seed}": Cell(
            run, {"num_rows": 250 * 2**i, "columns": columns, "seed": seed}, seconds
        )
        for seed in setting.seeds
        for columns, most in doublings.items()
        for i in range(most + 1)
    }


def curve(numbers: Cells, columns: int) -> tuple[list[int], list[float]]:
    """The numbers of rows, and the mean M over seeds for each."""
    rows = sorted({each["rows"] for each in numbers.values() if each["columns"] == columns})
    means = [
        float(
            np.mean(
                [e["inducing"] for e in numbers.values() if (e["columns"], e["rows"]) == (columns, count)]
            )
        )
        for count in rows
    ]
    return rows, means


def power_of_log(rows: list[int], sizes: list[float]) -> float:
    """The p of M ∝ (log N)^p, by least squares."""
    return float(np.polyfit(np.log(np.log(rows)), np.log(sizes), 1)[0])


def power_of_cost(rows: list[int], sizes: list[float]) -> float:
    """The q of N·M² ∝ N^q over the larger half of the numbers of rows."""
    half = len(rows) // 2
    cost = np.log(rows) + 2 * np.log(sizes)
    return float(np.polyfit(np.log(rows[half:]), cost[half:], 1)[0])


def claims(numbers: Cells) -> list[Claim]:
    """What Burt et al. (2020) proved, as the talk says it."""
    gaps = [each["upper"] - each["lower"] for each in numbers.values()]
    found = [
        Claim.of(
            "Arbitrarily accurate: the certificate closes at every N",
            "a theorem for N → ∞",
            f"widest bracket {max(gaps):.2f} nats over {len(gaps)} runs up to N = "
            f"{max(each['rows'] for each in numbers.values()):,}",
            min(gaps) >= 0 and max(gaps) <= GAP,
            "there are not enough candidates for the largest N",
        )
    ]
    for columns in LENGTHSCALES:
        rows, sizes = curve(numbers, columns)
        power, cost = power_of_log(rows, sizes), power_of_cost(rows, sizes)
        share = (sizes[0] / rows[0], sizes[-1] / rows[-1])
        found.append(
            Claim.of(
                f"D = {columns}: M ≪ N, with a share of the rows that falls",
                "M of the order of (log N)^D",
                f"M = {sizes[0]:.0f} of {rows[0]:,} rows, {sizes[-1]:.0f} of {rows[-1]:,}; "
                f"(log N)^{power:.1f} at these N",
                share[1] < 0.8 * share[0],
            )
        )
        found.append(
            Claim.of(
                f"D = {columns}: the cost N·M² is barely above linear",
                f"O(N (log N)^{2 * columns} (log log N)²)",
                f"as N^{cost:.2f} over the larger half of these N; the printed order itself grows as "
                f"N^{printed_power(rows, columns):.2f} there",
                cost < 1.1 * printed_power(rows, columns),
            )
        )
    return found


def printed_power(rows: list[int], columns: int) -> float:
    """The slope of log[N (log N)^{2D} (log log N)²] against log N over the larger half of these N."""
    half = np.array(rows[len(rows) // 2 :], dtype=float)
    logs = np.log(half)
    order = logs + 2 * columns * np.log(logs) + 2 * np.log(np.log(logs))
    return float(np.polyfit(logs, order, 1)[0])


def draw(numbers: Cells, figure: Figure) -> None:
    """M against N with a power of log N through it, and the brackets."""
    figure.set_size_inches(9.5, 4)
    left, right = figure.subplots(1, 2)
    for columns, colour in ((1, "tab:green"), (2, "tab:purple")):
        rows, sizes = curve(numbers, columns)
        left.plot(rows, sizes, "o", color=colour, label=f"D = {columns}")
        power, start = np.polyfit(np.log(np.log(rows)), np.log(sizes), 1)
        fine = np.geomspace(rows[0], rows[-1], 50)
        left.plot(fine, np.exp(start) * np.log(fine) ** power, ":", color=colour, linewidth=1)
        left.annotate(f"(log N)$^{{{power:.1f}}}$", (rows[-1], sizes[-1]), (-60, -14),
                      textcoords="offset points", color=colour)  # fmt: skip
        right.plot(
            rows, [n * m**2 / (rows[0] * sizes[0] ** 2) for n, m in zip(rows, sizes, strict=True)],
            "o-", color=colour, label=f"D = {columns}",
        )  # fmt: skip
    rows, _ = curve(numbers, 1)
    right.plot(rows, np.array(rows) / rows[0], "--", color="grey", label="linear")
    right.plot(rows, (np.array(rows) / rows[0]) ** 3, ":", color="grey", label="cubic: exact inference")
    left.set(xscale="log", yscale="log", xlabel="rows N", ylabel=f"M that closes the bracket to {GAP:g} nat")
    right.set(xscale="log", yscale="log", xlabel="rows N", ylabel="cost N·M², relative")
    right.set_ylim(0.7, math.exp(1.1 * math.log(rows[-1] / rows[0]) + 4))
    for axis in (left, right):
        axis.legend(fontsize=8)


RESULT = Result(
    name="talk-scaling",
    title="How many inducing points close the certificate as the number of rows grows",
    source="Talk, Theory gives solutions (Burt et al. 2020)",
    printed="M of the order of (log N)^D, cost O(N (log N)^{2D} (log log N)²): barely above linear.",
    cells=cells,
    claims=claims,
    draw=draw,
)
