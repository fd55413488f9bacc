"""Defaults of kernel machines with 10 and 100 labels, on four sets with the splits that came with them.

    python benchmarks/few_labels.py

The sets are those of the book on semi-supervised learning (Chapelle, Schölkopf, Zien, 2006). All rows without
a label are given to the machines, and the error is that of these rows. The defaults were settled on splits 0
to 3, so that others are measured. `SVC` and `LabelSpreading` are scikit-learn's, the latter by its Gaussian
kernel and by 7 and 20 neighbours. Seconds are those of the processor.

With 100 labels and 1,500 rows, the former defaults of `InvariantSVC` (all functions, strength 0.001, C = 100,
a bias) are measured as well, on `--exact` splits. Their risk is minimised over rows of labels and slopes,
which gives the same function sooner than the folding that took minutes. Needs ORBITWISE_DATA; writes
results/few_labels.json after every fit; a run that was stopped resumes with the missing fits.
"""

import json
import time
import warnings

import numpy as np
import torch
from sklearn.semi_supervised import LabelSpreading
from sklearn.svm import SVC

from orbitwise import InvariantSVC, LaplacianSVC, datasets
from orbitwise.estimators.machines.machine import TrainingRows
from orbitwise.estimators.machines.task import gradient_rows, median_distance
from orbitwise.experiments.records import command_line, versions_and_machine, write_record
from orbitwise.functionals import Evaluation
from orbitwise.inference.risk.machines import Machine, basis_rows, gram_of, solve
from orbitwise.inference.risk.problem import Problem, Term
from orbitwise.losses import Logistic, Squared

SETS = ("bci", "usps", "g241c", "g241n")
PEERS = {
    "SVC": lambda: SVC(),
    "LabelSpreading, rbf": lambda: LabelSpreading(),
    "LabelSpreading, 7 neighbours": lambda: LabelSpreading(kernel="knn", n_neighbors=7),
    "LabelSpreading, 20 neighbours": lambda: LabelSpreading(kernel="knn", n_neighbors=20),
}
OURS = {
    "InvariantSVC": lambda: InvariantSVC(random_state=0),
    "LaplacianSVC": lambda: LaplacianSVC(random_state=0),
}
FORMER, AT_POINTS = "InvariantSVC before", "InvariantSVC before, at the points"


def former_decisions(x, labels, labelled, others):
    """Values of f at all rows by the former default of InvariantSVC, exact to a relative gap of 1e-6."""
    x = torch.from_numpy(x)
    width = median_distance(x)
    process = InvariantSVC(bandwidth=width)._process(width)
    signs = torch.from_numpy(np.where(labels[labelled] > 0, 1.0, -1.0))
    data = TrainingRows(x[labelled], signs[None], torch.ones(len(signs)).double(), x[others])
    blocks = [Evaluation().atoms(data.x), *gradient_rows(x, width).blocks]
    zeros = torch.zeros(blocks[1].num_rows, dtype=torch.float64)
    terms = [
        Term(Logistic(), signs, 100.0 * data.weights),
        Term(Squared(), zeros, torch.full_like(zeros, 0.001)),
    ]
    problem = Problem(gram_of(process, blocks, largest=0), terms, basis_rows(blocks, "bias"))
    found = solve(problem, "lbfgs", 1e-6)
    machine = Machine(process, blocks, found.coefficients[:, None], found.beta[:, None], "bias")
    return machine.values(Evaluation(), x)[:, 0].numpy()


def measure(name, count, split, machine):
    data = datasets.load(f"ssl_{name}")
    x, y = np.asarray(data.x, dtype=np.float64), np.asarray(data.y)
    labelled = np.asarray(getattr(data, f"idx_labeled_{count}")[split], dtype=int)
    others = np.setdiff1d(np.arange(len(y)), labelled)
    model, start = None, time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if machine == "SVC":
            model = SVC().fit(x[labelled], y[labelled])
        elif machine in PEERS:
            known = np.full(len(y), -1)
            known[labelled] = (y[labelled] > 0).astype(int)
            model = PEERS[machine]().fit(x, known)
        elif machine == FORMER:
            is_first = former_decisions(x, y, labelled, others)[others] > 0
        else:
            former = InvariantSVC(functions="points", strength=0.001, C=100.0, basis="bias", random_state=0)
            model = former if machine == AT_POINTS else OURS[machine]()
            model.fit(x[labelled], y[labelled], unlabeled=x[others])
    seconds = time.process_time() - start
    if isinstance(model, LabelSpreading):
        is_first = model.transduction_[others] > 0
    elif model is not None:
        is_first = model.predict(x[others]) > 0
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
        "seconds": seconds,
    }


def main():
    parser = command_line(__doc__, "results/few_labels.json")
    parser.add_argument("--splits", type=int, nargs="+", default=list(range(4, 12)))
    parser.add_argument("--exact", type=int, nargs="*", default=[4, 5], help="splits for the former default")
    arguments = parser.parse_args()
    head = {
        "command": f"python benchmarks/few_labels.py --splits {' '.join(map(str, arguments.splits))} "
        f"--exact {' '.join(map(str, arguments.exact))}",
        "versions": versions_and_machine()["versions"],
        "threads": torch.get_num_threads(),
    }
    records = json.loads(arguments.out.read_text())["records"] if arguments.out.exists() else []
    done = {(row["set"], row["labels"], row["split"], row["machine"]) for row in records}
    wanted = [
        (name, count, split, machine)
        for split in arguments.splits
        for count in (10, 100)
        for name in SETS
        for machine in (*PEERS, *OURS)
    ]
    large = SETS[1:]
    wanted += [
        (name, 100, split, each)
        for split in arguments.exact
        for name in large
        for each in (FORMER, AT_POINTS)
    ]
    for key in wanted:
        if key in done:
            continue
        records.append(measure(*key))
        row = records[-1]
        print(*key, f"{100 * row['error']:.1f} % in {row['seconds']:.1f} s", flush=True)
        write_record({**head, "records": records}, arguments.out)


if __name__ == "__main__":
    main()
