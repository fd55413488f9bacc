"""What a file tells of its model before the model is built: written when saving, checked when shown."""

from __future__ import annotations

from types import NoneType
from typing import Any

import numpy as np

from orbitwise.orbits.certainty import describe_certainty
from orbitwise.storage import machines, support_vectors
from orbitwise.storage.container import StorageError
from orbitwise.storage.reader import Reader
from orbitwise.storage.recipes import RECORD, Field

TEXT = Field(str)
COUNT = Field(int, least=0, most=2**53)
SUMMARY = {
    "converged": Field(bool),
    "evidence_kind": TEXT,
    "functional": TEXT,
    "image_shape": Field((tuple, list, NoneType), each=int, least=1),
    "inference": TEXT,
    "kernel": TEXT,
    "learned": Field(dict),
    "learned_errors": Field(dict, each=(int, float), is_record=True),
    "learned_text": TEXT,
    "log_evidence": RECORD,
    "log_evidence_error": RECORD,
    "n_features": COUNT,
    "noise": Field((list, int, float), each=(int, float), is_record=True),
    "orbit": Field((str, NoneType)),
}
OPTIONAL = {
    "certificate": TEXT,
    "channels": Field((str, NoneType)),
    "classes": Field(list, each=str),
    "learned_error_text": TEXT,
    "num_rows": COUNT,
}
BESIDE = {"estimator": TEXT, "notes": Field(list, each=str), "versions": Field(dict, each=str)}


def told(structure: dict[str, Any]) -> dict[str, Any]:
    """What a file says of itself, each entry of its type, or a StorageError."""
    summary = structure.get("summary")
    given = summary.get("mapping") if isinstance(summary, dict) else None
    if not isinstance(given, dict):
        raise StorageError("The file is damaged or hostile: it has no summary.")
    fields = SUMMARY | {name: field for name, field in OPTIONAL.items() if name in given}
    reader = Reader({})
    about = reader.arguments(given, fields, "its summary")
    beside = {name: structure.get(name) for name in BESIDE}
    beside["versions"] = {"mapping": beside["versions"]}
    return {**about, **reader.arguments(beside, BESIDE, "the file")}


def summary_of(model: Any) -> dict[str, Any]:
    """What people want to know of a model before they load it."""
    if hasattr(model, "svc_"):
        summary = support_vectors.support_summary(model)
    else:
        summary = machines.machine_summary(model) if hasattr(model, "machine_") else _process_summary(model)
    if hasattr(model, "classes_"):
        summary["classes"] = [str(each) for each in model.classes_[:100]]
    if hasattr(model, "certificate_"):
        summary["certificate"] = str(model.certificate_)
    return summary


def _process_summary(model: Any) -> dict[str, Any]:
    orbit, errors = model.orbit_, getattr(model, "_orbit_errors", {})
    intervals = model.orbit_intervals_ if errors else {}
    return {
        "n_features": model.n_features_in_,
        "image_shape": model._image_shape,
        "channels": getattr(model, "channels_", None),
        "inference": getattr(model, "inference_", "sparse"),
        "converged": model.converged_,
        "log_evidence": model.log_evidence_,
        "log_evidence_error": model.log_evidence_error_,
        "evidence_kind": model.evidence_kind_,
        "noise": np.asarray(getattr(model, "noise_", [])).tolist(),
        "kernel": type(model.kernel_).__name__,
        "functional": type(model.functional_).__name__,
        "orbit": None if orbit is None else type(orbit).__name__,
        "learned": {} if orbit is None else orbit.learned(),
        "learned_text": "" if orbit is None else orbit.describe(),
        "learned_errors": errors,
        "learned_error_text": ""
        if orbit is None
        else describe_certainty(orbit.learned(), errors, intervals, orbit.units()),
    }
