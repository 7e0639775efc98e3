"""Devices of 2026 by name: all are there, are found as people write them, and hold what data sheets print."""

import pytest

from cases import each
from dse.core.errors import InputError
from dse.model import intervals
from dse.model.point import Point
from dse.specs import catalog, device_names
from dse.specs.workload import Workload
from factories import build

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

#: name -> GB, GB/s, dense FP16 (TFLOP/s) and W as vendors' pages had them in September 2026; None: not printed
PAGES = {
    "RTX 4060 8GB": (8, 272, 30.2, 115),
    "RTX 4060 Ti 8GB": (8, 288, 44.1, 160),
    "RTX 4060 Ti 16GB": (16, 288, 44.1, 165),
    "RTX 4070 12GB": (12, 504, 58.4, 200),
    "RTX 4070 Ti 12GB": (12, 504, 80.2, 285),
    "RTX 4080 12GB": (12, 432, 67.7, 150),
    "RTX 4080 16GB": (16, 717, 97.5, 320),
    "RTX 5070 12GB": (12, 672, 61.7, 250),
    "RTX 5070 Ti 16GB": (16, 896, 87.9, 300),
    "RTX 5080 16GB": (16, 960, 112.6, 360),
    "RTX 3080 10GB": (10, 760, 59.5, 320),
    "RTX PRO 6000 Blackwell Workstation 96GB": (96, 1792, 503.8, 600),
    "RTX PRO 6000 Blackwell Max-Q 96GB": (96, 1792, 438.9, 300),
    "MI350X 288GB": (288, 8000, 2309.6, 1000),
    "MI455X 432GB": (432, 23300, 5033, None),
    "Arc Pro B60 24GB": (24, 456, None, 200),
    "Arc Pro B65 32GB": (32, 608, None, 200),
    "RX 9070 16GB": (16, 640, 145, 220),
    "RX 9070 XT 16GB": (16, 640, 195, 304),
    "RX 9060 XT 16GB": (16, 320, 103, 160),
    "Radeon AI PRO R9700 32GB": (32, 640, 191, 300),
    "Apple A18 Pro 5-core GPU 8GB": (8, 60, None, None),
    "Apple M4 8-core GPU 24GB": (24, 120, None, None),
    "Apple M4 10-core GPU 32GB": (32, 120, None, None),
    "Apple M5 8-core GPU 16GB": (16, 153, None, None),
    "Apple M5 10-core GPU 32GB": (32, 153, None, None),
    "Apple M6 16GB": (16, 153, None, None),
    "Apple M6 32GB": (32, 170, None, None),
    "Apple M5 Pro 16-core GPU 48GB": (48, 307, None, None),
    "Apple M5 Pro 20-core GPU 64GB": (64, 307, None, None),
    "Apple M5 Max 32-core GPU 36GB": (36, 460, None, None),
    "Apple M5 Max 40-core GPU 128GB": (128, 614, None, None),
    "Apple M5 Ultra 64-core GPU 256GB": (256, 1200, None, None),
    "Apple M5 Ultra 80-core GPU 256GB": (256, 1200, None, None),
    "Ryzen AI Max+ 395 128GB": (128, 256, None, 120),
}

#: name -> GB, GB/s, dense FP16, INT8 (TOP/s), by hand from data sheets, white papers and announcements
PRINTED_2 = {
    "rtx-3060": (12, 360, 25.5, 101.9),  # NVIDIA prints 102 tensor TFLOPS, of FP16 with sparsity and of INT8
    "rtx-3090-ti": (24, 1008, 80, 320),  # GA102 white paper, appendix
    "rtx-4070-super": (12, 504, 71, 284),  # half of 568 AI TOPS
    "rtx-4070-ti-super": (16, 672, 88.2, 353),  # half of 706 AI TOPS
    "rtx-4080-super": (16, 736, 104.4, 418),  # half of 836 AI TOPS
    "rtx-4090-d": (24, 1008, 147.1, 588.5),  # half of 1,177 AI TOPS
    "rtx-5060-ti-16gb": (16, 448, 47.4, 189.75),  # a quarter of 759 AI TOPS, which are of FP4
    "rtx-5080": (16, 960, 112.6, 450.25),  # a quarter of 1,801
    "rtx-5000-ada": (32, 576, 261.1, 522.2),
    "rtx-a5000": (24, 768, 111.1, 222.2),
    "a10g": (24, 600, 70, 140),
    "l40": (48, 864, 181.05, 362),
    "h20-3e": (141, 4800, 148, 296),
    "h200-nvl": (141, 4800, 835.5, 1670.5),
    "h800": (80, 3350, 989, 1979),
    "rx-7900-xtx": (24, 960, 122.8, 122.8),
    "mi308x": (192, 5300, 1307.4 * 80 / 304, 2614.9 * 80 / 304),
    "arc-pro-b60": (24, 456, 98.5, 197),
    "arc-pro-b70": (32, 608, 183.5, 367),
    "strix-halo": (128, 256, 59.4, None),
    "m4-pro": (64, 273, 8.09, None),
    "m5-max": (128, 614, 64.7, None),
    "ascend-910c": (128, 3200, 752, 1504),
    "trainium3": (144, 4900, 671, None),
    "tpu-8i": (288, 8601, 10100 / 4, None),
}

