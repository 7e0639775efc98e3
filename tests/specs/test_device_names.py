"""Devices of 2026 by name: all are there, are found as people write them, and hold what data sheets print."""

import pytest

from cases import each
from dse.core.errors import InputError
from dse.model import intervals
from dse.specs import catalog, device_names

#: name -> GB, GB/s, dense FP16, FP8, FP4 (TFLOP/s) and INT8 (TOP/s), by hand from data sheets; None: it has none
PRINTED = {
    "a10": (24, 600, 125, None, None, 250),
    "a30": (24, 933, 165, None, None, 330),
    "a40": (48, 696, 149.7, None, None, 299.3),
    "a100-pcie-80gb": (80, 1935, 312, None, None, 624),
    "l20": (48, 864, 119.5, 239, None, 239),
    "t4": (16, 320, 65, None, None, 130),
    "v100-32gb": (32, 900, 125, None, None, None),
    "v100-16gb": (16, 900, 125, None, None, None),
    "jetson-thor": (128, 273, 258.75, 517.5, 1035, None),
    "l4": (24, 300, 121, 242.5, None, 242.5),
    "rtx-5090": (32, 1792, 209.5, 419, 1676, 838),
    "h100-nvl": (94, 3900, 835, 1670, None, 1670),
    "mi300x": (192, 5300, 1307.4, 2614.9, None, 2614.9),
    "mi355x": (288, 8000, 2516.6, 5033.2, 10066.3, 5033.2),
    "gaudi3": (128, 3700, 1835, 1835, None, None),
    "tpu-v5e": (16 * 1.073741824, 819, 197, None, None, 393),
    "tpu-v7": (192 * 1.073741824, 7380, 2307, 4614, None, None),
    "m3-ultra": (512 * 1.073741824, 819, 28.3, None, None, None),
}

WRITTEN = {
    "H100-SXM5-80GB": "H100",
    "NVIDIA H100 80GB HBM3": "H100",
    "A100-SXM4-80GB": "A100-80GB",
    "NVIDIA A100-SXM4-40GB": "A100-40GB",
    "A100-80GB-PCIe": "A100-PCIe-80GB",
    "nvidia/h200": "H200",
    "MI300X": "MI300X",
    "AMD Instinct MI300X": "MI300X",
    "tpu-v5e": "TPU-v5e",
    "TPU v5e": "TPU-v5e",
    "rtx 4090": "RTX-4090",
    "GeForce RTX 4090": "RTX-4090",
    "4090": "RTX-4090",
    "6000-ada": "RTX-6000-Ada",
    "Gaudi 3": "Gaudi3",
    "Apple M3 Ultra": "M3-Ultra",
    "DGX Spark": "DGX-Spark",
    "GH200": "GH200-96GB",
    "rtx4090": "RTX-4090",
    "RTXA6000": "RTX-A6000",
    "L20": "L20",
    "Tesla T4": "T4",
    "Tesla V100": "V100-32GB",
    "V100-SXM2-16GB": "V100-16GB",
    "Jetson AGX Thor": "Jetson-Thor",
    "H100 80GB": "H100",
}


@each("name", PRINTED)
def test_numbers_are_those_of_the_data_sheets(name):
    device = catalog.device(name)
    peaks = (device.peak_flops, device.peak_flops_fp8, device.peak_flops_fp4, device.peak_ops_int8)
    found = (
        device.capacity_bytes / 1e9,
        device.memory_bandwidth.si / 1e9,
        *(p.si / 1e12 if p else None for p in peaks),
    )
    assert found == pytest.approx(PRINTED[name])


@each("written", WRITTEN)
def test_names_as_people_write_them(written):
    assert catalog.device(written).name == WRITTEN[written]


def test_other_names_are_of_shipped_devices():
    names = catalog.device_aliases()
    in_files = [(alias, name) for name in catalog.device_files() for alias in catalog.device(name).aliases]
    assert names == (*in_files, *((name, name) for name in catalog.device_files()))
    assert len(in_files) >= 48
    assert len({device_names.plain(name) for name, _ in names}) == len(names)


@each("name", sorted(catalog.device_files()))
def test_a_name_mistyped_by_one_letter_is_answered_by_the_right_one(name):
    known, letters = catalog.device_aliases(), "x02"
    mistyped = {name[:i] + name[i + 1 :] for i in range(len(name))}
    mistyped |= {name[:i] + letter + name[i + 1 :] for i in range(len(name)) for letter in letters}
    mistyped |= {name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in range(len(name) - 1)}
    for wrong in mistyped - {name}:
        if device_names.meant(wrong, known):  # another device, or the same without a dash
            continue
        with pytest.raises(InputError, match="unknown device") as error:
            catalog.device(wrong)
        suggested = str(error.value).partition("did you mean ")[2].partition("?")[0].split(", ")
        assert name in suggested, wrong


def test_borrowed_kernels_widen_more_the_farther_the_lender():
    widths = [intervals.borrowed_width(catalog.device(name)) for name in ("h100", "h100-pcie", "rubin", "mi300x")]
    # the numbers of Rubin are assumed as well
    assert widths == pytest.approx([1.0, 1.15, 1.3 * 1.15, 1.5])


def test_every_device_has_a_vendor():
    assert all(catalog.device(name).vendor for name in catalog.device_files())


def test_a_name_of_two_devices_says_the_other():
    shipped = catalog.device_aliases()
    assert device_names.others("gh200", shipped) == ["gh200-144gb"]
    assert device_names.others("v100", shipped) == ["v100-16gb"]
    for sure in ("h100", "gh200-144gb", "rtx4090", "no such device"):
        assert device_names.others(sure, shipped) == []


@each(
    ("name", "counted"),
    [
        ("8xh100", (8, "h100")),
        ("8x H200", (8, "H200")),
        ("4 * A100-80GB", (4, "A100-80GB")),
        ("16 X rtx 4090", (16, "rtx 4090")),
        ("0xh100", None),
        ("h100", None),
        ("8x4090", None),
        ("x", None),
    ],
)
def test_numbers_of_devices_before_a_name(name, counted):
    assert device_names.counted(name) == counted
