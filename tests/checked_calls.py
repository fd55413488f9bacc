"""Shapes and types are checked at the first calls of every function in each test, not at all of them.

The import hook of jaxtyping checks every call, which takes half of the time of the whole suite, and compiles
a check for every function inside a function whenever that is made. What holds at the first calls of a test
is not checked again in that test. Counting by test keeps it the same whatever runs beside or before it.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import jaxtyping

FIRST_CALLS = 5
check_every_call = jaxtyping.jaxtyped


class Test:
    """The number of the test that runs."""

    number = 0


def check_first_calls(*context: str, typechecker: Any = None) -> Any:
    """`jaxtyping.jaxtyped` for the first calls of a function in every test; classes are checked as ever."""
    if context:
        return check_every_call(*context)
    check = check_every_call(typechecker=typechecker)

    def decorate(function: Any) -> Any:
        if isinstance(function, type):
            return check(function)
        if "<locals>" in function.__qualname__:
            return function
        checked: Any = None
        test, count = -1, 0

        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal checked, test, count
            if test != Test.number:
                test, count = Test.number, 0
            count += 1
            if count > FIRST_CALLS:
                return function(*arguments, **named)
            if checked is None:
                checked = check(function)  # compiled when it is needed
            return checked(*arguments, **named)

        # warnings that look for the user's line pass over what jaxtyping adds
        named_globals = {**globals(), "__name__": "jaxtyping.first_calls"}
        wrapper = FunctionType(call.__code__, named_globals, function.__name__, None, call.__closure__)
        return functools.wraps(function)(wrapper)

    return decorate


def install() -> None:
    """Let modules that are imported from now on, by the hook of jaxtyping, check first calls only."""
    jaxtyping.jaxtyped = check_first_calls
