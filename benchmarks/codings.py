"""Three ways to observe class labels, on few 8×8 digits: one-hot codes, stick-breaking and Dirichlet targets.

    python benchmarks/codings.py --splits 0 1 2

300 images for training, the other 1,497 for testing, the same splits for all. Writes results/codings.json.
"""

import json
import time
import warnings

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss

from orbitwise import InvariantGPClassifier
from orbitwise.experiments.records import command_line, versions_and_machine, write_record

CODINGS = ["one_hot", "stick_breaking", "dirichlet"]


def measure(coding, invariance, split, num_train):
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(split).permutation(len(X))
    train, test = order[:num_train], order[num_train:]
    name = None if invariance == "none" else invariance
    model = InvariantGPClassifier(invariance=name, likelihood=coding, image_shape=(8, 8), random_state=split)
    start = time.perf_counter()
    probabilities = model.fit(X[train], y[train]).predict_proba(X[test])
    return {
        "split": split,
        "coding": coding,
        "invariance": invariance,
        "engine": model.inference_,
        "seconds": time.perf_counter() - start,
        "error": float((probabilities.argmax(1) != y[test]).mean()),
        "log_loss": float(log_loss(y[test], probabilities)),
    }


def main():
    parser = command_line(__doc__, "results/codings.json")
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--num-train", type=int, default=300)
    parser.add_argument("--invariances", nargs="+", default=["none"], help="names, such as none and rotation")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    options = {
        "splits": arguments.splits,
        "num-train": [arguments.num_train],
        "invariances": arguments.invariances,
    }
    options = " ".join(f"--{name} {' '.join(map(str, values))}" for name, values in options.items())
    head = {
        "command": f"python benchmarks/codings.py {options} --num-train {arguments.num_train}",
        "versions": versions_and_machine()["versions"],
        "threads": torch.get_num_threads(),
        "num_train": arguments.num_train,
    }
    records = []
    for split in arguments.splits:
        for invariance in arguments.invariances:
            for coding in CODINGS:
                records.append(measure(coding, invariance, split, arguments.num_train))
                print(json.dumps(records[-1]), flush=True)
                write_record({**head, "records": records}, arguments.out)
    table = Table(
        title=f"8×8 digits, {arguments.num_train} for training, mean of {len(arguments.splits)} splits"
    )
    for heading in ("coding", "invariance", "test error %", "log loss", "seconds"):
        table.add_column(heading, justify="left" if heading in ("coding", "invariance") else "right")
    for invariance in arguments.invariances:
        for coding in CODINGS:
            name = invariance or "none"
            rows = [row for row in records if (row["coding"], row["invariance"]) == (coding, name)]
            error, loss, seconds = (
                np.mean([row[key] for row in rows]) for key in ("error", "log_loss", "seconds")
            )
            table.add_row(coding, name, f"{100 * error:.2f}", f"{loss:.3f}", f"{seconds:.0f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
