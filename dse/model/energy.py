"""Energy of bytes and operations by their bits, and the time that a board's power limit adds."""

from dse.core.compiling import compilable, inlined
from dse.model.formulas import energy
from dse.model.records import Design, Device

#: peak rate of 8-bit operations over that of 16 bits, where it is not known; and that of 4 bits over 8, at least
_EIGHT_BITS, _FOUR_BITS = 2.0, 1.2
#: weights of so many bits count as 16, as 8, or as 4 (bits times 8)
MORE_THAN_8, MORE_THAN_4 = 72, 40


@compilable
def knows_bits(device: Device) -> bool:
    """True where a device has a limit of power, or energies of their own for fewer bits or for keys and values."""
    per_byte = device.energy_per_byte
    return (
        device.power_limit_w > 0.0
        or device.energy_per_flop_fp8 > 0.0
        or device.energy_per_flop_fp4 > 0.0
        or device.energy_per_byte_fp8 != per_byte
        or device.energy_per_byte_fp4 != per_byte
        or device.energy_per_kv_byte != per_byte
        or device.energy_per_kv_byte_fp8 != per_byte
    )


@compilable
def joules_per_weight_byte(design: Design) -> float:
    """J a byte of weights: of the experts' format where the model has experts, which are most of its weights."""
    device, eighths = design.device, design.load.dense_eighths
    if design.model.expert_parameters:
        eighths = design.load.expert_eighths
    if eighths > MORE_THAN_8:
        return device.energy_per_byte
    return device.energy_per_byte_fp8 if eighths > MORE_THAN_4 else device.energy_per_byte_fp4


@compilable
def joules_per_kv_byte(design: Design) -> float:
    """J a byte of keys and values, by the bits of a token; what is packed costs what 8 bits do, the fewest measured."""
    device, bits, total = design.device, 0.0, 0.0
    for g in design.tensors:
        tensor_bits = float(g.n_read_layers * (g.packed_bits if g.is_packed else g.full_bits))
        bits += tensor_bits
        total += tensor_bits * (device.energy_per_kv_byte_fp8 if g.is_packed else device.energy_per_kv_byte)
    return total / bits if bits > 0.0 else device.energy_per_kv_byte


@compilable
def watts_at_peak(design: Design, peak_per_s: float) -> float:
    """W of operations at a peak rate (FLOP/s); where only 16-bit operations are known, the same at every rate.

    A rate that is not that of 16 bits is of the bits of the design's products; where those are of 16, of 8, or where it
    is well above the rates of 8, of 4.
    """
    device = design.device
    wide = device.peak_flops * device.peak_flops_unit
    if peak_per_s == wide:
        return wide * device.energy_per_flop
    bits = design.load.product_bits
    if bits == 16:
        eight = max(
            device.peak_flops_fp8 * device.peak_flops_fp8_unit, device.peak_ops_int8 * device.peak_ops_int8_unit
        )
        bits = 4 if peak_per_s > _FOUR_BITS * (eight if eight > 0.0 else _EIGHT_BITS * wide) else 8
    if bits == 4 and device.energy_per_flop_fp4 > 0.0:
        return peak_per_s * device.energy_per_flop_fp4
    if device.energy_per_flop_fp8 > 0.0:
        return peak_per_s * device.energy_per_flop_fp8
    return wide * device.energy_per_flop


@inlined
def added_s(seconds: float, joules: float, limit_w: float, idle_w: float) -> float:
    """Seconds that a board's limit adds; none where it has none."""
    return energy.power_s(seconds, joules, limit_w, idle_w) if limit_w > 0.0 else 0.0
