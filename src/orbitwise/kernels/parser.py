"""The grammar of spelled kernels, by recursive descent; `orbitwise.kernels.spelling` shows it in words."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import final

from orbitwise.kernels.bases import ALIASES, BASES, Base
from orbitwise.kernels.expressions import Expression, Term, add, multiply
from orbitwise.kernels.tokens import SpellingError, Token, tokens_of

COLUMNS = ("columns", "dims")
SHORTER = {"center": "centre", "length": "lengthscale", "period": "period_length"}
LARGEST_POWER = 8
DEEPEST = 50


@final
class Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, num_dims: int | None) -> None:
        self.text, self.num_dims, self.place, self.depth = text, num_dims, 0, 0
        self.tokens = tokens_of(text)

    def whole(self) -> Expression:
        """The expression that all of the text stands for."""
        if self.token.kind == "end":
            raise self._failure("The text is empty; a kernel is spelled as in 'rbf*periodic + rq'.")
        expression = self._sum()
        if self.token.kind != "end":
            raise self._failure(f"Expected '+', '*' or the end, not {self.token.text!r}.")
        return expression

    @property
    def token(self) -> Token:
        """The next word."""
        return self.tokens[self.place]

    def _sum(self) -> Expression:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self._failure(f"Parentheses are nested more than {DEEPEST} deep.")
        parts = [self._product()]
        while self._take("+"):
            parts.append(self._product())
        self.depth -= 1
        return add(*parts)

    def _product(self) -> Expression:
        factor: float | None = None
        parts: list[Expression] = []
        while True:
            position = self.token.position
            power = self._factor()
            if isinstance(power, int | float):
                if power <= 0:
                    raise self._failure("An amplitude is a variance: it must be positive.", position)
                factor = power * (1.0 if factor is None else factor)
            else:
                parts.append(power)
            if not self._take("*"):
                break
        if not parts:
            return Term("constant", values=(("constant", (factor or 1.0,)),))
        return multiply(*parts, factor=factor)

    def _factor(self) -> Expression | float:
        token = self._next()
        if token.kind == "number":
            inner: Expression | float = float(token.text)
        elif token.kind == "name":
            inner = self._term(token)
        elif token.text == "(":
            inner = self._sum()
            self._expect(")")
        else:
            raise self._failure(f"Expected a kernel, a number or '(', not {token.text!r}.", token.position)
        if not (self._take("^") or self._take("**")):
            return inner
        power = self._whole("A power", 1, LARGEST_POWER)
        return float(inner**power) if isinstance(inner, int | float) else multiply(*[inner] * power)

    def _term(self, token: Token) -> Term:
        name, option = self._name(token)
        base = BASES[name]
        columns = self._columns() if self._take("[") else None
        given: dict[str, tuple[float, ...]] = {}
        is_ard = False
        if self._take("("):
            while not self._take(")"):
                start = self.token
                if start.kind == "number":
                    option = self._option(name, base)
                elif start.kind == "name" and start.text == "ard":
                    self._next()
                    is_ard = True
                    if not base.takes_ard:
                        raise self._failure(f"{name} has no lengthscale for each column.", start.position)
                else:
                    key = self._key(name, base)
                    if key in COLUMNS:
                        columns = self._columns("")
                    else:
                        given[key] = self._values(key, base)
                if not self._take(",") and self.token.text != ")":
                    raise self._failure(f"Expected ',' or ')', not {self.token.text!r}.")
        if columns is None:
            columns = self._columns() if self._take("[") else None
        return Term(name, columns, option, tuple(given.items()), is_ard)

    def _name(self, token: Token) -> tuple[str, int | None]:
        name = token.text.lower()
        name = ALIASES.get(name, name)
        if name in BASES:
            option = BASES[name].option
            return name, None if option is None else option[1]
        stem, digits = re.fullmatch(r"(.*?)(\d*)", name).groups()  # pyright: ignore
        base = BASES.get(stem := ALIASES.get(stem, stem))
        if base is not None and base.option is not None and digits:
            return stem, self._bounded(int(digits), stem, base, token.position)
        if name in ("noise", "white"):
            raise self._failure(
                "Noise is no kernel here: estimators learn the noise variance beside it.", token.position
            )
        near = get_close_matches(name, [*BASES, *ALIASES], n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise self._failure(
            f"Unknown kernel {token.text!r}.{hint} Known are {', '.join(BASES)}.", token.position
        )

    def _option(self, name: str, base: Base) -> int:
        position = self.token.position
        if base.option is None:
            raise self._failure(f"{name} takes no plain number; name it, as in {name}({_example(base)}=2).")
        return self._bounded(self._whole(f"The {base.option[0]} of {name}", 0, 10**6), name, base, position)

    def _bounded(self, value: int, name: str, base: Base, position: int) -> int:
        key, _, (least, most) = base.option  # pyright: ignore
        if not least <= value <= most:
            raise self._failure(
                f"The {key} of {name} must be between {least} and {most}, not {value}.", position
            )
        return value

    def _key(self, name: str, base: Base) -> str:
        token = self._next()
        known = (*base.hyperparameters, *COLUMNS, *(("ard",) if base.takes_ard else ()))
        if token.kind != "name":
            raise self._failure(f"Expected an argument of {name}, not {token.text!r}.", token.position)
        key = SHORTER.get(token.text, token.text)
        if key not in known:
            near = get_close_matches(token.text, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            problem = f"{name} has no argument {token.text!r};{hint} it takes {', '.join(known)}."
            raise self._failure(problem, token.position)
        self._expect("=")
        return key

    def _values(self, key: str, base: Base) -> tuple[float, ...]:
        in_brackets = self._take("(")
        values: list[float] = []
        while True:
            token = self._next()
            if token.kind != "number":
                raise self._failure(f"Expected a number for {key}, not {token.text!r}.", token.position)
            if key in base.positive and float(token.text) <= 0:
                raise self._failure(f"{key} must be positive, not {token.text}.", token.position)
            values.append(float(token.text))
            if self.token.text != "," or (not in_brackets and self.tokens[self.place + 1].kind != "number"):
                break
            self._next()
        if in_brackets:
            self._expect(")")
        return tuple(values)

    def _columns(self, closing: str = "]") -> tuple[int, ...]:
        most = 10**6 if self.num_dims is None else self.num_dims - 1
        columns = [self._whole("A column", 0, most)]
        while self.token.text == "," and self.tokens[self.place + 1].kind == "number":
            self._next()
            position = self.token.position
            columns.append(self._whole("A column", 0, most))
            if columns[-1] in columns[:-1]:
                raise self._failure(f"Column {columns[-1]} is named twice.", position)
        if closing:
            self._expect(closing)
        return tuple(columns)

    def _whole(self, what: str, least: int, most: int) -> int:
        token = self._next()
        if token.kind != "number" or not token.text.isdigit() or not least <= int(token.text) <= most:
            problem = f"{what} must be a whole number between {least} and {most}, not {token.text!r}."
            raise self._failure(problem, token.position)
        return int(token.text)

    def _next(self) -> Token:
        token = self.token
        self.place = min(self.place + 1, len(self.tokens) - 1)
        return token

    def _take(self, mark: str) -> bool:
        found = self.token.kind == "mark" and self.token.text == mark
        if found:
            self._next()
        return found

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise self._failure(f"Expected {mark!r}, not {self.token.text!r}.")

    def _failure(self, problem: str, position: int | None = None) -> SpellingError:
        return SpellingError(self.text, self.token.position if position is None else position, problem)


def _example(base: Base) -> str:
    return base.hyperparameters[0] if base.hyperparameters else "dims"
