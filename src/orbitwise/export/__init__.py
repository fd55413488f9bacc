"""A learned orbit handed back: as an augmentation for other people's training code, and as JSON."""

from orbitwise.export.faithful import OrbitTransform
from orbitwise.export.json_form import from_json, to_json
from orbitwise.export.libraries import to_albumentations, to_kornia, to_torchvision
from orbitwise.export.nearest import Builtin
from orbitwise.export.scripts import run_script, to_script

__all__ = [
    "Builtin",
    "OrbitTransform",
    "from_json",
    "run_script",
    "to_albumentations",
    "to_json",
    "to_kornia",
    "to_script",
    "to_torchvision",
]
