"""Number formats and field widths of packed KV caches: the numbers that layouts are made of."""

from dataclasses import dataclass

#: parts of a bit ledger, in the order they are shown
PARTS = ("payload", "scales", "zero_points", "outliers", "low_rank", "counts", "sinks", "full_precision", "padding")


@dataclass(frozen=True)
class NumberFormat:
    """A format in which one element is stored. `largest` is its largest finite value (or level count - 1)."""

    name: str
    bits: int
    largest: float
    source: str


FORMATS = {
    entry.name: entry
    for entry in (
        NumberFormat("fp16", 16, 65504.0, "IEEE 754-2019 binary16"),
        NumberFormat("bf16", 16, 3.3895313892515355e38, "bfloat16: upper half of binary32"),
        NumberFormat("fp32", 32, 3.4028234663852886e38, "IEEE 754-2019 binary32"),
        NumberFormat("fp8_e4m3", 8, 448.0, "OCP FP8 1.0, E4M3 without infinities"),
        NumberFormat("fp8_e5m2", 8, 57344.0, "OCP FP8 1.0, E5M2"),
        NumberFormat("int8", 8, 127.0, "two's complement, symmetric"),
        NumberFormat("int4", 4, 7.0, "two's complement, symmetric"),
        NumberFormat("nf4", 4, 1.0, "QLoRA (arXiv:2305.14314), Appendix E: 16 normal quantiles in [-1, 1]"),
    )
}


@dataclass(frozen=True)
class StorageConstants:
    """Field widths in bits that several methods share, each with its source."""

    #: per-group scale, zero point, minimum or maximum: FP16 (KIVI, QServe, Atom, Oaken Table 2)
    group_value: int = 16
    #: Oaken: code of every element in the dense matrix (Oaken 4.5)
    oaken_dense: int = 4
    #: Oaken COO entry: index inside a 64-element chunk (Oaken 4.5)
    coo_index: int = 6
    #: Oaken COO entry: elements a 6-bit index can reach
    coo_chunk: int = 64
    #: one count per token and chunk finds the chunk's entries (project's packed layout)
    chunk_count: int = 8
    #: 4-bit code that fills the last byte of an odd row (no paper says; NF4 has its code of zero, bitsandbytes')
    odd_pad: int = 0
    #: position of a token kept in full precision (SinkQ pool, project's packed layout)
    position: int = 32
    #: KIVI and SinkQ pack codes into 32-bit words
    word: int = 32
    #: KVQuant outlier: 16-bit value and 16-bit index (KVQuant's CSR entries)
    kvquant_outlier: int = 32
    #: KVQuant: outliers of one token (KVQuant's CSR row pointers, kept as counts; project's packed layout)
    kvquant_count: int = 16
    #: ggml: consecutive channels of a head that share a block (QK8_0, QK4_0, ...)
    ggml_block: int = 32
    #: latent (MLA) heads of vLLM's *_ds_mla slots: latent channels, RoPE channels of a token (csrc/cache_kernels.cu)
    mla_latent: int = 512
    mla_rope: int = 64


storage = StorageConstants()


@dataclass(frozen=True)
class BlockType:
    """A ggml type: blocks of `storage.ggml_block` codes with a step d in FP16 and, where `minimum`, a minimum m."""

    name: str
    code_bits: int
    minimum: bool
    #: multiples of d that the codes stand for, where they are not evenly spaced
    levels: tuple[int, ...] = ()

    @property
    def bits(self) -> int:
        """Bits of a block."""
        return storage.ggml_block * self.code_bits + storage.group_value * (1 + self.minimum)


#: llama.cpp's quantized cache types by its names
GGML_TYPES = {
    entry.name: entry
    for entry in (
        BlockType("q8_0", 8, False),
        BlockType("q5_0", 5, False),
        BlockType("q5_1", 5, True),
        BlockType("q4_0", 4, False),
        BlockType("q4_1", 4, True),
        # ggml-common.h, kvalues_iq4nl
        BlockType("iq4_nl", 4, False, (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)),
    )
}


@dataclass(frozen=True)
class TurboQuantType:
    """A TurboQuant preset of vLLM: a code of `key_bits` (8: E4M3 without a scale) and of `value_bits` an element."""

    name: str
    key_bits: int
    value_bits: int

    def bytes_of(self, which: str, head_dim: int) -> int:
        """Bytes of a head's key (codes, FP16 norm) or value (codes, FP16 scale and minimum), without padding."""
        if which == "key":
            return head_dim * self.key_bits // 8 + (2 if self.key_bits < 8 else 0)
        return head_dim * self.value_bits // 8 + 4

    def padding_bytes(self, head_dim: int) -> int:
        """Bytes that fill a slot of key and value up to an even size; they stand behind the value."""
        return (self.bytes_of("key", head_dim) + self.bytes_of("value", head_dim)) % 2

    def problem(self, head_dim: int) -> str:
        """Why a head dimension does not fit, "" where it does."""
        if self.key_bits < 8 and (head_dim < 8 or head_dim & (head_dim - 1)):
            return f"head_dim = {head_dim}: must be a power of two from 8 on for turboquant_{self.name}"
        if head_dim % 2:
            return f"head_dim = {head_dim}: must be even for turboquant_{self.name}"
        return ""


#: TurboQuant presets by their names without "turboquant_" (vLLM 0.33.0, quantization/turboquant/config.py)
TURBOQUANT_TYPES = {
    entry.name: entry
    for entry in (
        TurboQuantType("k8v4", 8, 4),
        TurboQuantType("4bit_nc", 4, 4),
        TurboQuantType("k3v4_nc", 3, 4),
        TurboQuantType("3bit_nc", 3, 3),
    )
}


@dataclass(frozen=True)
class ScaledType:
    """A format of `block` codes with one scale of a byte; `global_bits` of a layer's keys (and values) beside them."""

    name: str
    code_bits: int
    block: int
    #: what the codes and the scales are
    codes: str
    scales: str
    source: str
    scale_bits: int = 8
    global_bits: int = 0

    @property
    def bits(self) -> int:
        """Bits of a block."""
        return self.block * self.code_bits + self.scale_bits


#: formats with block scales by the names of the engines that have them
SCALED_TYPES = {
    entry.name: entry
    for entry in (
        ScaledType(
            "nvfp4",
            code_bits=4,
            block=16,
            codes="E2M1",
            scales="E4M3",
            source="vLLM 0.33.0 --kv-cache-dtype nvfp4",
            global_bits=32,
        ),
        ScaledType(
            "nvfp4_4over6",
            code_bits=4,
            block=16,
            codes="E2M1",
            scales="E4M3",
            source="vLLM 0.33.0 --kv-cache-dtype nvfp4_4over6",
            global_bits=32,
        ),
        ScaledType(
            "mxfp4",
            code_bits=4,
            block=32,
            codes="E2M1",
            scales="E8M0",
            source="OCP Microscaling Formats 1.0; no engine stores it yet",
        ),
        ScaledType("mxfp8", code_bits=8, block=32, codes="E4M3", scales="E8M0", source="SGLang 0.5.23 mxfp8"),
        ScaledType(
            "fp4_mx_block16", code_bits=4, block=16, codes="E2M1", scales="E8M0", source="SGLang 0.5.23 fp4_mx_block16"
        ),
    )
}
