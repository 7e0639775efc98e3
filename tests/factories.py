"""What tests of several folders build: toy models, plans, devices and points, a small sweep, a toy language model.

No test file imports another; what two of them need is here, or in the `conftest.py` of their folder.
"""

import importlib.util
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

import naive
from dse import quantizers
from dse.model import kv_bytes, kv_layout, peak_memory
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.model.results import INTEGERS, RESULT_UNITS
from dse.specs import catalog
from dse.specs import device_and_model as specs
from dse.specs.device_and_model import LayerKV, ModelSpec
from dse.specs.shared_errors import SharedErrors
from dse.specs.workload import Workload
from dse.sweep import points as sweep_points
from dse.sweep import spec as sweep_spec
from dse.sweep.columns import MISSING, Names
from dse.sweep.grid import kept_digits

QUANTIZERS = [
    "fp16",
    "fp8",
    "int8",
    "int4",
    "nqkv:block=64",
    "qserve",
    "atom",
    "tender",
    "kvquant",
    "oaken",
    "oaken:groups=2/2/90/6,outlier_bits=4",
    "kivi:bits=4,group=8,residual=16",
    "kivi:group=16,residual=32",
    "sinkq:group=16,residual=8",
    "sinkq:group=32,residual=5,sinks=2,evicted=1",
    "rotated:dim=2,index=5,group=32,residual=3",
    "gear:group=8,buffer=16",
    "gear:group=8,buffer=8,chunk=24,outliers=0.03",
    "aquakv",
    "xquant:zero=full",
    "xquant:store=latent,group=16",
]


def model(*layers, n_q_heads=8):
    return ModelSpec(
        name="toy",
        source="test",
        hidden_size=64,
        vocab_size=100,
        n_q_heads=n_q_heads,
        layers=tuple(layers),
        dense_parameters=1000,
        activation_elements=64,
    )


def layer(n_layers=2, n_kv_heads=2, dim=24, window=None, stored=True):
    return LayerKV(
        n_layers=n_layers,
        n_kv_heads=n_kv_heads,
        key_dim=dim,
        value_dim=dim,
        window=window,
        stored=stored,
        score_dim=2 * dim,
    )


LAYERS = st.builds(
    layer,
    n_layers=st.integers(1, 4),
    n_kv_heads=st.integers(1, 3),
    dim=st.integers(1, 40),
    window=st.none() | st.integers(1, 120),
    stored=st.booleans(),
)


def plans_of(layers):
    """Plans of random layers, and of random quantizers for keys and for values."""
    return st.builds(
        lambda first, layers, key, value: kv_layout.build(
            model(first.model_copy(update={"stored": True}), *layers), quantizers.parse(key), quantizers.parse(value)
        ),
        layers,
        st.lists(layers, max_size=2),
        st.sampled_from(QUANTIZERS),
        st.sampled_from(QUANTIZERS),
    )


PLANS = plans_of(LAYERS)
#: windows of some layers start anew at multiples of their length
CHUNKED_PLANS = PLANS | plans_of(LAYERS.map(lambda each: each.model_copy(update={"chunked": each.window is not None})))


def point_of(kv, n_in=1, n_out=1, page=1, dequant_path="fused", **work):
    """A plan with its workload, on a device whose rates do not matter; `page` 1 counts tokens one by one."""
    work = Workload(
        1,
        n_in,
        n_out,
        admission="paged",
        page_tokens=page,
        dequant_path=dequant_path,
        model_kind="ideal",
        **{"memory": "paper", **work},
    )
    return Point(catalog.device("a100-80gb"), kv, work)


#: correlations of errors by hand, of which no two are alike
SHARED_ERRORS = SharedErrors(
    split=0.8,
    groups=0.7,
    engine=0.1,
    release=0.2,
    device=0.4,
    weights=0.5,
    load=0.6,
    first=0.3,
    n_points=9,
    source="by hand",
    age={"week": 0.1, "most_weeks": 9, "inside": 0.8, "n_points": 9, "source": "by hand"},
)


