"""Files of earlier versions, rewritten as today's before they are read, so that the same checks apply.

Those of the first format held the form of inputs, the scale of targets and the functional of a model one by
one. Some classes and arguments had other names.
"""

from __future__ import annotations

from collections.abc import Mapping

ARGUMENTS = {"Process": {"mean_module": "mean"}, "Totals": {"count": "num_rows"}}
"""By class, arguments that had other names, with those of today."""


def upgraded(structure: Mapping[str, object]) -> dict[str, object]:
    """Today's structure of a file; one of today stays as it is."""
    nodes, fitted = structure.get("objects"), structure.get("fitted")
    if not isinstance(nodes, list) or not isinstance(fitted, dict):
        return dict(structure)
    objects, fitted = [_renamed(node) for node in nodes], dict(fitted)

    def added(node: Mapping[str, object]) -> dict[str, int]:
        objects.append(node)
        return {"object": len(objects) - 1}

    if "form_" not in fitted:
        image, own = (fitted.pop(name, None) for name in ("_image_shape", "_input_shape"))
        # all images had their channels first, before there was a choice
        sides = image.get("tuple") if isinstance(image, dict) else image
        first = "first" if isinstance(sides, list) and len(sides) == 3 else None
        form = {"image_shape": image, "channels": fitted.pop("channels_", first), "input_shape": own}
        fitted["form_"] = added(_node("InputForm", {**form, "background": fitted.pop("_background", 0.0)}))
    if "_shift" in fitted:
        parts = {name: fitted.pop(f"_{name}", None) for name in ("shift", "scale", "is_vector")}
        fitted["target_scale_"] = added(_node("TargetScale", parts))
    elif "_scale" in fitted:
        fitted["scale_"] = fitted.pop("_scale")
    for name in ("_model", "_problem_"):
        if name in fitted:
            fitted["model_"] = fitted.pop(name)
    if "_functional" in fitted:
        functional, reference = fitted.pop("_functional"), fitted.get("model_")
        place = reference.get("object") if isinstance(reference, dict) else None
        model = objects[place] if isinstance(place, int) and 0 <= place < len(nodes) else None
        if isinstance(model, dict) and isinstance(model.get("arguments"), dict):
            arguments = {**model["arguments"], "functional": functional}
            fitted["model_"] = added({**model, "arguments": arguments})
    return {**structure, "objects": objects, "fitted": fitted}


def _node(kind: str, arguments: Mapping[str, object]) -> dict[str, object]:
    """An object without tensors of its own."""
    return {"type": kind, "arguments": arguments, "attributes": {}, "state": {}, "learned": []}


def _renamed(node: object) -> object:
    """An object under the names of today."""
    if not isinstance(node, dict):
        return node
    kind, arguments = node.get("type"), node.get("arguments")
    names = ARGUMENTS.get(kind, {}) if isinstance(kind, str) else {}
    if isinstance(arguments, dict):
        arguments = {names.get(name, name): each for name, each in arguments.items()}
    return {**node, "type": "RegressionModel" if kind == "Problem" else kind, "arguments": arguments}
