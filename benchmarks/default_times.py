"""How long the classifier's defaults take on two cores, and what they reach, beside support vectors.

    taskset -c 0,1 python benchmarks/default_times.py

Digits have 1,000 training images (the first split of `benchmarks/defaults.py`), MNIST its first 5,000 and
USPS all 7,291; all other images, or the test set of the files, are tested. Seconds are those of a clock,
with two threads, for fit and prediction; keep the machine quiet. Needs ORBITWISE_DATA; writes
results/default_times.json after every fit, and resumes with what is missing.
"""

import time
import warnings

import torch
from defaults import AFFINE, GIVEN, measure
from rich.console import Console
from rich.table import Table

from orbitwise.experiments.records import Record, command_line, versions_and_machine

THREADS = 2
CASES = {"digits": (0, 1_000), "mnist": (GIVEN, 5_000), "usps": (GIVEN, 7_291)}
"""The split and the most training rows of every set."""
METHODS = ("InvariantGPClassifier", AFFINE, "SVC")
HEADINGS = ("set", "method", "rows", "error %", "log loss", "M", "seconds", "of the processor")


def table_of(records):
    table = Table(title=f"{THREADS} threads")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("set", "method") else "right")
    for row in records:
        quality = (f"{100 * row['error']:.2f}", f"{row['log_loss']:.4f}", str(row.get("num_inducing", "–")))
        times = (f"{row['clock_seconds']:.0f}", f"{row['seconds']:.0f}")
        table.add_row(row["set"], row["method"], f"{row['rows']:,}", *quality, *times)
    return table


def main():
    parser = command_line(__doc__, "results/default_times.json")
    parser.add_argument("--sets", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    record = Record(arguments.out, {"command": "python benchmarks/default_times.py", "records": []})
    record.values |= versions_and_machine()
    records = record.values["records"]
    for name in arguments.sets:
        split, num_rows = CASES[name]
        for method in arguments.methods:
            if any((row["set"], row["method"]) == (name, method) for row in records):
                continue
            start = time.perf_counter()
            found = measure(name, split, method, num_rows)
            found["clock_seconds"] = time.perf_counter() - start
            records.append({"set": name, "method": method, **found})
            record.write()
    Console(width=120).print(table_of(records))


if __name__ == "__main__":
    main()
