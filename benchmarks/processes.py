"""One process beside several of one thread each: seconds, bytes that are sent, and how far results agree.

    python benchmarks/processes.py --exponents
    python benchmarks/processes.py --processes 1 2 4 8 --device cuda --inducing 3000 --batch-size 512

Two parts: values of the sparse bound with their gradients, and stochastic steps on random images under a
learned affine orbit. Several processes are started by torchrun; sizes and seeds are the same.
`processor_seconds` and `wall_seconds` are those of the first process for one value or step; the first ones
are not counted. Wall seconds of several processes mean something only where each has a core of its own.
`bytes_sent` are those that one process adds to sums or gathers in one value or step. With --exponents, the
seconds of a row and those of a step with next to no rows are measured in one process, and how they grow with
inducing points, draws and the side of images, where each is doubled.

Writes results/processes.json, which benchmarks/scaling_plan.py reads.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from rich.console import Console
from rich.table import Table

from orbitwise.experiments.records import command_line, versions_and_machine, write_record
from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.functionals.averages import evenly_drawn
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.processes import ALONE, Processes, is_launched, launched
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.inference.stochastic.trainer import Rates, StochasticTrainer
from orbitwise.likelihoods import Gaussian
from orbitwise.orbits import ImageOrbit
from orbitwise.process import Process

NAMES = ("batch_size", "inducing", "draws", "side")
UNCOUNTED, COUNTED = 2, 4


class Meter:
    """Counts the bytes that this process sends, and the seconds between two calls."""

    def __init__(self, device):
        self.device, self.bytes = device, 0
        for name in ("_total", "gather_parts"):
            setattr(Processes, name, self.counted(getattr(Processes, name)))

    def counted(self, method):
        def count(processes, part, *more):
            self.bytes += 0 if processes.is_alone else part.numel() * part.element_size()
            return method(processes, part, *more)

        return count

    def start(self):
        self.bytes, self.begun = 0, self.now()

    def now(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.process_time(), time.perf_counter()

    def per(self, count):
        names = ("processor_seconds", "wall_seconds")
        spent = {n: (b - a) / count for n, a, b in zip(names, self.begun, self.now(), strict=True)}
        return spent | {"bytes_sent": self.bytes // count}


def sparse_bound(processes, meter, rows, inducing, repeats):
    """Values and gradients of the collapsed bound of many rows of 8 columns."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 8, generator=generator, dtype=torch.float64).to(meter.device)
    y = torch.sin(2 * x[:, :1]) + x[:, 1:2] * torch.cos(x[:, 2:3])
    process = Process(None, ScaleKernel(RBFKernel(ard_num_dims=8))).double().to(meter.device)
    observations = Observations(Evaluation(), x, y, processes=processes)
    model = SparseModel(process, observations, Gaussian(0.1).double().to(meter.device))
    model.place_inducing(x[:inducing].clone())
    learned = [each for each in model.parameters() if each.requires_grad]

    def value():
        bound = model()
        return [float(bound.detach()), *(torch.autograd.grad(bound, learned))]

    value()
    meter.start()
    for _ in range(repeats):
        bound, *slopes = value()
    return meter.per(repeats) | {"bound": bound, "slopes": torch.cat([s.flatten() for s in slopes]).tolist()}