class Sequence:
    """One sequence as the core counts it: its functions of tensors, summed over the layers that store or read."""

    def __init__(self, design):
        self.design, self.limits = design, kv_bytes.limits_for(design.policy, design.input_tokens)

    def bits(self, n):
        return sum(g.n_stored_layers * kv_bytes.stored_bits(g, self.limits, n) for g in self.design.tensors)

    def read_bits(self, n):
        return sum(g.n_read_layers * kv_bytes.reading_of(g, self.limits, n).bits for g in self.design.tensors)

    def padding_bits(self, n, page):
        return sum(
            g.n_stored_layers * kv_bytes.padding_bits(g, kv_bytes.stored_tokens(g, self.limits, n), page)
            for g in self.design.tensors
        )

    def sum_of_padding_bits(self, first, last, page):
        def up_to(n):
            return sum(
                g.n_stored_layers * kv_bytes.sum_of_padding_bits(g, self.limits, n, page) for g in self.design.tensors
            )

        return up_to(last) - up_to(first - 1)

    def shared_bits(self, n, prefix):
        return kv_bytes.shared_bits(self.design, self.limits, n, prefix)

    def sum_of_shared_bits(self, first, last, prefix):
        return sum(
            g.n_stored_layers * kv_bytes.sum_of_shared_bits(g, self.limits, first, last, prefix)
            for g in self.design.tensors
        )

    def flops(self, n):
        return kv_bytes.attention_flops(self.design.layers, self.limits, n)

    def prompt_flops(self, n):
        return kv_bytes.prompt_flops(self.design.layers, self.design.policy.prompt_window_tokens, n)

    def unpacked_elements(self, n):
        return sum(
            g.n_read_layers * g.n_elements * kv_bytes.reading_of(g, self.limits, n).packed
            for g in self.design.tensors
            if g.is_packed
        )

    def peak_lengths(self, first, last, prefix, page):
        design = self.design._replace(load=self.design.load._replace(page_tokens=page))
        return peak_memory.peak_lengths(design, self.limits, prefix, first, last)


def sequence(kv, n_in=1, n_out=1, **work):
    return Sequence(point_of(kv, n_in, n_out, **work).design)


def as_groups(kv, read=False):
    return [
        (
            g.n_read_layers if read else g.n_stored_layers,
            Fraction(g.packed_bits),
            g.full_bits,
            g.once_bits,
            g.pool_bits,
            g.step_tokens,
            g.residual_tokens,
            g.window_tokens,
        )
        for g in kv.groups
    ]


def seen(kv, g, n):
    """Tokens that a step at a length of n reads of a group."""
    return naive.seen_tokens(n, g.window_tokens, kv.layers[g.shape_index][0].chunked)


def unused_bits(kv, n, page):
    """What last pages leave unused: of what is packed token by token a slot costs a packed token, else 16-bit ones."""
    unused = 0
    for g in kv.groups:
        kept = min(n, g.window_tokens)
        slot = g.packed_bits if (g.step_tokens, g.residual_tokens) == (1, 0) else g.full_bits
        unused += g.n_stored_layers * (naive.pages(kept, page) * page - kept) * slot
    return unused


GB = 10**9


def device(bandwidth=2e12, peak=312e12, capacity=80 * GB, fused=4e12, engine=None, launch=0.0, **paths):
    def number(value, unit):
        return specs.Quantity(value=value, unit=unit, source="test", kind="assumed")

    return specs.HardwareSpec(
        name="toy",
        architecture="sm_80",  # a GPU: a chip without one unpacks by itself
        memory_capacity=number(capacity, "B"),
        memory_bandwidth=number(bandwidth, "B/s"),
        peak_flops=number(peak, "FLOP/s"),
        fused_rate=number(fused, "element/s"),
        board_power=number(400.0, "W"),
        engine_rate=number(engine, "element/s") if engine else None,
        kernel_launch=number(launch, "s"),
        dequant_path={"default": "fused", **paths},
    )


def build(model_name, quantizer, value_quantizer=None):
    found = catalog.model(model_name) if isinstance(model_name, str) else model_name
    return kv_layout.build(found, quantizers.parse(quantizer), quantizers.parse(value_quantizer or quantizer))


def point(device, model, quantizer="fp16", **work):
    """A design by names, or by specs of its device and model."""
    own = catalog.device(device) if isinstance(device, str) else device
    return Point(own, build(model, quantizer), Workload(**work))


