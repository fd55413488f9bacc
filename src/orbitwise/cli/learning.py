"""One run of `orbitwise learn`: every candidate is fitted and saved, and the best becomes the model."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import math
import os
import platform
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from scipy.stats import norm

from orbitwise import datasets
from orbitwise.cli.data import Data, Task, checked_targets
from orbitwise.cli.errors import CommandError, sentence
from orbitwise.cli.folders import FORMAT, Folder, digest_of, file_digest
from orbitwise.cli.invariances import IMAGE_CANDIDATES, has_images, parse
from orbitwise.cli.showing import Metrics, comparison_table
from orbitwise.cli.watching import Part, Stopwatch, Watch, parts_of_search
from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.engines import COLLAPSED_ROWS, EXACT_ROWS
from orbitwise.estimators.estimator import (
    argument_to_raise,
    fit_quietly,
    iterations_of,
    num_nodes_of,
    shortfall,
    steps_of,
)
from orbitwise.estimators.invariances import Invariance
from orbitwise.estimators.learned_ranges import most_nodes
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.estimators.validation import check_sizes
from orbitwise.selection.compare import (
    Candidate,
    Comparison,
    candidate_of,
    fit_from_member,
    judge,
    learned_text,
)
from orbitwise.selection.differences import CommonNodes
from orbitwise.storage import StorageError, load
from orbitwise.storage.files import packed

MOST_EXAMPLES = 2000
ERROR_SECONDS = 20.0
"""The command computes error bars of learned ranges, for its report, if that takes no longer."""


@final
@dataclass(frozen=True)
class Plan:
    """What is to be learned, and how."""

    task: Task
    names: Sequence[str]
    seed: int = 0
    device: str = "cpu"
    options: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, data: Data) -> dict[str, Any]:
        """What must be the same for a run to go on."""
        about = {"rows": len(data), "inputs": data.X.shape[1], "target": data.target, "digest": _digest(data)}
        chosen = {
            "task": self.task,
            "invariances": list(self.names),
            "seed": self.seed,
            "device": self.device,
        }
        # the same numbers in another order are other images
        order = {} if data.channels is None else {"channels": data.channels}
        return {**about, **order, **chosen, "options": dict(self.options)}


@final
@dataclass(frozen=True)
class Outcome:
    """The comparison, and why candidates ended early, by name."""

    comparison: Comparison
    stopped: Mapping[str, str]


def learn(data: Data, plan: Plan, folder: Folder, watch: Watch) -> Outcome:
    """Fit what is not fitted yet; what ended early is not fitted again unless it is resumed later."""
    check_device(plan.device)
    invariances = [parse(name, data) for name in plan.names]
    fitted: list[Candidate] = []
    stopped: dict[str, str] = {}
    with watch.signals():
        for number, (name, invariance) in enumerate(zip(plan.names, invariances, strict=True)):
            found = _finished(data, plan, folder, watch, number, name)
            if found is None and not (watch.is_over and fitted):
                share = 1 / (len(invariances) - number)
                found = _fit(data, plan, folder, watch, (number, name, invariance), share, stopped)
            elif found is None:
                stopped[name] = "not started"
            fitted += [] if found is None else [found]
        if not fitted:
            raise KeyboardInterrupt
        refit = partial(_refit, plan=plan, data=data, folder=folder, watch=watch, stopped=stopped)
        # a fit that resumed knows no bound of half as many inducing points, and must end as one that did not
        same = [replace(each, half_bound=None) for each in fitted]
        comparison = judge(same, data.X, data.targets, refit)
    kept = comparison.best
    best = _with_errors(data, plan, folder, Watch(watch.console), kept)
    candidates = tuple(best if each is kept else each for each in comparison.candidates)
    return Outcome(replace(comparison, candidates=candidates), stopped)


def _refit(
    candidate: Candidate,
    member: Candidate,
    nodes: CommonNodes,
    X: ArrayLike,
    y: ArrayLike,
    *,
    plan: Plan,
    data: Data,
    folder: Folder,
    watch: Watch,
    stopped: dict[str, str],
) -> Candidate:
    """Fit a family again that ended behind its member, and keep what is better; not when time is over."""
    if watch.is_over:
        return candidate
    number, begun = list(plan.names).index(candidate.name), candidate.estimator
    name = f"{candidate.name} from {member.name}"
    with watch.candidate(name, lambda: _parts(begun, data)) as (callback, _):
        found = fit_from_member(candidate, member, nodes, X, y, callback)
    if found.estimator is not begun:
        found.estimator.set_params(checkpoint=None, callback=None)
        # a replay of its progress would lead to the first fit, so its error bars are stored now
        about = {"continued_from": member.name, "stopped": stopped.get(candidate.name)}
        _keep(data, plan, folder, number, found, packed(found.estimator), about)
    return found


def _with_errors(data: Data, plan: Plan, folder: Folder, watch: Watch, best: Candidate) -> Candidate:
    """Save the best candidate as the model, with error bars of what it learned.

    These need a fit: a candidate of an earlier run is replayed, in full, from the progress it left.
    """
    with contextlib.suppress(CommandError, StorageError):
        _, done = folder.one_run()
        if done.get("finished") and done.get("best") == best.name:
            return replace(best, estimator=load(folder.model, plan.device))
    number = list(plan.names).index(best.name)
    orbit = best.estimator.orbit_
    about = folder.read(folder.candidate(number, best.name).with_suffix(".json")) or {}
    is_replayed = not best.estimator._learned_parameters and about.get("continued_from") is None
    if is_replayed and orbit is not None and orbit.learned():
        which = (number, best.name, parse(best.name, data))
        again = _fit(data, plan, folder, watch, which, 1.0, {})
        if again is not None:
            best = replace(best, estimator=again.estimator, seconds=again.seconds)
    folder.write_bytes(folder.model, packed_quietly(best.estimator))
    return best


def estimator_of(plan: Plan, data: Data, invariance: Invariance) -> Any:
    """The estimator for a task, not fitted."""
    kind: Any = InvariantGPClassifier if plan.task == "classification" else InvariantGPRegressor
    shape = data.shape if has_images(plan.names, data) else None
    return kind(
        invariance=invariance,
        image_shape=shape,
        channels="auto" if data.channels is None else data.channels,
        random_state=plan.seed,
        device=plan.device,
        **plan.options,
    )


def write_examples(folder: Folder, data: Data, test: Data | None, seed: int) -> None:
    """Keep some rows for the report."""
    parts = {"train": data.take(MOST_EXAMPLES, seed)}
    parts |= {} if test is None else {"test": test.take(MOST_EXAMPLES, seed)}
    arrays = {f"x_{name}": part.X for name, part in parts.items()}
    arrays |= {f"y_{name}": part.y for name, part in parts.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    folder.write_bytes(folder.examples, buffer.getvalue())


def packed_quietly(estimator: Any) -> bytes:
    """The file of an estimator without its callback."""
    callback = estimator.callback
    content = packed(estimator.set_params(callback=None), ERROR_SECONDS)
    estimator.set_params(callback=callback)
    return content


def check_device(device: str) -> None:
    """Raise a CommandError where there is no such device."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split()).partition(".")[0]
        raise CommandError(f"--device {device} is not here ({reason}); use --device cpu") from error


