"""Ethanol's energies and forces on the same geometries, compared with the PyPI package `sgdml`.

sgdml learns from forces, with the features and the kernel of the row "one lengthscale" (Matérn-5/2 of
inverse distances, averaged over exchanges that it finds by matching atoms), and takes its width from a grid
by the errors of a validation set. Orbitwise learns hyperparameters by the evidence of some of the training
geometries, without further data. Needs the `bench` extra and ORBITWISE_DATA.
"""

from __future__ import annotations

import contextlib
import importlib.util
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

from orbitwise.datasets import Dataset, load
from orbitwise.experiments.records import command_line, versions_and_machine, write_record

ROOT = Path(__file__).resolve().parents[1]
WIDTHS = range(10, 100, 10)  # sgdml's own grid


def example():
    """The example's module, whose models these are."""
    specification = importlib.util.spec_from_file_location(
        "example", ROOT / "examples" / "molecule_forces.py"
    )
    module = importlib.util.module_from_spec(specification)
    sys.modules["example"] = module
    specification.loader.exec_module(module)
    return module


def sgdml_dataset(data: Dataset, part: slice, folder: Path) -> dict:
    """Training geometries in the format of sgdml's files, written and read back as its command line does."""
    from sgdml.utils import io as sgdml_io

    arrays = {
        "type": "d",
        "code_version": version("sgdml"),
        "name": "ethanol",
        "theory": "unknown",
        "R": data.x_train[part],
        "z": data.z.astype(int),
        "E": data.y_train[part],
        "F": data.f_train[part],
    }
    arrays["md5"] = sgdml_io.dataset_md5(
        {**arrays, "name": np.array("ethanol"), "theory": np.array("unknown")}
    )
    file = folder / f"ethanol_{part.start}.npz"
    np.savez_compressed(file, **arrays)
    return dict(np.load(file))


def run_sgdml(
    trainer, data: Dataset, num_train: int, num_valid: int, symmetric: bool, processes: int
) -> dict:
    """Search a width by validation errors of forces, as `sgdml all` does, and test the best model."""
    from sgdml.predict import GDMLPredict

    with tempfile.TemporaryDirectory() as folder:
        training = sgdml_dataset(data, slice(0, num_train), Path(folder))
        validation = sgdml_dataset(data, slice(num_train, num_train + num_valid), Path(folder))
    start = time.perf_counter()
    task = trainer.create_task(training, num_train, validation, num_valid, sig=1, use_sym=symmetric)
    assert sorted(task["idxs_train"]) == list(range(num_train)), (
        "sgdml did not take the geometries it was given"
    )
    match_seconds = time.perf_counter() - start

    def predict(model: dict, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        energies, forces = GDMLPredict(model, max_processes=processes).predict(x.reshape(len(x), -1))
        return energies, forces.reshape(x.shape)

    best, best_error, train_seconds = None, np.inf, []
    for width in WIDTHS:
        begun = time.perf_counter()
        model = trainer.train({**task, "sig": width})
        train_seconds.append(time.perf_counter() - begun)
        _, forces = predict(model, validation["R"])
        error = np.sqrt(np.mean((forces - validation["F"]) ** 2))
        if error < best_error:
            best, best_error = model, error
    search_seconds = time.perf_counter() - start
    begun = time.perf_counter()
    energies, forces = predict(best, data.x_test)
    return {
        "energy_error": float(np.abs(energies - data.y_test).mean()),
        "force_error": float(np.abs(forces - data.f_test).mean()),
        "learn_seconds": search_seconds,
        "train_seconds": float(np.median(train_seconds)),
        "predict_seconds": time.perf_counter() - begun,
        "width": int(best["sig"]),
        "num_exchanges": len(task["perms"]),
        "match_seconds": match_seconds,
    }


def run_orbitwise(data: Dataset, num_train: int, num_learn: int) -> dict[str, dict]:
    """The example's settings, and the one with a single lengthscale, which is sgdml's kernel."""
    module = example()
    settings = [*module.SETTINGS, module.Setting("one lengthscale", separate=False)]
    results = {}
    for setting in settings:
        outcome = module.run(data, setting, num_train, num_learn, iterations=25)
        results[setting.name] = {
            "energy_error": outcome.energy_error,
            "force_error": outcome.force_error,
            "learn_seconds": outcome.learn_seconds,
            "train_seconds": outcome.fit_seconds,
            "predict_seconds": outcome.predict_seconds,
            "log_evidence": outcome.model.log_evidence_,
        }
    return results


def main() -> None:
    """Run both, print the table and the ratios, write the figures."""
    parser = command_line(__doc__, ROOT / "results" / "molecule_forces.json")
    parser.add_argument("--num-train", type=int, default=200)
    parser.add_argument(
        "--num-valid", type=int, default=200, help="further geometries, for sgdml's choice of a width"
    )
    parser.add_argument(
        "--num-learn", type=int, default=50, help="training geometries for our hyperparameters"
    )
    options = parser.parse_args()
    threads = torch.get_num_threads()
    data = load("rmd17_ethanol")

    try:
        from sgdml.train import GDMLTrain
    except ImportError:
        raise SystemExit("This benchmark needs sgdml: pip install 'orbitwise[bench]'.") from None
    ours = run_orbitwise(data, options.num_train, options.num_learn)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable()
        trainer = GDMLTrain(max_processes=threads)  # it allows one instance
        theirs = {
            name: run_sgdml(trainer, data, options.num_train, options.num_valid, symmetric, threads)
            for name, symmetric in (("sgdml", True), ("sgdml, no exchanges", False))
        }

    table = Table(
        title=f"Ethanol, {options.num_train} geometries: mean absolute errors of {len(data.y_test)} others"
    )
    table.caption = "energies in kcal/mol, forces in kcal/mol/Å, times in seconds"
    for column in ("model", "energy", "force", "learning", "training", "predicting"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, result in [*ours.items(), *theirs.items()]:
        errors = (f"{result['energy_error']:.3f}", f"{result['force_error']:.3f}")
        seconds = (f"{result[f'{step}_seconds']:.1f}" for step in ("learn", "train", "predict"))
        table.add_row(name, *errors, *seconds)
    console = Console()
    console.print(table)

    best, reference = ours["energies and forces"], theirs["sgdml"]
    quantities = ("energy_error", "force_error", "learn_seconds", "train_seconds", "predict_seconds")
    ratios = {key: best[key] / reference[key] for key in quantities}
    for key, ratio in ratios.items():
        console.print(f"{key.replace('_', ' ')}, ours over sgdml's: {ratio:.2f}")
    report = {
        "command": " ".join(["python benchmarks/molecule_forces.py", *sys.argv[1:]]),
        **versions_and_machine("sgdml"),
        "num_train": options.num_train,
        "num_valid_of_sgdml": options.num_valid,
        "num_learn": options.num_learn,
        "orbitwise": ours,
        "sgdml": theirs,
        "ours_over_sgdml": ratios,
    }
    write_record(report, options.out)
    console.print(f"wrote {os.path.relpath(options.out)}")
    if ratios["energy_error"] > 1 or ratios["force_error"] > 1:
        raise SystemExit("An error is above sgdml's.")


if __name__ == "__main__":
    main()
