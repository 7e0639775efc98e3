"""Bits and errors that quantising real keys and values gave, for the quantizers of a model."""

import math
from typing import Any

from dse.core import units
from dse.model.formulas import effective_bits
from dse.model.kv_layout import KvPlan
from dse.quantizers import QuantizerSpec, skipping


def measured(plan: KvPlan) -> dict[str, Any]:
    """Bits and errors that quantising real keys and values gave, weighted by the model's elements on each side."""
    sides = {"key": plan.key_quantizer, "value": plan.value_quantizer}
    kinds = {sides[g.which].bits_kind for g in plan.groups}
    kind = kinds.pop() if len(kinds) == 1 else ", ".join(f"{side} {q.bits_kind}" for side, q in sides.items())
    numbers: dict[str, Any] = dict.fromkeys(("measured_bits", "mse", "sqnr_db", "measured_error", "measured_on"))
    used = {g.which: sides[g.which].measured.get(g.which) for g in plan.groups}
    if (plan.key_quantizer.layers or plan.value_quantizer.layers) and not all(used.values()):
        return {"bits_kind": kind, **_predicted(sides, numbers), **_of_packed_layers(sides)}
    numbers["measured_error"] = _output_error(sides)
    if all(used.values()):
        weights = {side: sum(g.n_stored_layers * g.n_elements for g in plan.groups if g.which == side) for side in used}
        total = sum(weights.values())
        weighted = [(weights[side] / total, m) for side, m in used.items() if m]
        numbers["measured_bits"] = sum(w * units.BITS_PER_BYTE * m.stored_bytes / m.n_elements for w, m in weighted)
        if all(m.mse is not None for _, m in weighted):
            error = sum(w * (m.mse or 0.0) for w, m in weighted)
            signal = sum(w * m.mean_square for w, m in weighted)
            numbers["mse"] = error
            numbers["sqnr_db"] = effective_bits.sqnr_db(signal, error) if signal and error else None
        numbers["measured_on"] = ", ".join(dict.fromkeys(m.data for _, m in weighted))
    return {"bits_kind": kind, **numbers}


def _predicted(sides: dict[str, QuantizerSpec], numbers: dict[str, Any]) -> dict[str, Any]:
    """Add the bits and errors that a layer-wise quantizer file states, if keys and values both use it."""
    predicted = sides["key"].predicted if sides["key"].name == sides["value"].name else {}
    if "stored_bits" in predicted:
        numbers |= {"measured_bits": predicted["stored_bits"], "measured_on": predicted["source"]}
        numbers["measured_error"] = predicted.get("measured_error")
    return numbers


def _of_packed_layers(sides: dict[str, QuantizerSpec]) -> dict[str, Any]:
    """The output's error in the layers that are packed, where one quantizer keeps the others in 16 bits.

    All layers together err by less.
    """
    key, value = sides.values()
    if not skipping.layers_of(key) or key.name != value.name:
        return {}
    packed = next((q.measured.get("key") for q, _ in key.layers if q.family != skipping.SIXTEEN.family), None)
    if packed is None or packed.output_error_both is None:
        return {}
    return {"measured_error": packed.output_error_both, "measured_on": f"{packed.data}, packed layers alone"}


def _output_error(sides: dict[str, QuantizerSpec]) -> float | None:
    """Relative error of the attention output: as measured where one quantizer packs both sides, else root sum of both.

    Errors of keys and of values are taken to be independent where they come from two quantizers. 16 bits keep what the
    model computes and have none.
    """
    exact = {side: quantizer.family.name in ("fp16", "bf16") for side, quantizer in sides.items()}
    if sides["key"].name == sides["value"].name and not all(exact.values()):
        measurements = [sides[side].measured.get(side) for side in sides]
        return measurements[0].output_error_both if all(measurements) and measurements[0] else None
    alone = [
        0.0 if exact[side] else m.output_error if (m := quantizer.measured.get(side)) else None
        for side, quantizer in sides.items()
    ]
    return None if None in alone else math.sqrt(sum((e or 0.0) ** 2 for e in alone))


def how_measured(plan: KvPlan, value: object) -> tuple[str, str, dict[str, Any]]:
    """Where a measured number of a plan (None: there is none) comes from, its source, and the numbers behind it."""
    sides = {"key": plan.key_quantizer, "value": plan.value_quantizer}
    used = {g.which: sides[g.which].measured.get(g.which) for g in plan.groups}
    if (plan.key_quantizer.layers or plan.value_quantizer.layers) and not all(used.values()):
        predicted = sides["key"].predicted if sides["key"].name == sides["value"].name else {}
        if any(skipping.layers_of(side) for side in sides.values()) and value is not None:
            how = "of the layers that are packed; some are kept in 16 bits, and all together err by less"
        elif any(skipping.layers_of(side) for side in sides.values()):
            how = (
                "some layers are kept in 16 bits: give --measurements the measurement.json of `dse measure` with all "
                "layers of the model"
            )
        elif not predicted:
            how = "keys and values are not of one plan, and --measurements lacks some of their layers and methods"
        elif value is not None:
            how = "as the plan's file says, from errors of single layers and sides, added as if independent"
        else:
            how = (
                "the plan's file does not say: give --measurements the measurement.json of `dse measure` with all its "
                "layers and methods"
            )
        return how, "dse mix", {}
    missing = ", ".join(f"{side}s ({sides[side].name})" for side, m in used.items() if not m)
    how = (
        "mean over keys and values, each weighted by its share of the model's elements; errors of packed elements, "
        "bits at the data's own lengths; measured_error: root of squares, of the attention output over itself"
        if not missing
        else f"no measurement of the {missing}: `dse measure` a KV dump, then give --measurements"
    )
    return (
        how,
        "dse quantize, dse measure",
        {
            f"{side}_{term}": number
            for side, m in used.items()
            if m
            for term, number in (("elements_of_the_data", m.n_elements), ("mse", m.mse), ("mean_square", m.mean_square))
        },
    )
