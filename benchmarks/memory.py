"""Peak memory of fits to 10⁶ rows in a file, and of predictions for them.

    python benchmarks/memory.py

Each fit runs in a process of its own, which makes its file of synthetic rows in the folder of temporary
files, maps it, fits and predicts; its peak resident memory is what the system counted in the end, with Python
and PyTorch. Writes results/memory.json.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from orbitwise import InvariantGPClassifier, SparseGPRegressor
from orbitwise.estimators import predict_in_blocks
from orbitwise.experiments.records import command_line, write_record

COLUMNS, SIDE, CLASSES = 24, 28, 4
BLOCK = 50_000


def peak():
    """The peak resident memory of this process in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def table(folder, count):
    """A file of rows with 24 columns in single precision, and targets."""
    random = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (count, COLUMNS))
    targets = np.empty(count)
    for start in range(0, count, BLOCK):
        rows = random.normal(size=(min(BLOCK, count - start), COLUMNS)).astype(np.float32)
        x[start : start + len(rows)] = rows
        signal = np.sin(2 * rows[:, 0]) + rows[:, 1] * np.cos(rows[:, 2]) + 0.5 * np.tanh(rows[:, 3:].sum(1))
        targets[start : start + len(rows)] = signal + 0.3 * random.normal(size=len(rows))
    x.flush()
    return targets


def images(folder, count):
    """A file of images of 28 × 28 bytes, each with one bright patch, and the quarter in which it is."""
    random = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (count, SIDE, SIDE))
    labels = random.integers(0, CLASSES, size=count)
    for start in range(0, count, BLOCK):
        some = labels[start : start + BLOCK]
        block = random.integers(0, 60, size=(len(some), SIDE, SIDE), dtype=np.uint8)
        for quarter in range(CLASSES):
            top, left = 14 * (quarter // 2) + 4, 14 * (quarter % 2) + 4
            block[some == quarter, top : top + 7, left : left + 7] += 120
        x[start : start + len(some)] = block
    x.flush()
    return labels


def measure(kind, count, inducing):
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # the file is made in a process of its own, so that its pages are none of this one's
        command = [sys.executable, __file__, "--make", kind, name, "--rows", str(count)]
        subprocess.run(command, check=True)
        y = np.load(folder / "y.npy")
        if kind == "table":
            model = SparseGPRegressor(num_inducing=inducing, max_iterations=2, random_state=0)
        else:
            model = InvariantGPClassifier(
                inference="variational",
                num_inducing=inducing,
                num_steps=20,
                noise="evidence",
                random_state=0,
            )
        before, start, worked = peak(), time.perf_counter(), time.process_time()
        model.fit(folder / "x.npy", y)
        seconds, processor, fitted = time.perf_counter() - start, time.process_time() - worked, peak()
        found = predict_in_blocks(model, folder / "x.npy", out=folder / "predictions.npy")
        close = found == y if kind == "images" else (found - y) ** 2
        return {
            "kind": kind,
            "rows": count,
            "bytes": (folder / "x.npy").stat().st_size,
            "inducing": inducing,
            "before_gib": before,
            "fit_peak_gib": fitted,
            "predict_peak_gib": peak(),
            "seconds": seconds,
            "processor_seconds": processor,
            "score": float(np.mean(close)),
        }


def main():
    parser = command_line(__doc__, "results/memory.json")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--inducing", type=int, nargs=2, default=[256, 100], help="for the table, the images")
    parser.add_argument("--kinds", nargs="+", default=["table", "images"])
    parser.add_argument("--one", help="measure this kind here and print the record")
    parser.add_argument("--make", nargs=2, help="only make the files of this kind in this folder")
    arguments = parser.parse_args()
    sizes = dict(zip(("table", "images"), arguments.inducing, strict=True))
    if arguments.make:
        kind, folder = arguments.make
        y = (table if kind == "table" else images)(Path(folder), arguments.rows)
        np.save(Path(folder) / "y.npy", y)
        return
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.rows, sizes[arguments.one])))
        return
    records = []
    for kind in arguments.kinds:
        command = [sys.executable, __file__, "--one", kind, "--rows", str(arguments.rows)]
        command += ["--inducing", *map(str, arguments.inducing)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        records.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(records[-1]), flush=True)
    write_record({"records": records}, arguments.out)
    shown = Table(title="Peak memory of fits to rows in a file")
    for heading in ("rows", "file, GiB", "M", "fit, GiB", "prediction, GiB", "seconds"):
        shown.add_column(heading, justify="right")
    for each in records:
        shown.add_row(
            f"{each['rows']:,} {each['kind']}",
            f"{each['bytes'] / 2**30:.2f}",
            f"{each['inducing']:,}",
            f"{each['fit_peak_gib']:.2f}",
            f"{each['predict_peak_gib']:.2f}",
            f"{each['seconds']:.0f}",
        )
    Console().print(shown)


if __name__ == "__main__":
    main()
