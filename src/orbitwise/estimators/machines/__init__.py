"""Kernel machines: what their estimators share, what they learn from, and how their settings are chosen."""

__all__: list[str] = []
