"""The `orbitwise` command: learn an invariance from files, predict, export, and see what was learned."""

from orbitwise.cli.app import main

__all__ = ["main"]
