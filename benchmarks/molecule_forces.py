"""Energies and forces of three molecules on the same geometries, compared with the PyPI package `sgdml`.

Both get the same training geometries of revised MD17, and nothing is set for either. sgdml learns from
forces (Matérn-5/2 of inverse distances, averaged over exchanges that it finds by matching atoms) and takes
its width from its own grid by the errors of further validation geometries, which only it is given. Seconds
are those of the processor, on one thread. Needs the `bench` extra and ORBITWISE_DATA.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from orbitwise import MoleculeGP
from orbitwise.datasets import Dataset, load
from orbitwise.experiments.records import command_line, versions_and_machine, write_record

ROOT = Path(__file__).resolve().parents[1]
MOLECULES = ("ethanol", "benzene", "malonaldehyde")
WIDTHS = range(10, 100, 10)  # sgdml's own grid
QUANTITIES = ("energy_error", "force_error", "learn_seconds", "predict_seconds")


def sgdml_dataset(data: Dataset, part: slice, folder: Path) -> dict:
    """Geometries in the format of sgdml's files, written and read back as its command line does."""
    from sgdml.utils import io as sgdml_io

    arrays = {
        "type": "d",
        "code_version": version("sgdml"),
        "name": data.name,
        "theory": "unknown",
        "R": data.x_train[part],
        "z": data.z.astype(int),
        "E": data.y_train[part],
        "F": data.f_train[part],
    }
    arrays["md5"] = sgdml_io.dataset_md5(
        {**arrays, "name": np.array(data.name), "theory": np.array("unknown")}
    )
    file = folder / f"{data.name}_{part.start}.npz"
    np.savez_compressed(file, **arrays)
    return dict(np.load(file))


def run_sgdml(trainer, data: Dataset, num_train: int, num_valid: int) -> dict:
    """Search a width by validation errors of forces, as `sgdml all` does, and test the best model."""
    from sgdml.predict import GDMLPredict

    with tempfile.TemporaryDirectory() as folder:
        training = sgdml_dataset(data, slice(0, num_train), Path(folder))
        validation = sgdml_dataset(data, slice(num_train, num_train + num_valid), Path(folder))
    start = time.process_time()
    task = trainer.create_task(training, num_train, validation, num_valid, sig=1)
    assert sorted(task["idxs_train"]) == list(range(num_train)), (
        "sgdml did not take the geometries it was given"
    )

    def predict(model: dict, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        energies, forces = GDMLPredict(model, max_processes=1).predict(x.reshape(len(x), -1))
        return energies, forces.reshape(x.shape)

    best, best_error = None, np.inf
    for width in WIDTHS:
        model = trainer.train({**task, "sig": width})
        _, forces = predict(model, validation["R"])
        error = np.sqrt(np.mean((forces - validation["F"]) ** 2))
        if error < best_error:
            best, best_error = model, error
    learnt = time.process_time()
    energies, forces = predict(best, data.x_test)
    done = time.process_time()
    return {
        **errors_of(data, energies, forces),
        "learn_seconds": learnt - start,
        "predict_seconds": done - learnt,
        "num_exchanges": len(task["perms"]),
        "width": int(best["sig"]),
    }


def run_orbitwise(data: Dataset, num_train: int) -> dict:
    """`MoleculeGP(z)` with its defaults; energies and forces are both predicted."""
    part = slice(0, num_train)
    start = time.process_time()
    model = MoleculeGP(data.z).fit(data.x_train[part], data.y_train[part], data.f_train[part])
    learnt = time.process_time()
    energies, forces = model.predict(data.x_test), model.predict_forces(data.x_test)
    done = time.process_time()
    return {
        **errors_of(data, energies, forces),
        "learn_seconds": learnt - start,
        "predict_seconds": done - learnt,
        "num_exchanges": len(model.exchanges_),
        "log_evidence": model.log_evidence_,
        "iterations": len(model.history_),
        "converged": model.converged_,
    }


def errors_of(data: Dataset, energies: np.ndarray, forces: np.ndarray) -> dict:
    """Mean absolute errors of the test geometries."""
    return {
        "energy_error": float(np.abs(energies - data.y_test).mean()),
        "force_error": float(np.abs(forces - data.f_test).mean()),
    }


def main() -> None:
    """Run both on every molecule, print the table and the ratios, write the figures."""
    parser = command_line(__doc__, ROOT / "results" / "molecule_forces.json")
    parser.add_argument("--molecules", nargs="+", default=MOLECULES, choices=MOLECULES)
    parser.add_argument("--num-train", type=int, default=200)
    parser.add_argument(
        "--num-valid", type=int, default=200, help="further geometries, for sgdml's choice of a width"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        from sgdml.train import GDMLTrain
    except ImportError:
        raise SystemExit("This benchmark needs sgdml: pip install 'orbitwise[bench]'.") from None
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable()
        trainer = GDMLTrain(max_processes=1)  # it allows one instance

    table = Table(title=f"{options.num_train} geometries: mean absolute errors of others")
    table.caption = "energies in kcal/mol, forces in kcal/mol/Å, times in seconds of the processor"
    for column in ("molecule", "model", "energy", "force", "exchanges", "learning", "predicting"):
        table.add_column(column, justify="left" if column in ("molecule", "model") else "right")
    molecules = {}
    for name in options.molecules:
        data = load(f"rmd17_{name}")
        ours = run_orbitwise(data, options.num_train)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            theirs = run_sgdml(trainer, data, options.num_train, options.num_valid)
        for model, row in (("orbitwise", ours), ("sgdml", theirs)):
            cells = (f"{row['energy_error']:.4f}", f"{row['force_error']:.4f}", str(row["num_exchanges"]))
            table.add_row(name, model, *cells, f"{row['learn_seconds']:.1f}", f"{row['predict_seconds']:.2f}")
        ratios = {key: ours[key] / theirs[key] for key in QUANTITIES}
        molecules[name] = {"orbitwise": ours, "sgdml": theirs, "ours_over_sgdml": ratios}
    console = Console()
    console.print(table)
    for name, found in molecules.items():
        parts = (f"{key.replace('_', ' ')} {ratio:.2f}" for key, ratio in found["ours_over_sgdml"].items())
        console.print(f"{name}, ours over sgdml's: {', '.join(parts)}")
    report = {
        "command": " ".join(["python benchmarks/molecule_forces.py", *sys.argv[1:]]),
        **versions_and_machine("sgdml"),
        "num_train": options.num_train,
        "num_valid_of_sgdml": options.num_valid,
        "num_test": len(data.y_test),
        "molecules": molecules,
    }
    write_record(report, options.out)
    console.print(f"wrote {os.path.relpath(options.out)}")
    ratios = [each["ours_over_sgdml"] for each in molecules.values()]
    if any(max(each["energy_error"], each["force_error"]) > 1 for each in ratios):
        raise SystemExit("An error is above sgdml's.")


if __name__ == "__main__":
    main()