def at(device_spec, kv, **work):
    """Results by hand count memory as papers do, and at the peaks where no kernels were measured, if not told else."""
    times = {} if device_spec.stacks else {"model_kind": "ideal"}
    return evaluate(Point(device_spec, kv, Workload(**{"memory": "paper", **times, **work})))


def whole(number):
    """A whole number that was divided by a whole number and is multiplied with it again."""
    assert number == pytest.approx(round(number), rel=1e-14)
    return round(number)


def loop(dev, kv, work, n, paths):
    """Attention and exposed dequantization of each step, one by one, in exact fractions; without sinks' scores."""
    peak, bandwidth = Fraction(dev.peak_flops.si), Fraction(dev.memory_bandwidth.si)
    counted = Sequence(Point(dev, kv, work).design)
    attention = exposed = Fraction(0)
    for s in range(work.input_tokens + 1, work.final_tokens + 1):
        unpack_s, extra = Fraction(0), 0
        for g, tensor in zip(kv.groups, counted.design.tensors, strict=True):
            if not g.layout.needs_dequantizing:
                continue
            kept = kv_bytes.read_tokens(tensor, counted.limits, s)
            packed = naive.packed_tokens(kept, g.step_tokens, g.residual_tokens)
            elements = n * g.n_read_layers * g.n_elements * packed
            if paths[g.which] == "materialised":
                extra += 4 * elements
            else:
                unpack_s += elements / Fraction(dev.rate(paths[g.which]).si)
        step = naive.decode_step(
            n * counted.flops(s), Fraction(n * counted.read_bits(s), 8 * kv.den), unpack_s, extra, peak, bandwidth
        )
        attention, exposed = attention + step[0], exposed + step[1]
    return float(attention / work.output_tokens), float(exposed / work.output_tokens)


def scores_s(dev, kv, work, n, bandwidth):
    """Seconds of a mean step in which `n` sequences move the scores of SinkQ's pool: its loop is in test_sink_work."""
    return n * Point(dev, kv, work).made.score_bytes / work.output_tokens / bandwidth


def plan_file(folder, pairs, name="plan.toml", head=""):
    tables = [f'[[layers]]\nlayer = {i}\nkey = "{k}"\nvalue = "{v}"\n' for i, (k, v) in enumerate(pairs)]
    path = folder / name
    path.write_text(head + "\n".join(tables))
    return str(path)


SMALL_SWEEP = {
    "axes": {
        "device": ["a100-80gb", "oaken-hbm"],
        "model": ["llama2-7b", "llama2-70b"],
        "quantizer": ["fp16", "oaken", "kivi"],
        "oaken.outer": [0.0, 0.05, 0.1],
        "input_tokens": [512, 1024],
        "batch": {"from": 1, "to": 64, "factor": 4},
    },
    "where": ["batch * input_tokens <= 32768"],
}


def fast_points(found, digits, check=None):
    """Results that cost nothing, of every type, with holes: what the files hold is no matter here."""
    total = sum((i + 3) * (digits[axis.name].astype(np.int64) + 1) for i, axis in enumerate(found.axes))
    codes = (total % 3 == 0).astype(np.int8)
    columns = {"feasible": codes == 0, "infeasible_code": codes, "runs": codes < 2}
    for name in found.keep:
        if name in INTEGERS:
            columns[name] = np.where(codes, MISSING, total * 7)
        elif RESULT_UNITS[name]:
            columns[name] = np.where(codes, np.nan, np.sqrt(total + 0.5))
        else:
            columns[name] = Names((total % 4).astype(np.int32) - 1, ("bandwidth", "compute", "latency"))
    return columns


