"""Layer by layer, how far the recommended variant is from the model as given: for a page, also where all is well."""

from __future__ import annotations

import msgspec

from headrace.base.plan import ModelPlan
from headrace.optimize.better_plan import find_recommended
from headrace.runs.formats.optimization import OptimizationDocument
from headrace.validate.items import Items
from headrace.validate.layer_errors import ITEMS, first_beyond, layer_errors
from headrace.validate.variant_spec import VariantSpec, variant_text
from headrace.validate.variants import precision_of


def with_layers(document: OptimizationDocument, items: Items) -> OptimizationDocument:
    """Return a search whose recommended variant has its layers' distances; unchanged if they cannot be measured.

    Args:
        document: The search.
        items: As the model takes them.
    """
    chosen = find_recommended(document)
    if chosen is None or chosen.validation.layers or chosen.kind == "trained":  # another network has other tensors
        return document
    spec = VariantSpec(chosen.candidate, ModelPlan(**chosen.settings))
    given = ModelPlan(artifact=document.model.file, threads=chosen.settings.get("threads"))  # not what a Plan uses
    try:
        layers = layer_errors(VariantSpec(variant_text(given), given), spec, items[:ITEMS])
    except Exception:  # it is a picture more and decides nothing; engines raise their own types
        return document
    first = first_beyond(layers, precision_of(spec))
    validation = msgspec.structs.replace(chosen.validation, layers=layers, diverges_at=first.name if first else "")
    shown = msgspec.structs.replace(chosen, validation=validation)
    attempts = tuple(shown if one is chosen else one for one in document.attempts)
    return msgspec.structs.replace(document, attempts=attempts)
