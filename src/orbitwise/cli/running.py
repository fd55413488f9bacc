"""One `learn` from the data to the report, as `orbitwise learn` and `orbitwise demo` run it."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from orbitwise.cli.data import Data
from orbitwise.cli.errors import CommandError, sentence
from orbitwise.cli.folders import FORMAT, Folder, digest_of, file_digest
from orbitwise.cli.learning import Outcome, Plan, learn, write_examples
from orbitwise.cli.metrics import check_classes, measure
from orbitwise.cli.showing import Metrics, comparison_table
from orbitwise.cli.targets import checked_targets
from orbitwise.cli.watching import Watch
from orbitwise.estimators.estimator import (
    argument_to_raise,
    iterations_of,
    num_nodes_of,
    shortfall,
    steps_of,
)
from orbitwise.estimators.validation import check_sizes
from orbitwise.selection.compare import Candidate, learned_text


def run(
    data: Data,
    test: Data | None,
    plan: Plan,
    folder: Folder,
    console: Console,
    about: Mapping[str, Any],
    resume: bool = False,
    force: bool = False,
    time_limit: float | None = None,
    with_report: bool = True,
) -> Outcome:
    """Learn, save, measure, write the report, and say what was found."""
    data = replace(data, y=checked_targets(data.targets, plan.task, data.target))
    if test is not None:
        y = _same_kind(test.targets, data.targets, test.target)
        test = replace(test, y=y)
        if plan.task == "classification":
            check_classes(y, np.unique(data.targets))
    # what `fit` would refuse must not cost the results that --force replaces
    numbers = np.asarray(data.targets, dtype=np.float64) if plan.task == "regression" else None
    check_sizes(np.asarray(data.X, dtype=np.float64), numbers)
    with folder.writing():
        return _run(data, test, plan, folder, console, about, resume, force, time_limit, with_report)


def _run(
    data: Data,
    test: Data | None,
    plan: Plan,
    folder: Folder,
    console: Console,
    about: Mapping[str, Any],
    resume: bool,
    force: bool,
    time_limit: float | None,
    with_report: bool,
) -> Outcome:
    settings = {**about, **plan.settings(data), "versions": _versions()}
    if folder.prepare(settings, resume, force):
        console.print(f"going on with {folder.path}")
    write_examples(folder, data, test, plan.seed)
    for note in (*data.notes, *(() if test is None else test.notes)):
        console.print(f"note: {note}", markup=False)
    outcome = learn(data, plan, folder, Watch(console, time_limit))
    metrics = {}
    if test is not None:
        metrics = {
            each.name: measure(each.estimator, test.X, test.targets) for each in outcome.comparison.candidates
        }
    folder.write(folder.comparison, _summary(folder, data, plan, outcome, metrics))
    if not outcome.stopped:
        shutil.rmtree(folder.path / "progress", ignore_errors=True)
    console.print(comparison_table(outcome.comparison, outcome.stopped, metrics))
    if text := learned_text(outcome.comparison.best):
        console.print(f"learned: {text}", markup=False)
    for name, reason in outcome.stopped.items():
        console.print(f"note: {name} was stopped ({reason}); --resume goes on with it")
    if note := _unconverged(outcome):
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    console.print(f"model: {folder.model}", soft_wrap=True, markup=False)
    if with_report:
        _report(folder, data, test, plan, outcome, console, settings.get("command"))
    return outcome


def _report(
    folder: Folder,
    data: Data,
    test: Data | None,
    plan: Plan,
    outcome: Outcome,
    console: Console,
    command: str | None,
) -> None:
    """The report comes last: what goes wrong with it must not cost the model."""
    # drawing takes long to import, and is not always asked for
    from orbitwise.cli.picturing import write_picture
    from orbitwise.report import write_report

    several = len(outcome.comparison.candidates) > 1
    try:
        folder.check_ours(folder.report)
        path: Path = write_report(
            folder.report,
            outcome.comparison.best_estimator,
            data.X,
            data.targets,
            X_test=None if test is None else test.X,
            y_test=None if test is None else test.y,
            comparison=outcome.comparison if several else None,
            command=command,
            seed=plan.seed,
        )
        picture = None
        if outcome.comparison.best_estimator._image_shape is not None:
            picture = write_picture(folder.picture, outcome.comparison, data.X, data.targets, plan.seed)
    except Exception as error:
        console.print(
            f"note: the report could not be written ({sentence(error)}); the model is safe, and "
            f"orbitwise report {folder.path} tries again",
            markup=False,
        )
        return
    if picture is not None:
        console.print(f"picture: {picture}", soft_wrap=True, markup=False)
    console.print(f"report: {path}", soft_wrap=True, markup=False)


def _unconverged(outcome: Outcome) -> str:
    """One line for all candidates that ended by themselves, but before they had converged."""
    ended = [each for each in outcome.comparison.candidates if each.name not in outcome.stopped]
    found = [each for each in ended if shortfall(each.estimator) is not None]
    by_argument: dict[str, list[Candidate]] = {}
    for each in found:
        by_argument.setdefault(argument_to_raise(each.estimator), []).append(each)
    parts = []
    for argument, limited in by_argument.items():
        names, option = ", ".join(each.name for each in limited), f"--{argument.replace('_', '-')}"
        parts.append(
            f"{names} did not converge within {option} {_value(limited[0].estimator, argument)}; a larger "
            f"{option} may still raise the evidence"
        )
    return "; ".join(parts)


def _value(estimator: Any, argument: str) -> Any:
    """The value of an argument, or what None stood for."""
    if argument == "num_steps":
        return steps_of(estimator)
    value = iterations_of(estimator) if argument == "max_iterations" else getattr(estimator, argument)
    return num_nodes_of(estimator) if value is None else value


def _same_kind(y: NDArray[Any], like: NDArray[Any], name: str) -> NDArray[Any]:
    """Test targets as the training targets are: numbers, whole numbers or words."""
    if like.dtype.kind == "U":
        return np.array([str(each) for each in y])
    try:
        return y.astype(np.float64).astype(like.dtype)
    except ValueError as error:
        raise CommandError(
            f"target {name!r} of the test data is not all numbers ({error}), but that of the training data is"
        ) from error


def _summary(folder: Folder, data: Data, plan: Plan, outcome: Outcome, metrics: Metrics) -> dict[str, Any]:
    comparison, names = outcome.comparison, list(plan.names)
    return {
        "format": FORMAT,
        "best": comparison.best.name,
        "digest": digest_of(plan.settings(data)),
        "model": file_digest(folder.model),
        "examples": file_digest(folder.examples),
        "finished": not outcome.stopped,
        "tied": list(comparison.tied),
        "undecided": list(comparison.undecided),
        "verdict": comparison.verdict,
        "num_nodes": comparison.num_nodes,
        "candidates": [
            {
                "name": each.name,
                "file": folder.candidate(names.index(each.name), each.name).name,
                "log_evidence": each.log_evidence,
                "standard_error": each.standard_error,
                "per_datum": each.per_datum,
                "evidence_kind": each.evidence_kind,
                "evidences_on_common_nodes": list(each.evidences),
                "gain_from_half_the_nodes": each.gain,
                "difference": each.difference,
                "difference_error": each.difference_error,
                "learned": {name: list(interval) for name, interval in each.learned.items()},
                "seconds": each.seconds,
                "sha256": file_digest(folder.candidate(names.index(each.name), each.name)),
                "stopped": outcome.stopped.get(each.name),
                "test": dict(metrics.get(each.name, {})),
            }
            for each in comparison.candidates
        ],
    }


def _versions() -> dict[str, str]:
    from orbitwise import __version__

    return {"orbitwise": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
