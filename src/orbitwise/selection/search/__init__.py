"""Kernel search."""

__all__: list[str] = []
