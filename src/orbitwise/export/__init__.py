"""A learned orbit handed back: as an augmentation for other people's training code, and as JSON."""

from orbitwise.export.albumentations import to_albumentations
from orbitwise.export.builtin import Builtin
from orbitwise.export.faithful import OrbitTransform
from orbitwise.export.json_form import from_json, to_json
from orbitwise.export.kornia import to_kornia
from orbitwise.export.scripts import run_script, to_script
from orbitwise.export.torchvision import to_torchvision

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
