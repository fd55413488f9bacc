"""The kernel of a permutation-invariant function, compared with the PyPI package `invariantkernels`.

All 120 permutations of 5 coordinates, an RBF kernel, 300 points: the covariance matrix and its diagonal. The
package's `InvariantKernel` sums over both orbits by default (14,400 matrices at once, about 6 GB of memory),
and over one of them with `is_isotropic=True`. Orbitwise proves that one is enough. Needs the `bench` extra.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from gpytorch.kernels import Kernel, RBFKernel
from rich.console import Console
from rich.table import Table
from torch import Tensor

from orbitwise.experiments.records import command_line, versions_and_machine, write_record
from orbitwise.functionals import OrbitAverage
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import FunctionalKernel, Process
from orbitwise.transforms import coordinate_permutations

ROOT = Path(__file__).resolve().parents[1]
NUM_COORDINATES = 5
DEFAULT, ISOTROPIC = "invariantkernels, default", "invariantkernels, is_isotropic=True"
PROCESS, KERNEL = "orbitwise, Process", "orbitwise, FunctionalKernel"
BARS = {"matrix": 10.0, "diagonal": 100.0}  # times faster than the default
Way = dict[str, Callable[[Tensor], Tensor]]


def base_kernel(dtype: torch.dtype) -> Kernel:
    """The RBF kernel that all of them average."""
    kernel = RBFKernel().to(dtype)
    kernel.lengthscale = 1.5
    return kernel.requires_grad_(False)


def of_kernel(kernel: Kernel) -> Way:
    """Matrix and diagonal of a GPyTorch kernel."""
    return {"matrix": lambda x: kernel(x).to_dense(), "diagonal": lambda x: kernel(x, diag=True)}


def of_process(process: Process, functional: OrbitAverage) -> Way:
    """Matrix and diagonal of a process, the lowering to atoms included."""
    return {
        "matrix": lambda x: process.covariance(functional.atoms(x)),
        "diagonal": lambda x: process.variance(functional.atoms(x)),
    }


def ways(dtype: torch.dtype) -> dict[str, Way]:
    """All implementations, of the same kernel."""
    try:
        from invariantkernels import InvariantKernel, permutation_group
    except ImportError:
        raise SystemExit("This benchmark needs invariantkernels: pip install 'orbitwise[bench]'.") from None
    functional = OrbitAverage(FiniteOrbit(coordinate_permutations(NUM_COORDINATES)))
    return {
        DEFAULT: of_kernel(InvariantKernel(base_kernel(dtype), permutation_group)),
        ISOTROPIC: of_kernel(InvariantKernel(base_kernel(dtype), permutation_group, is_isotropic=True)),
        PROCESS: of_process(Process(None, base_kernel(dtype)), functional),
        KERNEL: of_kernel(FunctionalKernel(base_kernel(dtype), functional)),
    }


def check_agreement(num_points: int, generator: torch.Generator) -> float:
    """The largest difference of any value from the default's in double precision, at most 1e-10."""
    x = torch.randn(num_points, NUM_COORDINATES, generator=generator, dtype=torch.float64)
    candidates = ways(torch.float64)
    worst = 0.0
    for quantity in BARS:
        expected = candidates[DEFAULT][quantity](x)
        for name, way in candidates.items():
            difference = float((way[quantity](x) - expected).abs().max())
            worst = max(worst, difference)
            if not difference < 1e-10:
                raise ValueError(f"The {quantity} of {name} differs from the default's by {difference:.1e}.")
    return worst


def best_seconds(x: Tensor, quantity: str, repeats: int) -> dict[str, float]:
    """The shortest of several runs, taken in turns (two of the slow default), whose values must agree."""
    candidates = ways(x.dtype)
    seconds = dict.fromkeys(candidates, float("inf"))
    values: dict[str, Tensor] = {}
    for repeat in range(repeats):
        for name, way in candidates.items():
            if name == DEFAULT and repeat >= 2:
                continue
            start = time.perf_counter()
            values[name] = way[quantity](x)
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    for name in candidates:
        torch.testing.assert_close(values[name], values[DEFAULT], rtol=1e-4, atol=1e-5)
    return seconds


@torch.no_grad()
def main() -> None:
    """Time all of them, print the table and the ratios, write the figures; fail below a bar."""
    parser = command_line(__doc__, ROOT / "results" / "group_kernel.json")
    parser.add_argument("--num-points", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    agreement = check_agreement(min(30, options.num_points), generator)
    x = torch.randn(options.num_points, NUM_COORDINATES, generator=generator)
    seconds = {quantity: best_seconds(x, quantity, options.repeats) for quantity in BARS}

    table = Table(
        title=f"Permutations of {NUM_COORDINATES} coordinates, {options.num_points} points, float32"
    )
    table.caption = "milliseconds, best of several runs; in brackets: times faster than the default"
    table.add_column("")
    for quantity in BARS:
        table.add_column(quantity, justify="right")
    for name in seconds["matrix"]:
        cells = [
            f"{1e3 * times[name]:,.1f} ({times[DEFAULT] / times[name]:,.0f}×)" for times in seconds.values()
        ]
        table.add_row(name, *cells)
    console = Console()
    console.print(table)
    console.print(f"largest difference in float64: {agreement:.1e}")

    ratios = {
        quantity: {
            name: {
                "default_over_ours": times[DEFAULT] / times[name],
                "isotropic_over_ours": times[ISOTROPIC] / times[name],
            }
            for name in (PROCESS, KERNEL)
        }
        for quantity, times in seconds.items()
    }
    report = {
        "command": " ".join(["python benchmarks/group_kernel.py", *sys.argv[1:]]),
        **versions_and_machine("invariantkernels"),
        "num_points": options.num_points,
        "num_elements": 120,
        "largest_difference_float64": agreement,
        "seconds": seconds,
        "ratios": ratios,
    }
    write_record(report, options.out)
    console.print(f"wrote {os.path.relpath(options.out)}")
    missed = [
        f"{quantity} of {name}"
        for quantity, of_quantity in ratios.items()
        for name, each in of_quantity.items()
        if each["default_over_ours"] < BARS[quantity] or each["isotropic_over_ours"] < 1
    ]
    if missed:
        raise SystemExit("Too slow: " + ", ".join(missed))


if __name__ == "__main__":
    main()
