"""Storage: fitted estimators in one file of safetensors and JSON, never pickle, and atomic writing."""

from orbitwise.inference.disk import write_atomically
from orbitwise.storage.container import StorageError
from orbitwise.storage.models import describe, load, save

__all__ = ["StorageError", "describe", "load", "save", "write_atomically"]
