"""Learning: every candidate is fitted and saved at once; the one with the most evidence is the model."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike

from orbitwise.cli.data import Data
from orbitwise.cli.errors import CommandError, sentence
from orbitwise.cli.folders import Folder, digest_of, file_digest
from orbitwise.cli.forecast import Part, parts_of_search
from orbitwise.cli.invariances import has_images, parse
from orbitwise.cli.targets import Task
from orbitwise.cli.watching import Stopwatch, Watch
from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.engines import COLLAPSED_ROWS, EXACT_ROWS
from orbitwise.estimators.estimator import fit_quietly, iterations_of, steps_of
from orbitwise.estimators.invariances import Invariance
from orbitwise.estimators.learned_ranges import most_nodes
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.selection.compare import Candidate, Comparison, candidate_of, fit_from_member, judge
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
    is_replayed = not best.estimator.fit_result_.parameters and about.get("continued_from") is None
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