def steps(processes, meter, batch_size, inducing, draws, side, num_steps):
    """Stochastic steps on random images with ten outputs; kernel, orbit, points and q are learned."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4 * batch_size, side**2, generator=generator, dtype=torch.float64)
    targets = torch.randn(len(x), 10, generator=generator, dtype=torch.float64)
    average = OrbitAverage(ImageOrbit((side, side), num_samples=2)).double().to(meter.device)
    functional = evenly_drawn(average, draws)
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.base_kernel.lengthscale = 0.3 * side
    prior, noise = Process(None, kernel).double().to(meter.device), Gaussian(0.1).double().to(meter.device)
    rows = Observations(Evaluation(), x.to(meter.device), targets.to(meter.device), processes=processes)
    points = x[torch.randint(len(x), (inducing,), generator=generator)].to(meter.device)
    points = points + 0.1 * torch.randn(points.shape, generator=generator, dtype=x.dtype).to(meter.device)
    trainer = StochasticTrainer(
        LatentModel(prior, functional, noise),
        rows,
        points,
        torch.Generator(meter.device).manual_seed(1),
        batch_size,
        Rates(inducing=1e-3),
    )

    def watch(step, bound):
        if step + 1 == UNCOUNTED:
            meter.start()

    trainer.run(num_steps, callback=watch)
    counted = num_steps - UNCOUNTED
    numbers = sum(each.numel() for each in trainer._descent().parameters)
    return meter.per(counted) | {"bounds": trainer.history.bound, "learned_numbers": numbers}


def growth(meter, sizes):
    """The seconds of a row and of a step with next to no rows, and how they grow where one size doubles."""

    def seconds(**changed):
        now = sizes | changed
        fixed, whole = (
            steps(ALONE, meter, *(now | {"batch_size": size}).values(), COUNTED + UNCOUNTED)
            for size in (2, now["batch_size"])
        )
        rows = (whole["processor_seconds"] - fixed["processor_seconds"]) / (now["batch_size"] - 2)
        return rows, fixed["processor_seconds"]

    row, fixed = seconds()
    found = {"row_seconds": row, "fixed_seconds": fixed, "row_exponents": {}, "fixed_exponents": {}}
    for name in NAMES[1:]:
        half = seconds(**{name: sizes[name] // 2})
        found["row_exponents"][name] = math.log2(row / half[0])
        found["fixed_exponents"][name] = math.log2(fixed / half[1])
    return found


def work(arguments):
    """Both parts in this process, which shares them with others where there are any."""
    torch.set_num_threads(1)
    processes = launched() if is_launched() else ALONE
    meter = Meter(torch.device(arguments.device))
    sizes = (arguments.batch_size, arguments.inducing, arguments.draws, arguments.side)
    found = {
        "sparse": sparse_bound(processes, meter, arguments.rows, arguments.inducing, arguments.repeats),
        "steps": steps(processes, meter, *sizes, arguments.steps),
    }
    if arguments.exponents and processes.is_alone:
        found |= growth(meter, dict(zip(NAMES, sizes, strict=True)))
    if processes.is_first:
        write_record(found, arguments.out)


def measured(arguments, count):
    """The record of so many processes, which torchrun starts."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        start = [sys.executable]
        if count > 1:
            start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        command = [*start, __file__, "--work", *sys.argv[1:], "--out", str(out)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return json.loads(out.read_text())


def main():
    parser = command_line(__doc__, "results/processes.json")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=60_000, help="rows of the sparse bound")
    parser.add_argument("--repeats", type=int, default=3, help="values of the sparse bound")
    parser.add_argument("--inducing", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--draws", type=int, default=32)
    parser.add_argument("--side", type=int, default=28, help="pixels of a side of the images")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--exponents", action="store_true", help="measure how the cost grows, in one process")
    parser.add_argument("--work", action="store_true", help="do the work here")
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments)
        return
    sizes = ("device", "rows", "inducing", "batch_size", "draws", "side", "steps")
    record = versions_and_machine() | {"sizes": {name: getattr(arguments, name) for name in sizes}}
    record["processes"] = {str(count): measured(arguments, count) for count in arguments.processes}
    one = record["processes"][str(arguments.processes[0])]
    table = Table(title="one value of the sparse bound with its gradient, and one stochastic step")
    for heading in ("", "processes", "processor s", "wall s", "times as fast", "MB sent", "differs by"):
        table.add_column(heading, justify="right")
    for part in ("sparse", "steps"):
        for count, found in record["processes"].items():
            mine, first = found[part], one[part]
            ours, theirs = (
                np.array([each["bound"], *each["slopes"]] if part == "sparse" else each["bounds"])
                for each in (mine, first)
            )
            mine["difference"] = float(np.max(np.abs(ours - theirs) / np.abs(theirs)))
            mine["speed"] = first["wall_seconds"] / mine["wall_seconds"]
            cells = (mine["processor_seconds"], mine["wall_seconds"], mine["speed"])
            told = [f"{cell:.3f}" for cell in cells]
            table.add_row(part, count, *told, f"{mine['bytes_sent'] / 1e6:.2f}", f"{mine['difference']:.1e}")
    write_record(record, arguments.out)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
