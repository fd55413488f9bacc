"""A fuzzer of model files whose checksums are right: every mutant is refused, or is a model that works.

Run by hand: `python -m tests.hostile.model_files --count 2000 --seed 0`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from orbitwise.cli.showing import model_table
from orbitwise.storage import StorageError, describe, load
from tests.hostile.model_zoo import MODELS, saved_model
from tests.hostile.mutations import mutant, opened, sealed

LIMIT_BYTES = 2**29
"""What one file may take on top of what the process holds already, loaded and asked for predictions."""
LIMIT_SECONDS = 20
PROCESS = Path("/proc", "self")


class Outcome(NamedTuple):
    """What became of a mutant: "refused", "works", or a finding that says what is wrong."""

    verdict: str
    is_finding: bool
    num_bytes: int


class TooLong(BaseException):
    """The processor time of one mutant is used up."""


def outcome(data: bytes, folder: Path) -> Outcome:
    """What a file does when it is shown, loaded and asked for predictions."""
    path = folder / "mutant.orbitwise"
    path.write_bytes(data)
    before = _start_peak()
    verdict, is_finding = "works", False
    try:
        for look in (describe, model_table):
            try:
                look(path)
            except StorageError:
                verdict = "refused"
        try:
            model = load(path)
        except StorageError as error:
            verdict = "refused"
            if "allocat" in str(error).lower():
                verdict, is_finding = f"wants memory: {error}", True
        else:
            verdict = "works"
            if found := faults(model):
                verdict, is_finding = found, True
    except (Exception, TooLong) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {str(error)[:150]}"
        verdict, is_finding = text, True
    taken = _memory("VmHWM") - before
    if taken > LIMIT_BYTES:
        verdict, is_finding = f"{taken / 1e9:.2f} GB ({verdict})", True
    return Outcome(verdict, is_finding, taken)


def faults(model: Any) -> str:
    """What is wrong with the answers of a loaded model, "" where nothing is."""
    if not isinstance(model.n_features_in_, int) or not 0 < model.n_features_in_ <= 10**4:
        return f"{model.n_features_in_} features"
    x = np.random.default_rng(0).normal(size=(3, model.n_features_in_))
    names = getattr(model, "feature_names_in_", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if names is not None else "error")
        labels = model.predict(x)
        if len(labels) != 3:
            return f"{len(labels)} predictions for 3 rows"
        if hasattr(model, "classes_"):
            if not set(labels.tolist()) <= set(model.classes_.tolist()):
                return "labels that are no classes"
            if not all(model.classes_[i] < model.classes_[i + 1] for i in range(len(model.classes_) - 1)):
                return "classes out of order"
            answers = [model.predict_proba(x)] if hasattr(model, "predict_proba") else []
            answers += [model.decision_function(x)] if hasattr(model, "decision_function") else []
            if answers and hasattr(model, "predict_proba") and answers[0].shape != (3, len(model.classes_)):
                return f"probabilities of shape {answers[0].shape}"
        else:
            answers = [labels]
            if "return_std" in type(model).predict.__code__.co_varnames:
                answers += model.predict(x, return_std=True)
        if not all(np.isfinite(each).all() for each in answers):
            return "predictions that are not finite"
        if hasattr(model, "sample_orbit") and not np.isfinite(model.sample_orbit(x, 2)).all():
            return "an orbit that is not finite"
        for tell in ("summary", "table"):
            if hasattr(model, tell):
                getattr(model, tell)()
        _ = repr(model), str(getattr(model, "certificate_", "")), clone(model)
    return ""


def _start_peak() -> int:
    """The memory that the process holds now, in bytes, from where its peak is measured."""
    with contextlib.suppress(OSError):
        (PROCESS / "clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    """What Linux says of this process, in bytes; 0 where there is no such file."""
    with contextlib.suppress(OSError):
        lines = (PROCESS / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
    return 0


def main() -> int:
    """Try many mutants, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the mutants that were found wanting")
    options = parser.parse_args()

    def stop(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGPROF, stop)
    models = {name: saved_model(name) for name in MODELS}
    # a guard of the machine, far above what is found by measuring
    most = _memory("VmSize") + 2**32
    if most > 2**32:
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    verdicts: collections.Counter[str] = collections.Counter()
    findings, most = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, data in models.items():
            found = outcome(sealed(opened(data)), Path(folder))
            if found.verdict != "works":
                findings += 1
                print(f"{name}, which nobody edited: {found.verdict}")
        for seed in range(options.seed, options.seed + options.count):
            what, data = mutant(models, seed)
            signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
            found = outcome(data, Path(folder))
            signal.setitimer(signal.ITIMER_PROF, 0)
            most = max(most, found.num_bytes)
            verdicts["finding" if found.is_finding else found.verdict] += 1
            if found.is_finding:
                findings += 1
                print(f"{what}: {found.verdict}")
                if options.keep is not None:
                    (options.keep / f"{seed}.orbitwise").write_bytes(data)
    print(
        f"{dict(verdicts)}; one file took {most / 1e9:.2f} GB at most, and the process "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB in all"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