def files_of(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def sweep_of(axes, where=(), model_kind="ideal"):
    """A sweep, of the ideal model if not told otherwise, that keeps every column there is."""
    return sweep_spec.from_dict({"axes": {"model_kind": model_kind, **axes}, "where": list(where), "keep": "all"})


def bits_of(column):
    """A column as whole numbers and names, so that equal means equal bits; missing numbers are alike."""
    if isinstance(column, Names):
        normal = column.normal()
        return [*normal.names, None], normal.codes.tolist()
    if column.dtype == np.float64:
        return np.where(np.isnan(column), np.nan, column).view(np.int64).tolist()
    return column.tolist()


def compare_with_rows(sweep, first=0, last=None):
    """Columns by the kernel and row by row; how many points were left to rows."""
    digits = kept_digits(sweep, first, sweep.n_points if last is None else last)
    n_left, by_rows = 0, sweep_points.evaluate_rows

    def counted(sweep, digits, check):
        nonlocal n_left
        n_left += len(digits["device"])
        return by_rows(sweep, digits, check)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_points, "evaluate_rows", counted)
        found = sweep_points.evaluate_compiled(sweep, digits)
    expected = by_rows(sweep, digits)
    if found is None:
        return len(digits["device"])
    assert list(found) == list(expected)
    for name, column in expected.items():
        if isinstance(column, np.ndarray):
            assert found[name].dtype == column.dtype, name
        assert bits_of(found[name]) == bits_of(column), name
    return n_left


def assert_one_line(result, status, *parts):
    code, out, err = result
    assert code == status, err
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert len(err) <= 310
    assert "Traceback" not in err
    for part in parts:
        assert part in err


_PACKAGE = importlib.util.find_spec("aiconfigurator_core")
#: folder of the configurations that aiconfigurator-core ships; nowhere where it is not installed
PACKAGED = Path(_PACKAGE.origin).parent / "model_configs" if _PACKAGE and _PACKAGE.origin else Path("none")
PACKAGED_CONFIGS = sorted(
    path for path in PACKAGED.glob("*_config.json") if not path.name.endswith("hf_quant_config.json")
)

#: read from configurations of aiconfigurator-core, whose bytes tests/specs/test_architectures.py has by hand
SHIPPED = {
    "qwen3-vl-2b": "Qwen--Qwen3-VL-2B-Instruct",
    "qwen3-vl-4b": "Qwen--Qwen3-VL-4B-Instruct",
    "qwen3-vl-8b": "Qwen--Qwen3-VL-8B-Instruct",
    "qwen3-vl-32b": "Qwen--Qwen3-VL-32B-Instruct",
    "qwen3-vl-30b-a3b": "Qwen--Qwen3-VL-30B-A3B-Instruct",
    "qwen3-vl-235b-a22b": "Qwen--Qwen3-VL-235B-A22B-Instruct",
    "qwen3.5-27b": "Qwen--Qwen3.5-27B",
    "qwen3.5-35b-a3b": "Qwen--Qwen3.5-35B-A3B",
    "qwen3.5-122b-a10b": "Qwen--Qwen3.5-122B-A10B",
    "qwen3.5-397b-a17b": "Qwen--Qwen3.5-397B-A17B",
    "qwen3.6-27b": "nvidia--Qwen3.6-27B-NVFP4",
    "qwen3.8-27b": "nvidia--Qwen3.6-27B-NVFP4",
    "qwen3.6-35b-a3b": "nvidia--Qwen3.6-35B-A3B-NVFP4",
    "gemma-4-26b-a4b": "google--gemma-4-26B-A4B",
    "gemma-4-31b": "nvidia--Gemma-4-31B-IT-NVFP4",
    "deepseek-v4-flash": "deepseek-ai--DeepSeek-V4-Flash",
    "deepseek-v4-pro": "deepseek-ai--DeepSeek-V4-Pro",
    "glm-5.2": "zai-org--GLM-5.2",
    "kimi-k3": "moonshotai--Kimi-K3",
    "minimax-m3": "MiniMaxAI--MiniMax-M3",
    "nemotron-3-nano-30b-a3b": "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nemotron-3-super-120b-a12b": "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
    "nemotron-3-ultra-550b-a55b": "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    "nemotron-h-56b": "nvidia--Nemotron-H-56B-Base-8K",
    "llama-3.3-nemotron-super-49b": "nvidia--Llama-3_3-Nemotron-Super-49B-v1",
    "mimo-v2-flash": "XiaomiMiMo--MiMo-V2-Flash",
    "step-3.7-flash": "stepfun-ai--Step-3.7-Flash",
}
