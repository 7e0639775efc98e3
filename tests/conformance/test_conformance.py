"""The golden vectors that ship with the project, and what the checker says of damaged ones."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cases import each
from conformance import mx_libraries, run, runner
from conformance.checks import INFORMATIVE, METHODS, method_of
from conformance.compare import KINDS, Pair
from conformance.run import main
from conformance.vectors import load, read_manifest

GOLDEN = Path(__file__).parents[1] / "golden" / "quantizers"
SMALL = ("oaken_tiny_d16.npz", "nf4_ties.npz", "oakenpaper_tiny_d7.npz", "nf4_nonfinite.npz")


def npz(arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


class Folder:
    """A directory of golden vectors that can be changed."""

    def __init__(self, path, names):
        self.path = path
        data = json.loads((GOLDEN / "manifest.json").read_text())
        self.files = [entry for entry in data["files"] if entry["file"] in names]
        path.mkdir()
        for name in names:
            shutil.copy(GOLDEN / name, path / name)
            (path / name).chmod(0o644)
        self.save()

    def save(self, **changes):
        (self.path / "manifest.json").write_text(json.dumps({"files": self.files, **changes}))

    def entry(self, name):
        return next(entry for entry in self.files if entry["file"] == name)

    def replace(self, name, content):
        """Another content for a file, with the manifest's blessing."""
        (self.path / name).write_bytes(content)
        self.entry(name)["sha256"] = hashlib.sha256(content).hexdigest()
        self.save()

    def change(self, name, array, change):
        """Change one array of a file, with the manifest's blessing."""
        with np.load(self.path / name) as file:
            arrays = dict(file)
        arrays[array] = change(arrays[array].copy())
        listed = self.entry(name)["arrays"][array]
        listed["shape"], listed["dtype"] = list(arrays[array].shape), arrays[array].dtype.name
        self.replace(name, npz(arrays))


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "golden", SMALL)


@pytest.fixture
def check(folder, capsys):
    """Run the command on the folder: (exit status, JSON or the line on stderr)."""

    def check(*arguments):
        status = main([str(folder.path), "--json", *arguments])
        printed = capsys.readouterr()
        if status == 2:
            assert not printed.out
            assert printed.err.startswith("error: ")
            assert printed.err.count("\n") == 1
            return status, printed.err
        assert not printed.err
        found = json.loads(printed.out)
        assert found["passed"] == (status == 0)
        return status, found

    return check


def problems(found):
    return {row["file"]: row["problem"] for row in found["rows"] if row["problem"]}


# the vectors that ship


@pytest.fixture(scope="module")
def shipped():
    return runner.run(GOLDEN)


def test_every_value_of_the_shipped_vectors_is_equal(shipped):
    assert [row for row in shipped.rows if row.problem or row.mismatched] == []
    assert shipped.passed


def test_shipped_vectors_cover_every_method_and_kind(shipped):
    assert {row.method for row in shipped.rows} == {method.label for method in METHODS.values()}
    assert {row.kind for row in shipped.rows} == set(KINDS) - {"other"}
    for kind, (files, compared, mismatched) in runner.totals(shipped).items():
        assert files > 0, kind
        assert compared > 10_000, kind
        assert mismatched == 0, kind


def test_what_is_left_out_is_informative(shipped):
    for what, why in shipped.left_out.items():
        assert why.startswith("informative: ") or what == "base_atom.npz: atom_sym8", what


def test_shipped_files_are_those_of_the_manifest():
    listed = {entry.file for entry in read_manifest(GOLDEN)}
    there = {path.name for path in GOLDEN.iterdir() if path.suffix == ".npz"}
    assert there == listed
    assert (GOLDEN / "README.md").exists()


def test_informative_files_have_a_reason_and_no_orphans():
    assert all(INFORMATIVE.values())
    for method in METHODS.values():
        assert method.check.__doc__


def test_a_report_has_every_kind_of_oracle(shipped):
    text = run.as_text(shipped)
    assert text.rstrip().endswith("all equal")
    assert all(f"\n{title}\n" in text for kind, title in KINDS.items() if kind != "other")
    assert "\nnot compared\n" in text


