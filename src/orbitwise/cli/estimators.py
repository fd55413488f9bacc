"""The estimators that `orbitwise learn --estimator` offers, and their settings as they are written there.

Settings are read by the annotations of the constructors, so that all of them can be given.
"""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from orbitwise import estimators, selection
from orbitwise.cli.data import Task
from orbitwise.cli.errors import CommandError, nearest

Choice = Literal["gp", "sparse", "svc", "laplacian", "ridge", "virtual", "auto"]
CLASSES: Mapping[Choice, Mapping[Task, str]] = {
    "gp": {"classification": "InvariantGPClassifier", "regression": "InvariantGPRegressor"},
    "sparse": {"regression": "SparseGPRegressor"},
    "svc": {"classification": "InvariantSVC"},
    "laplacian": {"classification": "LaplacianSVC"},
    "ridge": {"regression": "InvariantKernelRidge"},
    "virtual": {"classification": "VirtualSVC"},
    "auto": {"regression": "AutoGPRegressor"},
}
COMPARED: tuple[Choice, ...] = ("gp", "sparse")
"""Those whose invariances are compared by evidence."""
NOT_TEXT = ("callback", "checkpoint", "kernel", "invariance", "verbose", "warm_start")
"""Settings that are objects of Python, or options of their own."""


def class_of(choice: Choice, task: Task) -> type[Any]:
    """The class of an estimator, or a CommandError that says which ones suit the task."""
    name = CLASSES[choice].get(task)
    if name is None:
        (other,) = CLASSES[choice]
        suitable = ", ".join(each for each, tasks in CLASSES.items() if task in tasks)
        raise CommandError(
            f"--estimator {choice} is for {other}, but the task is {task}: take one of {suitable}, or --task "
            f"{other} if the target is to be treated that way"
        )
    return getattr(selection if hasattr(selection, name) else estimators, name)


def settings_of(kind: type[Any], given: Mapping[str, object]) -> dict[str, Any]:
    """The settings of a class as its constructor takes them; texts are read by its annotations."""
    hints = get_type_hints(kind.__init__)
    known = [each for each in inspect.signature(kind).parameters if each not in NOT_TEXT]
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise CommandError(
                f"{kind.__name__} has no setting {name!r}; {nearest(name, known)} Settings that can be given "
                f"are {', '.join(known)}"
            )
        found[name] = read_setting(name, hints[name], value) if isinstance(value, str) else value
    return found


def read_setting(name: str, hint: object, text: str) -> object:
    """A setting from its text: a word, a number, numbers between commas, true, false or none."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = {str(word): word for part in parts if get_origin(part) is Literal for word in get_args(part)}
    accepted = [*words]
    if text in words:
        return words[text]
    if NoneType in parts:
        accepted.append("none")
        if text.lower() == "none":
            return None
    if bool in parts:
        accepted += ["true", "false"]
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
    for part, meaning in ((int, "a whole number"), (float, "a number")):
        if part in parts:
            accepted.append(meaning)
            try:
                return part(text)
            except ValueError:
                continue
    if any(get_origin(part) in (collections.abc.Sequence, tuple, list) for part in parts):
        accepted.append("values between commas")
        return [_number(each) for each in text.split(",")]
    if str in parts:
        return text
    raise CommandError(f"{name} cannot be {text!r} here; it takes {', '.join(accepted) or 'no text'}")


def _number(text: str) -> float | int | str:
    """A whole number, another number, or a word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()


def pairs_of(texts: list[str]) -> dict[str, str]:
    """Settings given as NAME=VALUE."""
    pairs = [text.partition("=") for text in texts]
    for name, sign, _ in pairs:
        if not sign or not name:
            raise CommandError(f"--setting {name}: give NAME=VALUE, as in --setting tolerance=0.1")
    return {name.strip().replace("-", "_"): value.strip() for name, _, value in pairs}