WRITTEN = {
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA GH200 480GB": "GH200-96GB",  # 480 GB are its CPU's
    "AMD Instinct MI300X VF": "MI300X",
    "AMD Instinct MI308X OAM": "MI308X",
    "TPU v5 lite": "TPU-v5e",
    "TPU v6 lite": "TPU-v6e",
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
    # as logs, drivers and public tables of 2026 have them
    "A100 40GB": "A100-40GB",
    "A100 80GB": "A100-80GB",
    "AMD R9700": "R9700",
    "Apple A18 Pro 5-core GPU 8GB": "A18-Pro",
    "Apple M4 10-core GPU 32GB": "M4",
    "Apple M4 8-core GPU 24GB": "M4-8-core",
    "Apple M5 10-core GPU 32GB": "M5",
    "Apple M5 8-core GPU 16GB": "M5-8-core",
    "Apple M5 Max 32-core GPU 36GB": "M5-Max-32-core",
    "Apple M5 Max 40-core GPU 128GB": "M5-Max",
    "Apple M5 Pro 16-core GPU 48GB": "M5-Pro-16-core",
    "Apple M5 Pro 20-core GPU 64GB": "M5-Pro",
    "Apple M5 Ultra 64-core GPU 256GB": "M5-Ultra-64-core",
    "Apple M5 Ultra 80-core GPU 256GB": "M5-Ultra",
    "Apple M6 16GB": "M6-16GB",
    "Apple M6 32GB": "M6",
    "Arc Pro B50": "Arc-Pro-B50",
    "Arc Pro B60 24GB": "Arc-Pro-B60",
    "Arc Pro B65 32GB": "Arc-Pro-B65",
    "B200 180GB": "B200",
    "DGX Spark (GB10)": "DGX-Spark",
    "DGX Spark 128GB": "DGX-Spark",
    "GB10": "DGX-Spark",
    "H100 (SM90)": "H100",
    "H100 NVL": "H100-NVL",
    "H100-80GB": "H100",
    "H20 141 GB (inferred)": "H20-3e",
    "H200 141GB": "H200",
    "L4 24GB": "L4",
    "M5 Max": "M5-Max",
    "MI300X 192GB": "MI300X",
    "MI325X 256GB": "MI325X",
    "MI350X 288GB": "MI350X",
    "MI355X 288GB": "MI355X",
    "MI455X 432GB": "MI455X",
    "NVIDIA GeForce RTX 3060": "RTX-3060",
    "Quadro RTX 8000": "Quadro-RTX-8000",
    "RTX 3080 10GB": "RTX-3080",
    "RTX 3090": "RTX-3090",
    "RTX 3090 24GB": "RTX-3090",
    "RTX 3090 Ti": "RTX-3090-Ti",
    "RTX 4060 8GB": "RTX-4060",
    "RTX 4060 Ti 16GB": "RTX-4060-Ti-16GB",
    "RTX 4060 Ti 8GB": "RTX-4060-Ti-8GB",
    "RTX 4070 12GB": "RTX-4070",
    "RTX 4070 Ti 12GB": "RTX-4070-Ti",
    "RTX 4080 12GB": "RTX-4080-Laptop",
    "RTX 4080 16GB": "RTX-4080",
    "RTX 4090": "RTX-4090",
    "RTX 4090 24GB": "RTX-4090",
    "RTX 5000 Ada": "RTX-5000-Ada",
    "RTX 5070 12GB": "RTX-5070",
    "RTX 5070 Ti 16GB": "RTX-5070-Ti",
    "RTX 5080 16GB": "RTX-5080",
    "RTX 5090": "RTX-5090",
    "RTX 5090 32GB": "RTX-5090",
    "RTX 6000 Ada": "RTX-6000-Ada",
    "RTX PRO 6000": "RTX-PRO-6000",
    "RTX PRO 6000 96GB": "RTX-PRO-6000",
    "RTX PRO 6000 Blackwell Max-Q 96GB": "RTX-PRO-6000-Max-Q",
    "RTX PRO 6000 Blackwell Server 96GB": "RTX-PRO-6000",
    "RTX PRO 6000 Blackwell Workstation 96GB": "RTX-PRO-6000-Workstation",
    "RTX3090": "RTX-3090",
    "RTX4090": "RTX-4090",
    "RX 9060 XT 16GB": "RX-9060-XT",
    "RX 9070 16GB": "RX-9070",
    "RX 9070 XT 16GB": "RX-9070-XT",
    "Radeon AI PRO R9700 32GB": "R9700",
    "Ryzen AI Max+ 395 (gfx1151)": "Strix-Halo",
    "Ryzen AI Max+ 395 128GB": "Strix-Halo",
    "T4 16GB": "T4",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "h100_sxm": "H100",
    "h200_sxm": "H200",
    "NVIDIA GeForce RTX 4070 Ti SUPER": "RTX-4070-Ti-Super",
    "AMD Radeon RX 7900 XTX": "RX-7900-XTX",
    "AMD Instinct MI308X": "MI308X",
    "Apple M4 Pro": "M4-Pro",
    "Strix Halo": "Strix-Halo",
    "Ryzen AI Max+ 395": "Strix-Halo",
    "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S": "Strix-Halo",
    "Ascend 910B": "Ascend-910B",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX-PRO-6000-Workstation",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "RTX-PRO-6000-Max-Q",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000",
    "Intel(R) Arc(TM) Pro B60 Graphics": "Arc-Pro-B60",
    "AMD Radeon(TM) RX 9070 XT": "RX-9070-XT",
    "NVIDIA RTX 5000 Ada Generation": "RTX-5000-Ada",
    "NVIDIA GeForce RTX 4080 Laptop GPU": "RTX-4080-Laptop",
    "NVIDIA GeForce RTX 4090 D": "RTX-4090-D",
    "RTX 4090D": "RTX-4090-D",
    "Trainium 3": "Trainium3",
    "RX 7900 XT": "RX-7900-XT",
    "RTX PRO 6000 Max-Q": "RTX-PRO-6000-Max-Q",
    "RTX A6000": "RTX-A6000",
    "A100 (40GB)": "A100-40GB",
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


@each("name", PRINTED_2)
def test_numbers_of_devices_of_2026_are_those_printed(name):
    device, (memory_gb, gb_per_s, fp16, int8) = catalog.device(name), PRINTED_2[name]
    assert device.memory_capacity.value == memory_gb
    assert device.memory_bandwidth.si == pytest.approx(gb_per_s * 1e9)
    assert device.peak_flops.si == pytest.approx(fp16 * 1e12, rel=2e-3)
    found = device.peak_ops_int8.si / 1e12 if device.peak_ops_int8 else None
    assert found == (int8 and pytest.approx(int8, rel=3e-3))


@each("name", PAGES)
def test_numbers_are_those_of_the_vendors_pages(name):
    device, (memory_gb, gb_per_s, fp16, watt) = catalog.device(name), PAGES[name]
    assert device.memory_capacity.value == memory_gb
    assert device.memory_bandwidth.si == pytest.approx(gb_per_s * 1e9)
    assert fp16 is None or device.peak_flops.si == pytest.approx(fp16 * 1e12)
    assert fp16 or device.peak_flops.kind in ("derived", "assumed")
    assert watt == (device.board_power.si if device.board_power else None)


@each("written", WRITTEN)
def test_names_as_people_write_them(written):
    assert catalog.device(written).name == WRITTEN[written]


def test_other_names_are_of_shipped_devices():
    names = catalog.device_aliases()
    in_files = [(alias, name) for name in catalog.device_files() for alias in catalog.device(name).aliases]
    sized = len(names) - len(in_files) - len(catalog.device_files())
    assert names[sized:] == (*in_files, *((name, name) for name in catalog.device_files()))
    assert all(name.endswith(f"-{catalog.device(of).memory_capacity.value:g}gb") for name, of in names[:sized])
    assert len(in_files) >= 48
    assert len({device_names.plain(name) for name, _ in names}) == len(names)


@each("name", sorted(catalog.device_files()))
def test_a_name_mistyped_by_one_letter_is_answered_by_the_right_one(name):
    known, letters = catalog.device_aliases(), "x02"
    mistyped = {name[:i] + name[i + 1 :] for i in range(len(name))}
    mistyped |= {name[:i] + letters[i % len(letters)] + name[i + 1 :] for i in range(len(name))}
    mistyped |= {name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in range(len(name) - 1)}
    for wrong in mistyped - {name}:
        if device_names.meant(wrong, known):  # another device, or the same without a dash
            continue
        with pytest.raises(InputError, match="unknown device") as error:
            catalog.device(wrong)
        suggested = str(error.value).partition("did you mean ")[2].partition("?")[0].split(", ")
        # more than five devices go on so or are one letter away
        assert name in suggested or wrong in ("rtx-4000", "rtx-5000", "a100"), wrong
        assert len(suggested) <= 5


def test_borrowed_kernels_widen_more_the_farther_the_lender():
    widths = [intervals.borrowed_width(catalog.device(name)) for name in ("h100", "h100-pcie", "rubin", "mi300x")]
    # the numbers of Rubin are assumed as well
    assert widths == pytest.approx([1.0, 1.15, 1.3 * 1.15, 1.5])


def test_times_per_token_of_a_vendor_that_were_fitted_to_its_servers_are_known_as_another_device_s():
    amd = catalog.device("mi300x")
    other = amd.model_copy(update={"vendor": "Another"})
    plain, fitted, unknown = (
        Point(device, build("llama3.1-8b", "fp16"), Workload(batch=8, stack="sglang")).lowered.sure
        for device in (catalog.device("h100"), amd, other)
    )
    assert fitted.tokens.high / plain.tokens.high == pytest.approx(1.15)
    assert fitted.first.high / plain.first.high == pytest.approx(1.5)
    assert unknown.tokens.high / plain.tokens.high == pytest.approx(1.5)


def test_every_device_has_a_vendor():
    assert all(catalog.device(name).vendor for name in catalog.device_files())


def test_a_name_of_two_devices_says_the_other():
    shipped = catalog.device_aliases()
    assert device_names.others("gh200", shipped) == ["gh200-144gb"]
    assert device_names.others("v100", shipped) == ["v100-16gb"]
    assert device_names.others("4060 Ti", shipped) == ["rtx-4060-ti-8gb"]
    assert device_names.others("Ascend 950", shipped) == ["ascend-950pr"]
    # a card whose plain name is an edition's: the one for servers, whose kernels were measured
    for written in ("RTX PRO 6000", "RTX PRO 6000 96GB", "RTX 6000 Pro"):
        assert device_names.others(written, shipped) == ["rtx-pro-6000-max-q", "rtx-pro-6000-workstation"]
    for sure in ("h100", "gh200-144gb", "rtx4090", "no such device", "RTX PRO 6000 Server", "RTX PRO 6000 Max-Q"):
        assert device_names.others(sure, shipped) == []


@each(
    ("name", "hint"),
    [
        ("RTX 7090", "did you mean rtx-3090, rtx-4090, rtx-5090?"),
        ("RTX 2080 Ti", "did you mean rtx-3080-ti?"),
        ("RTX 3090, 250 W", "did you mean rtx-3090?"),
        ("foo", "see `dse list devices`"),
        ("rtx-40", "did you mean "),
    ],
)
def test_an_unknown_name_is_answered_by_five_at_most(name, hint):
    with pytest.raises(InputError) as error:
        catalog.device(name)
    (line,) = error.value.lines()
    assert hint in line
    assert line.count(",") <= 4


@each(
    ("name", "counted"),
    [
        ("8xh100", (8, "h100")),
        ("8x H200", (8, "H200")),
        ("4 * A100-80GB", (4, "A100-80GB")),
        ("16 X rtx 4090", (16, "rtx 4090")),
        ("2 x 5090", (2, "5090")),
        ("H200 x8", (8, "H200")),
        ("0xh100", None),
        ("h100", None),
        ("8x4090", None),
        ("x", None),
    ],
)
def test_numbers_of_devices_before_a_name(name, counted):
    assert device_names.counted(name) == counted
