"""The covariance of orbit averages, value and gradient, compared with bare products and a plain average.

A learning step needs G_ij = mean_st κ(|p_is - p_jt|²) for N images with S moved copies each, and its gradient
by all the copies. The bare products are the N·S by N·S product of the points once for the value and twice for
the gradient, with no use of symmetry: a floor for any program that multiplies all pairs. The plain double
average is the same formula in PyTorch with automatic differentiation, where its arrays fit into memory. Every
case runs in a separate process; its memory is the operating system's high-water mark minus the memory of the
libraries and the inputs.
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
from typing import Any

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from rich.console import Console
from rich.table import Table
from torch import Tensor

from orbitwise.experiments.records import command_line, versions_and_machine, write_record
from orbitwise.functionals.functional import exact_atoms
from orbitwise.process import Process

ROOT = Path(__file__).resolve().parents[1]
CASES = [
    {"rows": rows, "nodes": 32, "width": width, "precision": precision}
    for precision in ("float32", "float64")
    for rows in (300, 1000)
    for width in (64, 784)
]
MOST_RATIO, PLAIN_BYTES, BAND = 2.5, 2**30, 2048
AGREEMENT = {"float32": 1e-4, "float64": 1e-10}


def measure(rows: int, nodes: int, width: int, precision: str) -> dict[str, Any]:
    """Seconds of the three, the memory of ours, and whether value and gradient agree with the plain ones."""
    dtype = getattr(torch, precision)
    generator = torch.Generator().manual_seed(0)
    centres, moves = (torch.randn(rows, n, width, generator=generator, dtype=dtype) for n in (1, nodes))
    points = (centres + 0.2 * moves).requires_grad_()
    upstream = torch.randn(rows, rows, generator=generator, dtype=dtype)
    process = Process(None, ScaleKernel(RBFKernel()).to(dtype)).requires_grad_(False)
    process.kernel.base_kernel.lengthscale = width**0.5
    weights = torch.full((nodes,), 1 / nodes, dtype=dtype).expand(rows, nodes)

    def ours() -> tuple[Tensor, Tensor]:
        gram = process.covariance(exact_atoms(points, weights))
        return gram.detach(), torch.autograd.grad(gram, points, upstream)[0]

    def plain() -> tuple[Tensor, Tensor]:
        flat = points.reshape(-1, width) / process.kernel.base_kernel.lengthscale
        values = torch.exp(-0.5 * torch.cdist(flat, flat).square())
        gram = process.kernel.outputscale * values.view(rows, nodes, rows, nodes).mean((1, 3))
        return gram.detach(), torch.autograd.grad(gram, points, upstream)[0]

    before = resident_bytes()
    (value, slope), seconds = timed(ours)
    report: dict[str, Any] = {
        "seconds": seconds,
        "bytes": resident_bytes() - before,
        "bare_products": timed(lambda: bare_products(points.detach().reshape(-1, width)))[1],
    }
    report["ratio"] = seconds / report["bare_products"]
    if (rows * nodes) ** 2 * points.element_size() < PLAIN_BYTES:
        expected, report["plain"] = timed(plain)
        scale = [each.abs().max() for each in expected]
        pairs = zip((value, slope), expected, scale, strict=True)
        report["difference"] = max(float((one - two).abs().max() / size) for one, two, size in pairs)
    return report


def bare_products(points: Tensor) -> None:
    """P Pᵀ, then twice a product of its size with P, in bands of rows."""
    for start in range(0, len(points), BAND):
        band = points[start : start + BAND] @ points.T
        for _ in range(2):
            band @ points


def timed(function: Callable[[], Any], repeats: int = 2) -> tuple[Any, float]:
    """The result and the shortest time of a few runs."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)


def resident_bytes() -> int:
    """The high-water mark of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Measure, print, write the figures; fail where a case is above the bar or disagrees."""
    parser = command_line(__doc__, ROOT / "results" / "orbit_gram.json")
    parser.add_argument("--case", type=json.loads, help="one case, as JSON, in this process")
    parser.add_argument("--most-rows", type=int, default=1000)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(**options.case)))
        return
    console, cases = Console(), []
    table = Table(title="Covariance of orbit averages, value and gradient, 32 nodes")
    for heading in ("rows", "width", "precision", "seconds", "bare products", "ratio", "plain", "MiB"):
        table.add_column(heading, justify="right")
    for case in CASES:
        if case["rows"] > options.most_rows:
            continue
        command = [sys.executable, __file__, "--case", json.dumps(case)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        cases.append({**case, **found})
        table.add_row(
            *(str(case[name]) for name in ("rows", "width", "precision")),
            *(f"{found[name]:.2f}" for name in ("seconds", "bare_products", "ratio")),
            f"{found['plain']:.2f}" if "plain" in found else "too large",
            f"{found['bytes'] / 2**20:.0f}",
        )
    console.print(table)
    report = {
        "command": " ".join(["python benchmarks/orbit_gram.py", *sys.argv[1:]]),
        **versions_and_machine(),
        "cases": cases,
    }
    write_record(report, options.out)
    console.print(f"wrote {os.path.relpath(options.out)}")
    for case in cases:
        if case["ratio"] > MOST_RATIO or case.get("difference", 0.0) > AGREEMENT[case["precision"]]:
            raise SystemExit(f"Above the bar: {case}")


if __name__ == "__main__":
    main()