@pytest.mark.slow
def test_the_script_compares_every_file_of_the_folder(folder):
    command = [sys.executable, str(Path(run.__file__)), str(folder.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all equal\n")
    assert done.stderr == ""


_NVFP4 = {"key", "value", "k_scale", "v_scale"}
#: one file of each family, and the arrays that are inputs there
FAMILIES = {
    "oaken_tiny_d16.npz": {"key", "value", "profile_key", "profile_value", "fracs"},
    "oakenpaper_tiny_d7.npz": {"x", "thresholds_olo_ilo_ihi_ohi"},
    "nf4_tail_odd.npz": {"x_b64", "x_b128", "x_b256"},
    "kivi_edges.npz": {"key", "value"},
    "sinkq_sink0.npz": {"key", "value"},
    "sinkq_window_full.npz": {"key", "value"},
    "base_int8_pertoken.npz": {"x"},
    "gguf_q4_1_edges_d128_fp16.npz": {"x"},
    "gguf_q5_0_kv_d96_bf16.npz": {"x"},
    "gguf_q4_0_edges_d128_fp32.npz": {"x"},
    "ggml_x86avx2_q8_0_ties_d64_fp32.npz": {"x"},
    "pth_int8_kv_d192_bf16.npz": {"key", "value", "k_gpu_sensitive", "v_gpu_sensitive"},
    "pth_int4_edges_d128_fp16.npz": {"key", "value", "k_gpu_sensitive", "v_gpu_sensitive"},
    # a bit of a norm or of a unit vector changes no code
    "tq_k3v4_nc_kv_d64_fp16.npz": {"key", "value", "k_near_midpoint", "k_norm", "k_rotated_unit"},
    "tq_k8v4_kv_d80_bf16.npz": {"key", "value"},
    "fp8_tensor_kv_d80_fp16_s0.037.npz": {"x", "k_scale"},
    "fp8_ds_mla_kv_bf16.npz": {"kv_c", "k_pe"},
    "nvfp4_ds_mla_kv.npz": {"kv_c", "k_pe"},
    "nvfp4_4over6_vllm_edges_d64_fp16_g0.0123.npz": _NVFP4 | {"k_fma_differs", "v_fma_differs"},
    "nvfp4_vllm_kv_d192_fp16_odd.npz": _NVFP4 | {"k_fma_differs", "v_fma_differs"},
    "nvfp4_flashinfer_edges_d80_bf16_g0.25.npz": _NVFP4,
    "nvfp4_torchao_kv_d64_bf16.npz": {"x", "two_level_global"},
    "nvfp4_modelopt_kv_d64_bf16.npz": {"x", "global_scale"},
    "nvfp4_vllmref_huge_d128_bf16.npz": {"x", "global_scale"},
    "mxfp4_torchao_ties_d64_bf16.npz": {"x"},
    "mxfp4_gguf_edges_d128_bf16.npz": {"x"},
    "mxfp4_microxcaling_ties_d64_bf16.npz": {"x"},
    "mxfp4_vllmref_edges_d128_bf16.npz": {"x"},
    "mxfp8_sglang_ties8_d64_fp32.npz": {"x", "slots"},
    "mxfp8_vllm_edges_d128_bf16.npz": {"x"},
    "fp4_mx_block16_sglang_kv_d128_fp16.npz": {"x"},
    "fp8_tables.npz": {"fp16_bits"},
    "hf_fp8.npz": {"key", "key_step2", "value", "value_step2"},
    "hf_quanto.npz": {"key", "value"},
    "base_atom.npz": {"key", "value", "atom_sym8"},
    "base_qserve.npz": {"key", "value"},
    "base_tender.npz": {"key", "value"},
    "base_kvquant.npz": {"key", "value", "lut", "k_lower", "k_upper", "k_nuq_lower", "k_nuq_upper"},
}


def flip_bits(values):
    """A copy in which the first, the middle and the last number differ by a bit (NaN stays NaN whichever changes)."""
    values = np.array(values)
    flat = values.reshape(-1)
    numbers = np.flatnonzero(flat == flat)
    flat.view(f"u{values.dtype.itemsize}")[numbers[[0, numbers.size // 2, -1]]] ^= 1
    return values


@each("name", FAMILIES)
def test_every_output_is_compared(name):
    """Change a few bits of every output: each is found out under its own name."""
    entry = next(entry for entry in read_manifest(GOLDEN) if entry.file == name)
    changed = load(GOLDEN, entry)
    outputs = set(changed) - FAMILIES[name]
    for array in outputs:
        changed.arrays[array] = flip_bits(changed.arrays[array])
    pairs = method_of(Path(name).stem).check(changed)
    found = {re.split(r"[\[ ]", pair.name)[0] for pair in pairs if pair.first_mismatch()}
    assert found == outputs


def test_every_family_is_tried():
    assert {method_of(Path(name).stem).label for name in FAMILIES} == {method.label for method in METHODS.values()}


# the comparison itself


def test_nan_equals_nan_and_zeros_differ():
    a = np.array([0x7E00, 0x7C01, 0x0000, 0x8000, 0x3C00], np.uint16).view(np.float16)
    b = np.array([0xFE01, 0x7E00, 0x8000, 0x8000, 0x3C00], np.uint16).view(np.float16)
    assert Pair("x", a, b).mismatches().tolist() == [False, False, True, False, False]
    assert Pair("x", a, b).first_mismatch() == "x[2]: -0.0, must be 0.0"
    assert not Pair("x", a, b, where=np.array([True, True, False, True, True])).mismatches().any()
    assert Pair("x", a, b, where=np.array([True, True, False, True, True])).compared == 4


def test_shape_and_dtype_count():
    x = np.zeros((2, 3), np.float16)
    assert Pair("x", x, x.astype(np.float32)).mismatches().all()
    assert Pair("x", x, x.T).mismatches().sum() == 6
    assert "float16 [3, 2], must be float16 [2, 3]" in Pair("x", x, x.T).first_mismatch()
    assert Pair("x", np.float16(1), np.float16(2)).mismatches().sum() == 1


# damaged directories: exit status 1


def test_the_small_folder_passes(check):
    status, found = check()
    assert status == 0
    assert found["n_files"] == 4
    assert "nf4_nonfinite.npz" in found["not_compared"]
    assert found["totals"]["shim"]["files"] == 1


@pytest.mark.parametrize("name", SMALL)
def test_flipped_byte(folder, check, name):
    content = bytearray((folder.path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder.path / name).write_bytes(content)
    status, found = check()
    assert status == 1
    assert problems(found).keys() == {name}
    assert "sha256" in problems(found)[name]


@pytest.mark.parametrize("name", SMALL)
def test_missing_file(folder, check, name):
    (folder.path / name).unlink()
    status, found = check()
    assert status == 1
    assert problems(found) == {name: "is missing"}


def test_a_value_that_differs(folder, check):
    def change(x):
        x[7] ^= 0x10
        return x

    folder.change("nf4_ties.npz", "packed_b64", change)
    status, found = check()
    assert status == 1
    row = next(row for row in found["rows"] if row["file"] == "nf4_ties.npz")
    assert row["mismatched"] == 1
    assert row["problem"].startswith("packed_b64[7]: ")


def test_an_input_that_is_refused_is_a_finding(folder, check):
    folder.change("nf4_ties.npz", "x_b64", lambda x: np.full_like(x, np.nan))
    status, found = check()
    assert status == 1
    assert "cannot be compared: ValueError" in problems(found)["nf4_ties.npz"]


def test_an_output_of_another_shape(folder, check):
    folder.change("nf4_ties.npz", "dequant_b64", lambda x: x[:-1])
    status, found = check()
    assert status == 1
    assert "must be float16 [383]" in problems(found)["nf4_ties.npz"]


def test_an_array_that_is_not_there(folder, check):
    with np.load(folder.path / "nf4_ties.npz") as file:
        arrays = {name: file[name] for name in file.files if name != "absmax_b64"}
    folder.replace("nf4_ties.npz", npz(arrays))
    assert "array 'absmax_b64' is missing" in problems(check()[1])["nf4_ties.npz"]
    del folder.entry("nf4_ties.npz")["arrays"]["absmax_b64"]
    folder.save()
    assert "array 'absmax_b64' is missing" in problems(check()[1])["nf4_ties.npz"]


def test_arrays_that_the_manifest_lists_otherwise(folder, check):
    folder.entry("nf4_ties.npz")["arrays"]["x_b64"]["shape"] = [12]
    folder.save()
    assert "the manifest says 'float16' [12]" in problems(check()[1])["nf4_ties.npz"]
    del folder.entry("nf4_ties.npz")["arrays"]["x_b64"]
    folder.save()
    status, found = check()
    assert status == 1
    assert problems(found)["nf4_ties.npz"] == "array 'x_b64' is not in the manifest"


def test_a_file_without_anything_to_compare(folder, check):
    entry = folder.entry("nf4_ties.npz")
    entry["arrays"] = {}
    folder.replace("nf4_ties.npz", npz({}))
    status, found = check()
    assert status == 1
    assert "codebook_f32" in problems(found)["nf4_ties.npz"]


def test_unknown_method(folder, check):
    os.rename(folder.path / "nf4_ties.npz", folder.path / "nqkv5_ties.npz")
    folder.entry("nf4_ties.npz")["file"] = "nqkv5_ties.npz"
    folder.save()
    status, found = check()
    assert status == 1
    assert "no method" in problems(found)["nqkv5_ties.npz"]


def test_not_an_archive_though_the_hash_is_right(folder, check):
    for content in (b"", b"hello", b"PK\3\4" + bytes(100), (folder.path / "nf4_ties.npz").read_bytes()[:-30]):
        folder.replace("nf4_ties.npz", content)
        status, found = check()
        assert status == 1
        assert "is not an .npz file" in problems(found)["nf4_ties.npz"]


def test_nothing_is_unpickled(folder, check):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(folder.path / "boom"),)

    folder.replace("nf4_ties.npz", npz({"x_b64": np.array([Bomb()], object)}))
    assert "is not an .npz file" in problems(check()[1])["nf4_ties.npz"]
    assert not (folder.path / "boom").exists()


def test_a_zip_bomb(folder, check, monkeypatch):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        for _ in range(33):
            member.write(bytes(2**20))
    monkeypatch.setattr("conformance.vectors.MAX_FILE_BYTES", 2**25)
    folder.replace("nf4_ties.npz", file.getvalue())
    assert "unpacks to more than" in problems(check()[1])["nf4_ties.npz"]


def test_links_and_pipes(folder, check, tmp_path):
    inside = folder.path / "nf4_ties.npz"
    os.rename(inside, folder.path / "real.npz")
    inside.symlink_to("real.npz")
    assert check()[0] == 0
    os.rename(folder.path / "real.npz", tmp_path / "real.npz")
    inside.unlink()
    inside.symlink_to(tmp_path / "real.npz")
    assert problems(check()[1])["nf4_ties.npz"] == "is a link out of the directory"
    inside.unlink()
    os.mkfifo(inside)
    assert "not a regular file" in problems(check()[1])["nf4_ties.npz"]


def test_files_that_no_manifest_lists_are_named(folder, check):
    shutil.copy(folder.path / "nf4_ties.npz", folder.path / "stray.npz")
    status, found = check()
    assert status == 0
    assert found["not_compared"]["stray.npz"] == "not in manifest.json"


def test_text_of_a_failure_is_printable(folder, capsys):
    folder.entry("nf4_ties.npz")["arrays"]["a\x1b[31m\n"] = {}
    folder.save()
    assert main([str(folder.path)]) == 1
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert printed.endswith("FAILED: 1 of 4 files\n")


# unusable input: exit status 2 and one line

BAD_MANIFESTS = {
    "empty": "",
    "not JSON": "{'files': []}",
    "cut off": '{"files": [',
    "not UTF-8": b"\xff\xfe",
    "deep": "[" * 100_000,
    "a list": "[]",
    "no files": "{}",
    "empty list": '{"files": []}',
    "twice": '{"files": [1], "files": [2]}',
    "not an object": '{"files": [1]}',
    "huge number": '{"files": ' + "9" * 5000 + "}",
}


@each("case", BAD_MANIFESTS)
def test_bad_manifest(folder, check, case):
    text = BAD_MANIFESTS[case]
    (folder.path / "manifest.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    status, line = check()
    assert status == 2
    assert "manifest.json" in line


@each(
    ("field", "value"),
    [
        ("file", "../nf4_ties.npz"),
        ("file", "/etc/passwd"),
        ("file", "a/b.npz"),
        ("file", ".."),
        ("file", ""),
        ("file", "a\\b.npz"),
        ("file", "a\nb.npz"),
        ("file", None),
        ("file", "oaken_tiny_d16.npz"),
        ("sha256", "123"),
        ("sha256", "g" * 64),
        ("sha256", None),
        ("oracle", None),
        ("params", None),
        ("arrays", []),
        ("arrays", {"x": 1}),
    ],
)
def test_bad_entry(folder, check, field, value):
    entry = folder.entry("nf4_ties.npz")
    good = dict(entry)
    entry[field] = value
    folder.save()
    entry.update(good)  # the next case changes the same manifest
    status, line = check()
    assert status == 2
    assert "manifest.json" in line


def test_no_directory(folder, tmp_path, capsys):
    for path in (tmp_path / "none", tmp_path, folder.path / "nf4_ties.npz", Path("/dev/null"), Path("a\0b")):
        assert main([str(path)]) == 2
        line = capsys.readouterr().err
        assert line.startswith("error: ")
        assert line.count("\n") == 1
    (folder.path / "manifest.json").unlink()
    os.mkfifo(folder.path / "manifest.json")
    assert main([str(folder.path)]) == 2


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["a", "--yes"]])
def test_usage(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_sglangs_eager_form_divides_by_zero_and_by_infinity_in_fp16():
    """By hand from kvfp4_tensor.py: 1e-10 is 0 in FP16, so log2 gives -inf; infinite exponents are stored as byte 0."""
    x = np.zeros((6, 16), np.float32)
    x[0, ::2], x[0, 1::2] = -(2.0**-24), 2.0**-24  # a sixth rounds to 0
    x[1] = 2.0**-22  # a sixth rounds to 2^-24: code 4, the value of index 6
    x[2] = np.inf
    x[3, :2] = np.inf, -5
    x[4] = 65504
    codes, scales = mx_libraries.sglang_eager(x, "float16")
    assert scales[:, 0].tolist() == [0, 103, 0, 0, 141, 0]
    assert codes[0].tolist() == [15, 7] * 8
    assert [set(row.tolist()) for row in codes[1:]] == [{6}, {0}, {0}, {6}, {0}]
