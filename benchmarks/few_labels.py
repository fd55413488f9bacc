"""Defaults of kernel machines with 10 and 100 labels, on four sets with the splits that came with them.

    python benchmarks/few_labels.py --splits 6 7

The sets are those of the book on semi-supervised learning (Chapelle, Schölkopf, Zien, 2006). The error is of
all rows without a label. Slopes are kept small at the labelled rows and at some of the others; graphs have
all rows. The defaults were settled on splits 0 to 3, so that others are measured. `SVC` and `LabelSpreading`
are scikit-learn's, the latter with 7 neighbours. Needs ORBITWISE_DATA; writes results/few_labels.json
after every fit; a run that was stopped resumes with the missing fits.
"""

import json
import time
import warnings

import numpy as np
import torch
from sklearn.semi_supervised import LabelSpreading
from sklearn.svm import SVC

from orbitwise import InvariantSVC, LaplacianSVC, datasets
from orbitwise.experiments.records import command_line, versions_and_machine, write_record

SETS = ("bci", "usps", "g241c", "g241n")
MACHINES = {
    "SVC": (lambda: SVC(), "none"),
    "LabelSpreading": (lambda: LabelSpreading(kernel="knn", n_neighbors=7), "all"),
    "InvariantSVC": (lambda: InvariantSVC(random_state=0), "some"),
    "InvariantSVC, evidence": (lambda: InvariantSVC(strength="evidence", random_state=0), "some"),
    "LaplacianSVC": (lambda: LaplacianSVC(random_state=0), "all"),
    "LaplacianSVC, folds": (lambda: LaplacianSVC(strength="cross_validation", random_state=0), "all"),
}
SLOW = ("InvariantSVC, evidence",)
"""With 10 labels only."""


def measure(name, count, split, machine, num_unlabelled):
    data = datasets.load(f"ssl_{name}")
    x, y = np.asarray(data.x, dtype=np.float64), np.asarray(data.y)
    labelled = np.asarray(getattr(data, f"idx_labeled_{count}")[split], dtype=int)
    others = np.setdiff1d(np.arange(len(y)), labelled)
    make, sees = MACHINES[machine]
    some = np.random.default_rng(split).permutation(others)[:num_unlabelled] if sees == "some" else others
    model, start = make(), time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if machine == "SVC":
            model.fit(x[labelled], y[labelled])
        elif machine == "LabelSpreading":
            known = np.full(len(y), -1)
            known[labelled] = (y[labelled] > 0).astype(int)
            model.fit(x, known)
        else:
            model.fit(x[labelled], y[labelled], unlabeled=x[some])
    is_first = (
        model.transduction_[others] > 0 if machine == "LabelSpreading" else model.predict(x[others]) > 0
    )
    return {
        "set": name,
        "labels": count,
        "split": split,
        "machine": machine,
        "error": float((is_first != (y[others] > 0)).mean()),
        "first_class": float(is_first.mean()),
        "is_warned": any("rows, although the labels" in str(each.message) for each in said),
        "C": getattr(model, "C_", None),
        "strength": getattr(model, "strength_", None),
        "seconds": time.perf_counter() - start,
    }


def main():
    parser = command_line(__doc__, "results/few_labels.json")
    parser.add_argument("--splits", type=int, nargs="+", default=[6, 7])
    parser.add_argument(
        "--unlabelled", type=int, default=100, help="unlabelled rows at which slopes are kept small"
    )
    arguments = parser.parse_args()
    head = {
        "command": f"python benchmarks/few_labels.py --splits {' '.join(map(str, arguments.splits))} "
        f"--unlabelled {arguments.unlabelled}",
        "versions": versions_and_machine()["versions"],
        "threads": torch.get_num_threads(),
        "unlabelled": arguments.unlabelled,
    }
    records = json.loads(arguments.out.read_text())["records"] if arguments.out.exists() else []
    done = {(row["set"], row["labels"], row["split"], row["machine"]) for row in records}
    for split in arguments.splits:
        for count in (10, 100):
            for name in SETS:
                for machine in MACHINES:
                    if (name, count, split, machine) in done or (count == 100 and machine in SLOW):
                        continue
                    records.append(measure(name, count, split, machine, arguments.unlabelled))
                    row = records[-1]
                    outcome = f"{100 * row['error']:.1f} % in {row['seconds']:.0f} s"
                    print(name, count, split, machine, outcome, flush=True)
                    write_record({**head, "records": records}, arguments.out)


if __name__ == "__main__":
    main()
