"""Reasons for the assumed numbers of a design, and the kernels that run its quantizers, in words."""

from dse.model import deployed, implementations, kernels, stacks
from dse.model.point import Point
from dse.specs import catalog, measured_memory, servers, tokens
from dse.specs.quantity import ASSUMED
from dse.specs.stack import ServedStack


def reason(point: Point, name: str) -> str:
    """Say what an assumed number is taken to be, and why."""
    device, policy = point.device, point.work.token_policy
    reasons = {
        "peak_rates": "memory and arithmetic are taken to reach the peak of their data sheet",
        "reached_rates": (
            "nobody measured kernels on it: memory and arithmetic are taken to reach the middle of what measured "
            "devices reach of their data sheets, 0.89 (0.85 to 0.93) of the bandwidth and 0.85 (0.7 to 1) of the rates"
        ),
        "token_policy": f"{policy.name}: {policy.family.validity or tokens.FAMILIES['sparse'].validity}",
        "server_memory": "; ".join(
            [
                "activations, graphs and buffers as start-up logs of the nearest release and device have them",
                *(
                    number.source
                    for number in servers.numbers(point.stack_name, device, point.work.stack)
                    if number.kind == "assumed"
                ),
            ]
        ),
        "exchanges": "; ".join(
            dict.fromkeys(
                link.source
                for *_, link in deployed.exchanges(device, point.plan.model, point.work, point.stack_name)
                if link.kind == "assumed"
            )
        ),
        "stacks_of": f"kernels as fitted on {device.stacks_of or stacks.DEFAULT_STACKS_OF}",
        "eight_bit_kernels": (
            "products of 8 bits are taken to reach the share of their peak that 16-bit ones were fitted to"
        ),
        "nearest_format": (
            f"products with weights of this format ({point.work.weight_format.title}), or their experts, were not all "
            "measured: these are taken to reach the shares of the peaks that the nearest that was measured reaches, "
            f"{catalog.unmeasured_kernels().unpacked_share.si:g} of it where weights are unpacked first"
        ),
        "implementation": implementations_text(point),
        "no_kernel": f"no kernel of it is known for {device.name}: {implementations_text(point)}",
        "nearest_kernels": _borrowed(point),
        "sparse_prompts": (
            "prompts of layers that read chosen or compressed tokens are computed as by plain attention over those "
            "tokens: most measured layers take 1.3 to 6 times as long (docs/explanation/calibration.md)"
        ),
        "nearest_release": _release(point),
        "own_server": own_server_text(point),
    }
    if device.core_clock is None:
        reasons["core_clock"] = f"{implementations.USUAL_CLOCK / 1e9:g} GHz: assumed, the device's file has none"
    if name in reasons:
        return reasons[name]
    number = getattr(device, name, None) or device.rate(name.removesuffix("_rate"))
    return f"{number.value:g} {number.unit}: ".replace(" 1:", ":") + number.source


def implementations_text(point: Point) -> str:
    """Name the implementations of a point with their numbers and ranges."""
    by_key = {g.implementation.key: g.implementation for g in point.plan.groups if g.implementation}
    return "; ".join(f"{implementation.title}: {implementation.rate_text()}" for implementation in by_key.values())


def own_server_text(point: Point) -> str:
    """Say by what a user's own measurements correct times per token, and how sure these are then; "" without any."""
    made, times = point.lowered.corrected, measured_memory.times_of(point.work.calibrated)
    if not made or not times:
        return ""
    plural = "" if made.n_points == 1 else "s"
    return (
        f"calibrated: {point.work.calibrated}, {made.n_points} point{plural}, factor {made.factor:.2f} on times per "
        f"token, whose interval is {made.width:.0%} as wide"
    )


def _release(point: Point) -> str:
    """The release that stands in for the one asked for, or the benchmarks that do."""
    stack, name = point.stack, stacks.stack_text(point.stack_name, point.work)
    if not isinstance(stack, ServedStack) or not stack.stands_in:
        return ""
    if public := kernels.benchmarked_as(point.device, point.plan.model, point.work, stack):
        is_assumed = any(number.kind == ASSUMED for number in public.quantities().values())
        how = "assumed, chosen by hand on" if is_assumed else "fitted to"
        return f"{name} was not measured step by step: the server's own time is {how} public benchmarks of it"
    aged = stacks.age_text(point.stack_name, stack, point.work)
    return (
        f"{name} was not measured, or on too few rows: {point.stack_name}@{stack.stands_in}, the nearest release that "
        f"was, stands in, with a wider interval{aged and f': {aged}'}"
    )


def _borrowed(point: Point) -> str:
    """Kernels of other stacks, or of other layers, that stand in for those of the stack."""
    stack = point.stack
    if not isinstance(stack, ServedStack):
        return ""
    places = kernels.fits_used(point.plan, point.paths, point.work, stack)
    borrowed = ", ".join(f"{place} of {stack.borrowed[place]}" for place in places if place in stack.borrowed)
    sentences = [f"not measured of {point.stack_name} on {point.device.name}, taken from its other stacks: {borrowed}"]
    shapes = dict.fromkeys(g.shape_index for g in point.plan.groups)
    place_by_code = {
        kernels.sparse_code(point.plan, point.paths, i): kernels.sparse_place(point.plan, point.paths, stack, i)
        for i in shapes
    }
    lacking = {code: place for code, place in place_by_code.items() if code != (place or "")}
    if lacking:
        stand_ins = [
            f"of {code} layers none were measured: {place or 'attention'}'s stand in" for code, place in lacking.items()
        ]
        sentences = [*(sentences if borrowed else ()), *stand_ins]
    return "; ".join(sentences)


def unpack_rates(point: Point) -> str:
    """Elements per second that unpack, and where they come from."""
    stack, texts = point.stack, {}
    if stack is None or stack.attention is None:
        return rates(point)
    for g in point.plan.groups:
        implementation = g.implementation
        if implementation and implementation.elements_per_cycle and point.paths[g.place] == "fused":
            core_rate = kernels.core_rate(point.device, stack, g, "fused")
            shared = f", once for each of {g.unpackings} query heads" if g.unpackings > 1 else ""
            texts[implementation.name] = f"{core_rate:.4g} a core ({implementation.elements_per_cycle.kind}{shared})"
            continue
        fit = kernels.packed_fit(stack, g, point.paths[g.place]) if g.layout.needs_dequantizing else None
        if fit:
            rate = f"{fit.core_rate.si:.4g} a core (fitted)" if fit.core_rate else "no ceiling (fitted)"
            texts[kernels.kv_code(g)] = rate
    return "; ".join(f"{code} {rate}" for code, rate in texts.items()) or rates(point)


def rates(point: Point, packs: bool = False) -> str:
    """Elements per second that the device unpacks, by path; or `packs`."""
    paths = (path for path in point.paths.values() if path in ("engine", "fused"))
    device_rates = {path: point.device.rate("quantize" if packs and path == "engine" else path) for path in paths}
    return "; ".join(f"{path} {rate.si:.4g} ({rate.kind})" for path, rate in sorted(device_rates.items())) or "none"
