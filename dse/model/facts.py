"""Facts of a design that explanations of its results name: numbers of its run, and what lies behind them."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from dse.core import units
from dse.core.compiling import Formula
from dse.model import deployed
from dse.model.attention import hideable_share, sums_of
from dse.model.capacity import blocks_of_request, counts_mean, longest_tokens
from dse.model.formulas import activations, attention, calibrated, capacity, collectives, kv_cache, memory_unit, weights
from dse.model.generation import Generation
from dse.model.kv_bytes import (
    NO_LIMIT,
    Limits,
    padding_bits,
    read_tokens,
    reading_of,
    stored_bits,
    stored_tokens,
    window_of,
)
from dse.model.kv_layout import KvPlan, TensorGroup
from dse.model.lower import BATCHINGS, draft_bytes, host_bytes
from dse.model.operations import DECODE, PREFILL, OperationCost, decode_operations, prompt_operations, total_of
from dse.model.peak_memory import peak_lengths, size_at
from dse.model.point import Point
from dse.model.records import MATERIALISED, Design, Tensor
from dse.model.server import Pass
from dse.model.step import (
    ExpertTimes,
    Run,
    Terms,
    Wave,
    experts_of,
    experts_s,
    kept_read_parameters,
    product_peak,
    prompt_tokens_of,
    share_touched,
)
from dse.quantizers import QuantizerSpec
from dse.specs import deployment, measured_memory
from dse.specs.device_and_model import HardwareSpec, LayerKV
from dse.specs.measured_memory import MeasuredMemory
from dse.specs.servers import Server
from dse.specs.workload import Workload


class Counted(NamedTuple):
    """Bytes that one request is counted with where a batch must fit, and the length that is counted at."""

    shared_bytes: float
    own_bytes: float
    rule: str


class Facts:
    """Numbers of a point, computed when an explanation asks for them."""

    def __init__(self, point: Point, results: Mapping[str, Any], recorded: frozenset[str]) -> None:
        self.point: Point = point
        self.results: Mapping[str, Any] = results
        #: names of the formulas that the run called
        self.recorded: frozenset[str] = recorded
        self.device: HardwareSpec = point.device
        self.plan: KvPlan = point.plan
        self.work: Workload = point.work
        self.design: Design = point.design
        self.made: Generation = point.made
        self.limits: Limits = point.made.limits
        self.n_tokens: int = point.work.final_tokens
        self.n_steps: int = point.work.output_tokens
        self.quantizers: dict[str, QuantizerSpec] = {
            "key": point.plan.key_quantizer,
            "value": point.plan.value_quantizer,
        }
        #: memory as a server's log had it
        self.of_log: MeasuredMemory | None = measured_memory.of(point.work.calibrated)
        self.server: Server = measured_memory.server_of(self.of_log, point.device, point.work, point.stack_name)
        self.is_server: bool = bool(point.design.memory.is_server)
        self.has_host: bool = bool(point.stack and point.stack.host)
        #: at least one request runs; with a KV cache, or without
        self.fits: bool = point.max_batch > 0
        self.cached: bool = self.fits and point.work.kv_cache
        self.uncached: bool = self.fits and not point.work.kv_cache

    # what times are made of, where at least one request runs

    @cached_property
    def terms(self) -> Terms:
        """Terms that the times of all numbers of sequences share."""
        return self.point.terms

    @cached_property
    def run(self) -> Run:
        """The run of the largest wave."""
        return self.point.largest_wave

    @cached_property
    def wave(self) -> Wave:
        """Times of the largest wave."""
        return self.run.wave

    @property
    def batching(self) -> str:
        """The schedule of prompts in the server's steps."""
        return next(name for name, place in BATCHINGS.items() if place == self.design.load.batching)

    @property
    def cycle(self) -> Pass:
        """The cycle of the server."""
        return self.point.cycle

    # tokens and bytes

    @cached_property
    def counted(self) -> Counted:
        """Memory of one request under the admission rule."""
        point, design, limits = self.point, self.design, self.limits
        if counts_mean(design):
            shared_bits, own_bits = self.made.largest_shared_bits, self.made.sum_of_own_bits / self.n_steps
            return Counted(shared_bits / point.unit, own_bits / point.unit, "at its mean size over the generation")
        prefix, free = self.made.prefix_tokens, point.free_bytes * point.unit
        passed = sorted(set(peak_lengths(design, limits, prefix, self.work.input_tokens, self.n_tokens)))
        sizes = {length: size_at(design, limits, prefix, length) for length in passed}
        samples = self.work.samples
        where = min(passed, key=lambda at: capacity.most_answers(free, sizes[at].shared, sizes[at].own, samples))
        return Counted(
            sizes[where].shared / point.unit,
            sizes[where].own / point.unit,
            f"at the length between prompt and last token where the batch is largest, {where:,}",
        )

    def copies(self) -> dict[str, int]:
        """Times that a request's keys and values are held at the peak of a step, in its bytes; {} for once."""
        n_copies = self.design.memory.cache_copies
        return {"kv_copies_at_peak": n_copies} if n_copies > 1 else {}

    @property
    def layer_elements(self) -> int:
        """Elements of the activations of a token in one layer."""
        model = self.plan.model
        return model.activation_elements if model.layer_elements is None else model.layer_elements

    def expert_buffers(self) -> dict[str, int]:
        """Elements of a token in the buffers of fused experts; {} where there are none."""
        model = self.plan.model
        if not model.expert_width:
            return {}
        width = -(-model.expert_width * self.work.ep // self.work.tp)
        return {"expert_elements": int(activations.expert_elements(model.n_active_experts, width, model.hidden_size))}

    def largest_image(self) -> dict[str, float]:
        """Values that a server's tower holds for the largest image; {} where it loads none, or does nothing with it."""
        elements, server = self.plan.model.image_elements, self.server
        if not (elements and self.work.tower and server.split_tower_copies.si):
            return {}
        copies = {"tower_copies": server.tower_copies.si, "split_tower_copies": server.split_tower_copies.si}
        n_bytes = activations.image_bytes(elements, **copies, tp=self.work.tp)
        return {"image_bytes": n_bytes, "image_elements": elements, **copies}

    def longest(self) -> dict[str, int]:
        """Blocks of a request of the longest context, and its tokens."""
        n_tokens = longest_tokens(self.design)
        blocks = blocks_of_request(self.design, n_tokens, self.design.memory.budget_tokens)
        return {"request_blocks": blocks, "n_tokens": n_tokens}

    def server_source(self, *names: str, named: bool = False) -> str:
        """Sources of some numbers of the server, with their names."""
        sources = ((name, number.source) for name, number in self.server.quantities().items() if name in names)
        return "; ".join(f"{name}: {source}" if named else source for name, source in sources)

    def weight_bits(self) -> dict[str, Any]:
        """Bits of a parameter, scales of named formats included; of experts apart where theirs differ."""
        load = self.design.load
        dense, experts = Fraction(load.dense_eighths, 8), Fraction(load.expert_eighths, 8)
        bits = {
            name: int(value) if value.denominator == 1 else float(value)
            for name, value in (("weights_bits", dense), ("expert_weights_bits", experts))
        }
        return bits if dense != experts else {"weights_bits": bits["weights_bits"]}

    def kept(self) -> dict[str, int]:
        """Parameters in 16 bits though those of the layers have fewer; {} where none is."""
        kept = self.design.model.kept_parameters
        return {"n_kept_parameters": kept} if kept else {}

    def beside(self) -> dict[str, int]:
        """Parameters and elements, each of 2 B, that a server's log counts with the weights, parameters that devices
        have whole where each has requests of its own, and bytes of drafts and in host memory; {} where none is."""
        if not self.design.memory.beside_bytes:
            return {}
        model, tower = self.plan.model, self.work.tower
        copies, _ = deployment.group_copies(self.plan.whole_model, model, self.work)
        counts = {
            "n_tower_parameters": (model.tower_parameters or 0) if tower else 0,
            "n_latent_copy_parameters": model.latent_copy_parameters,
            "n_table_elements": model.rotary_elements or 0,
            "n_group_copy_parameters": copies,
            "n_draft_bytes": draft_bytes(self.plan, self.work),
            "n_host_bytes": host_bytes(model, self.work),
        }
        return {name: value for name, value in counts.items() if value}

    def split(self) -> dict[str, int]:
        """Deployment of the model on several devices; {} on one."""
        split = self.design.deployment
        return {} if split.n_devices == 1 else split._asdict()

    @cached_property
    def _groups(self) -> list[tuple[TensorGroup, Tensor]]:
        """Groups of keys and values, each with its tensor; constant states come after them in a design."""
        return list(zip(self.plan.groups, self.design.tensors, strict=False))

    def windows(self) -> dict[str, float | str]:
        """Windows of the layers that have one."""
        tensors = ((g, window_of(tensor, self.limits)) for g, tensor in self._groups if g.which == "key")
        return self.of_groups(((g, "window_tokens", window) for g, window in tensors if window < NO_LIMIT), sided=False)

    def token_bytes(self, beyond_windows: bool = False) -> dict[str, float | str]:
        """Bytes of a token of one layer's keys or values, mean over a sequence, page padding included."""

        def mean(tensor: Tensor) -> float:
            kept = stored_tokens(tensor, self.limits, self.n_tokens)
            bits = stored_bits(tensor, self.limits, self.n_tokens) + padding_bits(tensor, kept, self.point.page_tokens)
            return float(bits / (self.point.unit * kept))

        return self.of_groups(
            (g, "bytes", mean(tensor))
            for g, tensor in self._groups
            if not beyond_windows or window_of(tensor, self.limits) == NO_LIMIT
        )

    def slices(self) -> dict[str, float | str]:
        """Bytes of the slices of a head that bursts write."""
        rows = []
        for g in self.plan.groups:
            if g.burst_row_bits:
                heads = self.point.unit * g.layout.shape.n_heads
                rows.append((g, "slice_bytes", ", ".join(f"{bits / heads:g}" for bits in g.streams)))
        return self.of_groups(rows)

    def tables(self) -> dict[str, float | str]:
        """The tables of a memory unit (Oaken 5.2): an entry for each page of a request, looked up in every step."""
        page, entries = self.device.kv_page, 0
        for g in self.design.tensors:
            kept = stored_tokens(g, self.made.limits, self.n_tokens)
            streams = [bits for bits in (g.dense_stream_bits, g.sparse_stream_bits) if bits and g.page_row_bits]
            heads = g.page_row_bits // (self.point.unit * page.count) if page else 0
            entries += g.n_stored_layers * heads * sum(-(-kept * bits // g.page_row_bits) for bits in streams)
        if page is None or entries == 0:
            return {}
        entry_bits = memory_unit.table_entry_bits(self.device.capacity_bytes, page.count)
        return {
            "table_entries": entries,
            "table_entry_bits": entry_bits,
            "table_bytes": entries * entry_bits / units.BITS_PER_BYTE,
        }

    def states(self) -> dict[str, float | str]:
        """Bytes that each layer keeps of a request of any length, by its kind or that of the layers beside it."""
        kind, rows = "", []
        for layer in self.plan.model.layers:
            kind = kind if layer.joined else _kind(layer)
            if layer.state_bytes:
                rows.append(((kind, f"state_{layer.state_bytes}"), layer.n_layers, "state_bytes", layer.state_bytes))
        n_stages = self.design.deployment.n_stages
        return {**({"n_stages": n_stages} if n_stages > 1 else {}), **_of_layers(rows)}

    def of_groups(
        self, rows: Iterable[tuple[TensorGroup, str, float | str]], sided: bool = True
    ) -> dict[str, float | str]:
        """Terms that count for each layer of some groups of keys or values; `sided` names begin with the side.

        Groups are told apart by kind, by whether they are of the model's first two layers, by heads, and at last by an
        index that no other layers have.
        """

        def words(g: TensorGroup) -> tuple[str, ...]:
            layer, first = self.plan.layers[g.shape_index][0], "first" if g.layout.shape.shallow else ""
            return _kind(layer), first, f"with_{layer.n_kv_heads}_heads_of_{layer.key_dim}", f"shape_{g.shape_index}"

        return _of_layers(
            [(words(g), g.n_stored_layers, f"{g.place}_{term}" if sided else term, value) for g, term, value in rows]
        )

    def tiles(self) -> dict[str, int]:
        """Elements by which padding to tiles of tokens grows one sequence (NQKV Figure 7): in the layer in work, and in
        every layer, were the stored cache padded."""
        by_layer: dict[int, list[int]] = {}
        for g in self.design.tensors:
            if g.path == MATERIALISED:
                kept = read_tokens(g, self.limits, self.n_tokens)
                layer = by_layer.setdefault(g.shape, [0, g.n_stored_layers])
                layer[0] += g.n_elements * kv_cache.padding_tokens(kept, g.tile_tokens)
        one_layer = max((elements for elements, _ in by_layer.values()), default=0)
        all_layers = sum(elements * n_layers for elements, n_layers in by_layer.values())
        return {"padded_elements": one_layer, "padded_elements_if_stored_padded": all_layers} if one_layer else {}

    # products with the weights

    @cached_property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts of a run; a shared prefix counts once."""
        return int(prompt_tokens_of(self.design, self.terms, self.run.n))

    @cached_property
    def prompt_share_touched(self) -> float:
        """Share of the experts that the prompts touch."""
        return float(share_touched(self.design, self.prompt_tokens))

    @cached_property
    def experts(self) -> ExpertTimes:
        """Times of the routed experts in a step, where their products were measured apart."""
        return experts_of(self.design, float(self.run.n), self.run.share_touched)  # type: ignore[no-any-return]

    @cached_property
    def prompt_experts(self) -> ExpertTimes:
        """Times of the routed experts over the prompts, where their products were measured apart."""
        return experts_of(self.design, self.prompt_tokens, self.prompt_share_touched)  # type: ignore[no-any-return]

    @property
    def experts_s(self) -> float:
        """Seconds of the experts in a step."""
        return float(experts_s(self.design, float(self.run.n), self.run.share_touched))

    @property
    def prompt_experts_s(self) -> float:
        """Seconds of the experts over the prompts."""
        return float(experts_s(self.design, float(self.prompt_tokens), self.prompt_share_touched))

    def _read_bytes(self, dense: int, kept: int, dense_eighths: int) -> float:
        model, load = self.design.model, self.design.load
        return float(
            weights.weight_read_bytes(
                dense, kept, model.expert_parameters, self.run.share_touched, dense_eighths, load.expert_eighths
            )
        )

    @property
    def weight_read_bytes(self) -> float:
        """Bytes of the weights that a step reads."""
        model = self.design.model
        dense = model.dense_parameters - model.unread_parameters
        return self._read_bytes(dense, kept_read_parameters(model), self.design.load.dense_eighths)

    @property
    def dense_read_bytes(self) -> float:
        """Bytes read by a step, without experts whose products were measured apart."""
        return self.weight_read_bytes - (self._read_bytes(0, 0, 0) if self.design.stack.has_experts else 0)

    @property
    def dense_read_s(self) -> float:
        """Seconds in which a step reads these weights."""
        return float(self.run.linear_read_s - self.experts.read_s)

    @property
    def prompt_dense_read_s(self) -> float:
        """Seconds in which the prompts read these weights."""
        return float(self.run.prompt_read_s - self.prompt_experts.read_s)

    @property
    def step_peak(self) -> float:
        """Peak rate of the products of a step: of the cores that decode."""
        return float(product_peak(self.design, self.run.n))

    # attention, packing and unpacking

    @property
    def attention_form(self) -> Formula:
        """The formula of a layer's attention."""
        fitted = self.point.stack and self.point.stack.attention
        return calibrated.attention_layer_s if fitted else attention.attention_s

    def fitted_attention(self) -> dict[str, Any]:
        """Numbers of the kernels that most layers of a fitted attention run by; {} without."""
        if not (self.point.stack and self.point.stack.attention):
            return {}
        sums, n = sums_of(self.design, self.made, self.run.n), self.run.n
        means = {"mean_fixed_s": sums.fixed_s / self.n_steps, "mean_unit_s": n * sums.unit_s / self.n_steps}
        kernel = max(self.design.kernels, key=lambda candidate: candidate.n_layers)
        fitted = {name: getattr(kernel, name) for name in ("launch_s", "split_s", "unit_s", "memory_frac")}
        copied = {"copy_s": self.design.stack.layout_copy_s}
        return {**means, **self.point.stack.attention_terms(), **fitted, **copied}

    @property
    def unpacked(self) -> int:
        """Elements that the last step unpacks of one sequence."""
        return sum(
            g.n_read_layers * g.n_elements * reading_of(g, self.limits, self.n_tokens).packed
            for g in self.design.tensors
            if g.is_packed
        )

    @property
    def kv_read_bytes(self) -> float:
        """Bytes of keys and values that the last step reads of one sequence."""
        bits = sum(g.n_read_layers * reading_of(g, self.limits, self.n_tokens).bits for g in self.design.tensors)
        return float(bits / self.terms.per_byte)

    @property
    def write_s(self) -> float:
        """Seconds in which a step writes bursts."""
        return float(self.run.n * self.terms.burst_bits / self.terms.per_byte / self.device.memory_bandwidth.si)

    def of_sinks(self, name: str, n_bytes: float) -> dict[str, float]:
        """Seconds of SinkQ's scores or choice in a step, if any."""
        seconds = self.run.n / self.n_steps * n_bytes / self.terms.reached_bytes_per_s
        return {name: seconds} if seconds else {}

    def scheduled(self) -> dict[str, Any]:
        """Overlap of the engines' work on token cores; {} without them."""
        if not self.design.device.token_cores:
            return {}
        share = hideable_share(self.design, self.run.n)
        return {"hideable_share": share, "busy_cores": self.results["busy_cores"]}

    def launches(self) -> dict[str, Any]:
        """Kernels that read what is packed: copies by layer, or launches."""
        if self.made.copy_starts:
            copies = self.made.copy_starts / self.n_steps
            return {"copies_per_step": copies, "start_of_a_copy_s": self.design.stack.copy_launch_s}
        return {
            "launch_s": self.terms.read_launch_s,
            "launches_per_step": self.made.read_starts / self.n_steps,
            "kernel_launch_s": self.device.kernel_launch.si,
        }

    @property
    def paths_text(self) -> str:
        """Where keys and values are dequantized."""
        return ", ".join(sorted(set(self.point.paths.values())))

    # the whole

    @cached_property
    def exchanges(self) -> dict[str, Any]:
        """Exchanges between devices in a step."""
        terms: dict[str, Any] = {}
        each = deployed.exchanges(self.device, self.plan.model, self.work, self.point.stack_name)
        for name, exchange, link in each:
            name = name.replace(" ", "_")
            n_bytes = self.run.product_tokens * exchange.token_bytes
            terms |= {
                f"{name}_per_step": exchange.n_per_pass,
                f"{name}_bytes": n_bytes,
                f"{name}_each_s": collectives.collective_s(n_bytes, *exchange[3:]),
                f"{name}_rests_on": link.source,
            }
        return terms

    @property
    def step_total(self) -> OperationCost:
        """All operations of a decode step."""
        operations = decode_operations(self.design, self.terms, self.run)
        return total_of(operations, DECODE, self.wave.decode_step_s)  # type: ignore[no-any-return]

    @property
    def prompt_total(self) -> OperationCost:
        """All operations of the prompts."""
        operations = prompt_operations(self.design, self.terms, self.run)
        return total_of(operations, PREFILL, self.wave.prefill_s)  # type: ignore[no-any-return]


def _kind(layer: LayerKV) -> str:
    """Kind of a layer: by its window, its state or how it chooses what it reads."""
    return f"window_{layer.window}" if layer.window else layer.state_code or layer.sparse_kind or "full"


def _of_layers(rows: Sequence[tuple[tuple[str, ...], int, str, float | str]]) -> dict[str, float | str]:
    """Terms that count for each of some layers, from rows of (words, number of layers, term, value).

    The name says of how many layers and, in as few words as tell all values apart, of which; equal ones count together.
    """
    n_most = max((len(words) for words, *_ in rows), default=1)
    for n_words in range(1, n_most + 1):
        counts_by_name: dict[tuple[str, ...], dict[float | str, int]] = {}
        for words, n_layers, term, value in rows:
            counts = counts_by_name.setdefault((*words[:n_words][::-1], "layers", term), {})
            counts[value] = counts.get(value, 0) + n_layers
        if all(len(counts) == 1 for counts in counts_by_name.values()):
            break
    return {
        f"each_of_{n_layers}_{'_'.join(filter(None, name))}": value
        for name, counts in counts_by_name.items()
        for value, n_layers in counts.items()
    }
