"""Cost of sparse regression against the number of rows: rows per second, and peak memory.

    python benchmarks/sparse_scaling.py --rows 62500 125000 250000 500000

Synthetic rows, 8 columns, M = 1,000, each size in a separate process. `seconds` is a whole fit:
hyperparameters on some rows, greedy choice, L-BFGS iterations on all rows, bracket and posterior;
`pass_seconds` is one value of the bound with its gradient. Writes results/sparse_scaling.json.
"""

import json
import resource
import subprocess
import sys
import time
import warnings

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from orbitwise import SparseGPRegressor
from orbitwise.experiments.records import command_line, write_record


def synthetic(count, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 8))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * np.cos(x[:, 2]) + 0.5 * np.tanh(x[:, 3:].sum(1))
    return x, y + 0.3 * rng.normal(size=count)


def measure(count, inducing, iterations):
    warnings.simplefilter("ignore")
    x, y = synthetic(count)
    x_test, y_test = synthetic(5_000, seed=1)
    model = SparseGPRegressor(
        num_inducing=inducing, optimize_inducing=False, max_iterations=iterations, random_state=0
    )
    start = time.perf_counter()
    model.fit(x, y)
    seconds = time.perf_counter() - start
    sparse = model.fit_result_.objective
    learned = [parameter for parameter in sparse.parameters() if parameter.requires_grad]
    start = time.perf_counter()
    torch.autograd.grad(sparse(), learned)
    one = time.perf_counter() - start
    return {
        "rows": count,
        "inducing": model.certificate_.num_inducing,
        "iterations": len(model.history_),
        "seconds": seconds,
        "pass_seconds": one,
        "rows_a_second": count / one,
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "data_gib": (x.nbytes + y.nbytes) / 2**30,
        "rmse": float(np.sqrt(np.mean((model.predict(x_test) - y_test) ** 2))),
        "noise_deviation": float(np.sqrt(model.noise_)),
        "gap_a_row": model.certificate_.gap / count,
        "threads": torch.get_num_threads(),
    }


def main():
    parser = command_line(__doc__, "results/sparse_scaling.json")
    parser.add_argument("--rows", type=int, nargs="+", default=[62_500, 125_000, 250_000, 500_000])
    parser.add_argument("--inducing", type=int, default=1_000)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--one", type=int, help="measure this many rows here and print the record")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.inducing, arguments.iterations)))
        return
    records = []
    for count in arguments.rows:
        command = [sys.executable, __file__, "--one", str(count), "--inducing", str(arguments.inducing)]
        command += ["--iterations", str(arguments.iterations)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        records.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(records[-1]), flush=True)
        write_record({"records": records}, arguments.out)
    table = Table(title=f"M = {arguments.inducing}, {records[0]['threads']} threads")
    for heading in ("rows", "one pass, s", "rows a second", "whole fit, s", "peak memory, GiB", "test RMSE"):
        table.add_column(heading, justify="right")
    for record in records:
        table.add_row(
            f"{record['rows']:,}",
            f"{record['pass_seconds']:.1f}",
            f"{record['rows_a_second']:,.0f}",
            f"{record['seconds']:.0f}",
            f"{record['peak_memory_gib']:.2f}",
            f"{record['rmse']:.4f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
