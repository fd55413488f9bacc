"""Products with the covariance of all derivatives at l points in n dimensions, never formed (RKHS eq. 11).

Three measurements for the Gaussian kernel in double precision: the peak memory of a fresh process that
builds the operator for l = 1,000 and n = 241 and multiplies by it (the operating system's high-water mark of
resident memory, ru_maxrss, libraries included, and the same before); the time, compared
with that of the stored nl × nl matrix where it fits into memory; and how the time grows with l and with n.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from rich.console import Console
from rich.table import Table
from torch import Tensor

from orbitwise.experiments.records import command_line, versions_and_machine, write_record
from orbitwise.functionals import Gradient, Gradients
from orbitwise.process import Process
from orbitwise.process.gradients import GradientOperator

ROOT = Path(__file__).resolve().parents[1]
LARGE = (1000, 241)
DENSE = [(100, 40), (150, 60), (200, 60)]
LENGTHS, WIDTHS = [500, 1000, 2000, 4000], [60, 120, 240, 480]
MOST_BYTES, LEAST_RATIO, AGREEMENT = 2**30, 20.0, 1e-10


def problem(num_points: int, width: int, columns: int) -> tuple[RBFKernel, Gradients, Tensor]:
    """A kernel, all derivatives at random points, and right-hand sides."""
    generator = torch.Generator().manual_seed(0)
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = width**0.5
    block = Gradient().atoms(torch.randn(num_points, width, generator=generator, dtype=torch.float64))
    assert isinstance(block, Gradients)
    vectors = torch.randn(num_points * width, columns, generator=generator, dtype=torch.float64)
    return kernel, block, vectors


def best_seconds(function: Callable[[], object], repeats: int) -> float:
    """The shortest of several runs."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def resident_bytes() -> int:
    """The high-water mark of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_of_this_process() -> dict[str, float]:
    """Bytes before, and at most afterwards, of one product with one right-hand side."""
    small = problem(20, 5, 1)
    GradientOperator(*small[:2]).product(small[2])  # what libraries allocate once
    before = resident_bytes()
    kernel, block, vectors = problem(*LARGE, 1)
    start = time.perf_counter()
    operator = GradientOperator(kernel, block)
    built = time.perf_counter()
    operator.product(vectors)
    seconds = {"seconds_to_build": built - start, "seconds_of_a_product": time.perf_counter() - built}
    return {"bytes_before": before, "bytes_at_most": resident_bytes(), **seconds}


def memory() -> dict[str, float]:
    """The same in a fresh process, whose high-water mark nothing else has raised."""
    command = [sys.executable, __file__, "--memory"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(answer)


def beside_dense(num_points: int, width: int, columns: int, repeats: int) -> dict[str, float]:
    """Seconds of both ways, for one right-hand side and for several; their values must agree."""
    kernel, block, vectors = problem(num_points, width, columns)
    process = Process(None, kernel)
    start = time.perf_counter()
    matrix = process.covariance(block)
    formed = time.perf_counter() - start
    operator = GradientOperator(kernel, block)
    expected = matrix @ vectors
    difference = ((operator.product(vectors) - expected).norm() / expected.norm()).item()
    if not difference < AGREEMENT:
        raise ValueError(
            f"The product of {num_points} points differs by {difference:.1e} from the dense one."
        )
    found = {"points": num_points, "dimensions": width, "columns": columns, "difference": difference}
    found |= {"dense_form": formed, "build": best_seconds(lambda: GradientOperator(kernel, block), repeats)}
    for name, each in (("one", vectors[:, :1].contiguous()), ("all", vectors)):
        found[f"dense_{name}"] = best_seconds(lambda each=each: matrix @ each, repeats)
        found[f"product_{name}"] = best_seconds(lambda each=each: operator.product(each), repeats)
        found[f"ratio_{name}"] = found[f"dense_{name}"] / found[f"product_{name}"]
        ours = found["build"] + found[f"product_{name}"]
        found[f"ratio_with_forming_{name}"] = (formed + found[f"dense_{name}"]) / ours
    return found


def order(sizes: list[tuple[int, int]], which: int, repeats: int) -> dict[str, object]:
    """Seconds of a product for growing sizes, and the slope of their logarithms."""
    seconds = []
    for size in sizes:
        kernel, block, vectors = problem(*size, 1)
        operator = GradientOperator(kernel, block)
        seconds.append(best_seconds(lambda operator=operator, v=vectors: operator.product(v), repeats))
    slope = np.polyfit(np.log([size[which] for size in sizes]), np.log(seconds), 1)[0]
    return {"sizes": sizes, "seconds": seconds, "exponent": float(slope)}


@torch.no_grad()
def main() -> None:
    """Measure, print, write the figures; fail below a bar."""
    parser = command_line(__doc__, ROOT / "results" / "gradient_products.json")
    parser.add_argument("--columns", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="measure the memory of this process alone")
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(memory_of_this_process()))
        return
    peak = memory()
    dense = [beside_dense(*size, options.columns, options.repeats) for size in DENSE]
    orders = {
        "points": order([(count, 60) for count in LENGTHS], 0, options.repeats),
        "dimensions": order([(1000, width) for width in WIDTHS], 1, options.repeats),
    }
    table = Table(title="Gaussian kernel, all derivatives, float64")
    table.caption = "times faster than the stored matrix; in brackets with the time to form it"
    for heading in ("points", "dimensions", "one right-hand side", f"{options.columns} right-hand sides"):
        table.add_column(heading, justify="right")
    for row in dense:
        cells = [
            f"{row[f'ratio_{n}']:,.1f}× ({row[f'ratio_with_forming_{n}']:,.0f}×)" for n in ("one", "all")
        ]
        table.add_row(f"{row['points']}", f"{row['dimensions']}", *cells)
    console = Console()
    console.print(table)
    mebibytes = (peak["bytes_at_most"] - peak["bytes_before"]) / 2**20
    console.print(f"{LARGE[0]:,} points, {LARGE[1]} dimensions: {mebibytes:.0f} MiB more than before")
    console.print(", ".join(f"seconds ~ {name}^{each['exponent']:.2f}" for name, each in orders.items()))
    report = {
        "command": " ".join(["python benchmarks/gradient_products.py", *sys.argv[1:]]),
        **versions_and_machine(),
        "memory": {"points": LARGE[0], "dimensions": LARGE[1], **peak},
        "beside_dense": dense,
        "orders": orders,
    }
    write_record(report, options.out)
    console.print(f"wrote {os.path.relpath(options.out)}")
    missed = [name for name in ("one", "all") if dense[-1][f"ratio_{name}"] < LEAST_RATIO]
    if missed or peak["bytes_at_most"] > MOST_BYTES:
        raise SystemExit(f"Below the bar: ratios {missed}, memory {peak['bytes_at_most'] / 2**20:.0f} MiB.")


if __name__ == "__main__":
    main()
