"""Calls as data: made, and written down as Python that makes the same."""

import ast
from types import SimpleNamespace

from orbitwise.export.calls import Call, Constant, code, make, modules_of


def recorded(name):
    return lambda *given, **options: (name, given, options)


LIBRARY = SimpleNamespace(Turn=recorded("Turn"), Both=recorded("Both"), Mode=SimpleNamespace(NEAR=7))
TURN = Call("Turn", ((-1.5, 2), [True, None, "a'b"]), {"mode": Constant("Mode.NEAR"), "by": {"x": (1.0,)}})
CALL = Call("Both", ([TURN, Call("Turn")],), {"width": Constant("pi", "math")})


def test_what_is_written_makes_what_is_made():
    import math

    made = make(CALL, LIBRARY)
    assert eval(code(CALL, "library"), {"library": LIBRARY, "math": math}) == made
    assert made[1][0][0] == ("Turn", ((-1.5, 2), [True, None, "a'b"]), {"mode": 7, "by": {"x": (1.0,)}})
    assert made[2] == {"width": math.pi}
    ast.parse(code(CALL, "library"))


def test_other_modules_are_named():
    assert modules_of(CALL) == {"math"}
    assert modules_of(TURN) == set()


def test_nothing_is_made_of_nothing():
    assert make(None, LIBRARY) is None
