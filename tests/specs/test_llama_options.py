"""Options of llama.cpp as people type them: layers by number or by pattern, and switches that stand for a value."""

import pytest

from dse.specs import engine_options
from dse.specs.llama_options import MOST_LAYERS
from dse.specs.workload import ASKED


@pytest.mark.parametrize(
    ("field", "text", "layers"),
    [
        ("gpu_layers", "33", 33),
        ("gpu_layers", "all", MOST_LAYERS),
        ("cpu_moe_layers", "12", 12),
        ("cpu_moe_layers", "all", MOST_LAYERS),
        ("cpu_moe_layers", ".ffn_.*_exps.=CPU", MOST_LAYERS),
        ("cpu_moe_layers", "exps=CPU", MOST_LAYERS),
        (r"cpu_moe_layers", r"blk\.(0|1|2|3)\.ffn_.*_exps\.=CPU", 4),
        # of two patterns, layers 0 to 9 and 20 to 29
        ("cpu_moe_layers", r"blk\.[0-9]\.ffn_.*_exps=CPU,blk\.2[0-9]\.ffn_.*_exps=CPU", 20),
    ],
)
def test_layers_by_number_or_pattern(field, text, layers):
    assert ASKED[field].read(text) == layers


def test_switches_stand_for_an_option_with_a_value():
    typed = ["point", "-cmoe", "--swa_full", "-c", "8192"]
    assert engine_options.spelled_out(typed) == [
        "point",
        "--n-cpu-moe",
        "all",
        "--swa-full-tokens-ratio",
        "1",
        "-c",
        "8192",
    ]


def test_what_commands_take_is_not_answered_away():
    """-ctk and -c are options here; -ctkd and -cb are llama.cpp's alone, which a parser would take for -c tkd."""
    assert [engine_options.is_cut(word) for word in ("-ctk", "-c", "-ctkd", "-cb", "--cpu-moe")] == [
        False,
        False,
        True,
        True,
        False,
    ]