def _fit(
    data: Data,
    plan: Plan,
    folder: Folder,
    watch: Watch,
    which: tuple[int, str, Invariance],
    share: float,
    stopped: dict[str, str],
) -> Candidate | None:
    from orbitwise.report import record_ranges

    number, name, invariance = which
    progress = folder.progress(number, name)
    estimator = estimator_of(plan, data, invariance)
    stopwatch = Stopwatch(progress / "seconds.txt")
    with watch.candidate(name, lambda: _parts(estimator, data), share) as (callback, reasons):

        def told(step: int, bound: float) -> None:
            stopwatch.keep()
            callback(step, bound)

        estimator.set_params(checkpoint=str(progress), callback=told)
        ranges = record_ranges(estimator)
        try:
            fit_quietly(estimator, data.X, data.y)
        except KeyboardInterrupt:
            stopped[name] = "interrupted"
            return None
        finally:
            stopwatch.keep(0.0)
    estimator.set_params(checkpoint=None, callback=None)
    seconds = stopwatch.seconds
    if data.columns is not None:
        estimator.feature_names_in_ = np.array(data.columns, dtype=object)
    if reasons:
        stopped[name] = reasons[0]
    found = candidate_of(name, estimator, seconds, len(data))
    content = packed(estimator, error_seconds=0)
    _keep(data, plan, folder, number, found, content, {"stopped": stopped.get(name)})
    # what was recorded is for the report, and is not stored
    ranges.then = None
    estimator.set_params(callback=ranges)
    return found


def _keep(
    data: Data,
    plan: Plan,
    folder: Folder,
    number: int,
    candidate: Candidate,
    content: bytes,
    about: Mapping[str, Any],
) -> None:
    """Write the file of a candidate, and what ties it to its data and settings."""
    file = folder.candidate(number, candidate.name)
    folder.write_bytes(file, content)
    tied = {"digest": _candidate_digest(data, plan, candidate.name), "sha256": file_digest(file)}
    folder.write(
        file.with_suffix(".json"), {"name": candidate.name, "seconds": candidate.seconds, **about, **tied}
    )


