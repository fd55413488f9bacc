"""Automatic inducing variables compared with exact inference, on eight sets with their given splits.

    python benchmarks/uci_regression.py --device cuda --workers 7

All splits below 2,000 rows, five above; exact inference where it has up to 10,000 rows. Small sets run in
`--workers` processes of two threads on the CPU, large ones in `--large-workers` on the device. Writes
results/uci_regression.json after every split; a run that was stopped resumes with the missing splits.
"""

import json
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from orbitwise import InvariantGPRegressor, SparseGPRegressor, datasets
from orbitwise.experiments.records import command_line, write_record

SETS = ["yacht", "boston", "energy", "concrete", "wine_red", "power", "kin8nm", "protein"]
SMALL, EXACT = 2_000, 10_000


def measure(name, split, method, device, options):
    warnings.simplefilter("ignore")
    if device == "cpu":
        torch.set_num_threads(2)
    data = datasets.load(f"uci_reg_{name}")
    x, y = np.asarray(data.x, dtype=float), np.asarray(data.y, dtype=float)
    test = np.zeros(len(x), dtype=bool)
    test[data.test_idx[split]] = True
    if method == "exact":
        model = InvariantGPRegressor(inference="exact", device=device)
    else:
        model = SparseGPRegressor(bound=method, device=device, random_state=split, **options)
    start = time.perf_counter()
    model.fit(x[~test], y[~test])
    seconds = time.perf_counter() - start
    mean, std = model.predict(x[test], return_std=True, include_noise=True)
    residual = (y[test] - mean) / std
    record = {
        "set": name,
        "split": split,
        "method": method,
        "device": device,
        "rows": int((~test).sum()),
        "rmse": float(np.sqrt(np.mean((y[test] - mean) ** 2))),
        "log_density": float(np.mean(-0.5 * np.log(2 * np.pi * std**2) - 0.5 * residual**2)),
        "log_evidence": float(model.log_evidence_),
        "seconds": seconds,
    }
    if method != "exact":
        certificate = model.certificate_
        record |= {
            **options,
            "num_inducing": certificate.num_inducing,
            "gap": certificate.gap,
            "stopped": certificate.stopped,
            "met": bool(certificate.is_met),
            "stages": [stage._asdict() for stage in certificate.history],
        }
    return record


def jobs(names, method_names):
    for name in names:
        data = datasets.load(f"uci_reg_{name}")
        count = len(data.test_idx) if len(data.x) < SMALL else 5
        methods = [m for m in method_names if m != "exact" or len(data.x) <= EXACT]
        yield from ((name, split, method, len(data.x)) for split in range(count) for method in methods)


def summarise(records):
    table = Table(title="mean ± standard error over splits; difference: sparse - exact, paired")
    headings = ("set", "method", "splits", "RMSE", "log density", "evidence - exact", "M", "gap a row", "s")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("set", "method") else "right")
    for name in SETS:
        exact = {r["split"]: r for r in records if r["set"] == name and r["method"] == "exact"}
        for method in ("exact", "tight", "titsias", "cg"):
            rows = [r for r in records if r["set"] == name and r["method"] == method]
            if not rows:
                continue
            paired = [
                r["log_evidence"] - exact[r["split"]]["log_evidence"] for r in rows if r["split"] in exact
            ]
            table.add_row(
                name,
                method,
                str(len(rows)),
                spread([r["rmse"] for r in rows], 4),
                spread([r["log_density"] for r in rows], 4),
                f"{np.mean(paired):.1f}" if paired else "-",
                f"{np.mean([r.get('num_inducing', r['rows']) for r in rows]):.0f}",
                f"{np.mean([r.get('gap', 0) / r['rows'] for r in rows]):.4f}",
                f"{np.mean([r['seconds'] for r in rows]):.0f}",
            )
    return table


def spread(values, digits):
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{np.mean(values):.{digits}f} ± {error:.{digits}f}"


def main():
    parser = command_line(__doc__, "results/uci_regression.json")
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--methods", nargs="+", default=["exact", "tight"])
    parser.add_argument("--device", default="cpu", help="for sets of 2,000 rows and more")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--large-workers", type=int, default=1)
    parser.add_argument("--max-inducing", type=int, default=2000)
    parser.add_argument("--tolerance", type=float, default=0.01)
    arguments = parser.parse_args()
    options = {"max_inducing": arguments.max_inducing, "tolerance": arguments.tolerance}
    records = json.loads(arguments.out.read_text())["records"] if arguments.out.exists() else []
    known = {(record["set"], record["split"], record["method"]) for record in records}

    def keep(record):
        records.append(record)
        print(json.dumps({k: v for k, v in record.items() if k != "stages"}), flush=True)
        records.sort(key=lambda r: (SETS.index(r["set"]), r["split"], r["method"]))
        write_record({"command": "python " + " ".join(sys.argv), "records": records}, arguments.out)

    todo = [job for job in jobs(arguments.sets, arguments.methods) if job[:3] not in known]
    os.environ["OMP_NUM_THREADS"] = "2"
    spawn = get_context("spawn")
    with (
        ProcessPoolExecutor(arguments.workers, spawn) as small,
        ProcessPoolExecutor(arguments.large_workers, spawn) as large,
    ):
        futures = [
            small.submit(measure, *job, "cpu", options)
            if count < SMALL
            else large.submit(measure, *job, arguments.device, options)
            for *job, count in todo
        ]
        for future in as_completed(futures):
            keep(future.result())
    Console(width=130).print(summarise(records))


if __name__ == "__main__":
    main()