def _finished(
    data: Data, plan: Plan, folder: Folder, watch: Watch, number: int, name: str
) -> Candidate | None:
    """A candidate that an earlier process fitted to the end, from these data and with these settings."""
    file = folder.candidate(number, name)
    try:
        about = folder.read(file.with_suffix(".json"))
        # a process that was killed leaves a model that nothing is said of yet
        if about is None or about.get("stopped") is not None or not file.is_file():
            return None
        if about.get("digest") != _candidate_digest(data, plan, name):
            raise CommandError("it was learned from other data or with other settings")
        if about.get("sha256") != file_digest(file):
            raise CommandError("it was changed after it was learned")
        return candidate_of(name, load(file, plan.device), _seconds(about.get("seconds")), len(data))
    except (CommandError, StorageError, OSError) as error:
        kept = f", but kept as {_set_aside(file).name}" if os.path.lexists(file) else ""
        watch.console.print(
            f"note: {file} is not used ({sentence(error)}){kept}; {name} is learned anew",
            markup=False,
            soft_wrap=True,
        )
        return None


def _set_aside(file: Path) -> Path:
    """Give a file that may be somebody's a name of its own."""
    names = (file.with_suffix(f".foreign{number or ''}") for number in itertools.count())
    aside = next(each for each in names if not os.path.lexists(each))
    os.replace(file, aside)
    return aside


def _candidate_digest(data: Data, plan: Plan, name: str) -> str:
    """What ties a candidate to its data and settings, whatever it is compared with."""
    return digest_of({**plan.settings(data), "invariances": name})


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < math.inf else 0.0


def _parts(estimator: Any, data: Data) -> list[Part]:
    """What a fit that has begun will do, for a bar."""
    count, width = data.X.shape
    engine = estimator.inference
    if engine == "auto":
        engine = "exact" if count <= EXACT_ROWS else "collapsed" if count <= COLLAPSED_ROWS else "variational"
    if engine == "variational":
        return [Part(steps_of(estimator))]
    if engine == "collapsed" or not getattr(estimator.orbit_, "is_drawn", False):
        return [Part(iterations_of(estimator))]
    nodes = estimator.max_nodes if estimator.num_nodes is None else estimator.num_nodes
    return parts_of_search(
        most_nodes(count, width, torch.device(estimator.device)) if nodes is None else nodes
    )


def _digest(data: Data) -> str:
    """Of all that is learned from: inputs and targets, and how they are to be read."""
    digest = hashlib.sha256(f"{data.X.dtype} {data.X.shape}".encode())
    digest.update(np.ascontiguousarray(data.X).tobytes())
    y = np.zeros(0) if data.y is None else data.y
    kinds = None if data.kinds is None else np.asarray(data.kinds).tolist()
    columns = None if data.columns is None else list(data.columns)
    shape = None if data.shape is None else list(data.shape)
    parts = [y.dtype.kind, y.shape, y.tolist(), columns, shape, data.is_image, kinds]
    digest.update(json.dumps(parts, default=str).encode())
    return digest.hexdigest()


def measure(model: Any, X: NDArray[np.float64], y: NDArray[Any]) -> dict[str, float]:
    """Error and log loss of classes; root mean square error and log density of numbers."""
    with unnamed():
        if hasattr(model, "predict_proba"):
            probabilities = model.predict_proba(X)
            codes = np.searchsorted(model.classes_, y)
            right = probabilities[np.arange(len(y)), codes]
            wrong = model.classes_[probabilities.argmax(1)] != y
            return {"error": float(wrong.mean()), "log_loss": float(-np.log(right.clip(1e-300)).mean())}
        mean, deviation = model.predict(X, return_std=True, include_noise=True)
    density = norm.logpdf(y, mean, deviation)
    return {"rmse": float(np.sqrt(np.mean((mean - y) ** 2))), "log_density": float(density.mean())}


def check_classes(y: NDArray[Any], known: NDArray[Any]) -> None:
    """Raise a CommandError where test labels hold a class that nothing was learned of."""
    if new := sorted({str(each) for each in y} - {str(each) for each in known}):
        raise CommandError(f"the test data hold the class {new[0]!r}, which the training data do not")


@contextmanager
def unnamed() -> Iterator[None]:
    """Arrays whose columns were matched by name already need no names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names", category=UserWarning)
        yield


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
        _write_report(folder, data, test, plan, outcome, console, settings.get("command"))
    return outcome


def _write_report(
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
    from orbitwise.cli.pictures import write_picture
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


NUM_TRAINING = 300


def demo_data(seed: int = 0) -> tuple[Data, Data]:
    """Training and test images of digits, 8 x 8 pixels between 0 and 1, chosen at random."""
    digits = datasets.load("digits")
    order = np.random.default_rng(seed).permutation(len(digits.x))
    parts = []
    for rows in (order[:NUM_TRAINING], order[NUM_TRAINING:]):
        x = digits.x[rows].reshape(len(rows), -1).astype(np.float64) / 16
        labels = [f"row {row}" for row in rows]
        parts.append(Data(x, digits.y[rows], labels, None, (8, 8), True, "digit"))
    return parts[0], parts[1]


def demo_plan(seed: int = 0, device: str = "cpu", options: Mapping[str, Any] | None = None) -> Plan:
    """The usual candidates for images, with the options of their estimators, usually none."""
    return Plan("classification", IMAGE_CANDIDATES, seed, device, {} if options is None else options)
