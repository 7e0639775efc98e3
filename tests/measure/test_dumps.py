"""Dumps of KV caches: what is read is exact, and whatever else a file holds is one line of complaint."""

import io
import json
import os
import struct
import threading
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from dse.core.errors import DseError, InputError, LimitError
from dse.measure.dumps import DumpLimits, npy, npz, open_dump, safetensors

K = np.linspace(-3, 3, 24).astype(np.float16).reshape(2, 3, 4)
V = np.array([[np.pi, -0.0], [1e-40, 65504]], np.float32)
KV = {"layer0.key": K, "layer0.value": V}


def npy_bytes(array, **kwargs):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **kwargs)
    return file.getvalue()


def npz_bytes(arrays, save=np.savez):
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def zip_bytes(members, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def with_header(header, content=bytes(8), version=b"\1\0"):
    """A .npy file with this text (or bytes) as its header."""
    header = header.encode() if isinstance(header, str) else header
    width = "<H" if version == b"\1\0" else "<I"
    return b"\x93NUMPY" + version + struct.pack(width, len(header)) + header + content


def fields(descr="'<f2'", order="False", shape="(4,)"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


def safe_bytes(header, content=b""):
    """A .safetensors file by hand: `header` as text or as what JSON makes of it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


def entry(dtype="F16", shape=(2,), offsets=(0, 4), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def safe_kv():
    header = {
        "__metadata__": {"format": "np"},
        "k": entry("F16", K.shape, (0, 48)),
        "v": entry("F32", V.shape, (48, 64)),
        "b": entry("BF16", (3,), (64, 70)),
    }
    return safe_bytes(header, K.tobytes() + V.tobytes() + np.array([0x3F80, 0xFF80, 0x7FC1], "<u2").tobytes())


@pytest.fixture
def write(tmp_path):
    def write(content, name):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def same(array, expected):
    assert array.dtype == expected.dtype
    assert array.dtype.isnative
    assert array.flags.c_contiguous
    assert array.shape == expected.shape
    assert array.tobytes() == np.ascontiguousarray(expected).tobytes()


def read_all(path, limits=None):
    with open_dump(path, limits) as dump:
        return {tensor.name: dump.read(tensor.name) for tensor in dump.tensors}


def is_one_line(error):
    return type(error) in (InputError, LimitError) and len(error.lines()) == 1 and "\n" not in str(error)


def complaint(path, limits=None, kind=InputError):
    """The one line that a file is refused with."""
    with pytest.raises(kind) as caught:
        read_all(path, limits)
    assert is_one_line(caught.value)
    line = caught.value.lines()[0]
    assert path.name[-20:] in line or not path.name.isprintable()
    return line


def arrays_or_error(path, limits=None):
    """Read a file, or return the one line it is refused with; nothing else may happen."""
    try:
        return read_all(path, limits)
    except DseError as error:
        if not is_one_line(error):
            raise
        return error


# what is read


def test_the_list_is_known_before_anything_is_read(write):
    with open_dump(write(npz_bytes(KV), "kv.npz")) as dump:
        assert [(t.name, t.dtype, t.shape, t.n_elements, t.stored_bytes) for t in dump.tensors] == [
            ("layer0.key", "fp16", (2, 3, 4), 24, 48),
            ("layer0.value", "fp32", (2, 2), 4, 16),
        ]
        same(dump.read("layer0.value"), V)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(write, save):
    found = read_all(write(npz_bytes(KV, save), "KV.NPZ"))
    same(found["layer0.key"], K)
    same(found["layer0.value"], V)


@each("version", [(1, 0), (2, 0), (3, 0)])
@each(
    "array",
    [
        K,
        V,
        K.astype(">f2"),
        V.astype(">f4"),
        np.asfortranarray(K),
        np.asfortranarray(K.astype(">f2")),
        K[0, 0],
        np.float16(1.5),
        np.zeros((0, 7), np.float16),
        np.zeros((3, 0, 2), np.float32, order="F"),
    ],
)
def test_npy_of_every_order_gives_the_same_array(write, array, version):
    array = np.asarray(array)
    found = read_all(write(npy_bytes(array, version=version), "k.npy"))
    same(found["k"], np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).reshape(array.shape))


def test_every_bit_pattern_comes_through(write):
    patterns = np.arange(2**16, dtype=np.uint16)
    same(read_all(write(npy_bytes(patterns.view(np.float16)), "k.npy"))["k"], patterns.view(np.float16))
    same(read_all(write(npy_bytes(patterns.view(np.float16).astype(">f2")), "k.npy"))["k"], patterns.view(np.float16))
    widened = (patterns.astype(np.uint32) << 16).view(np.float32)
    same(read_all(write(npy_bytes(patterns.view("V2")), "k.npy"))["k"], widened)
    content = safe_bytes({"k": entry("BF16", (2**16,), (0, 2**17))}, patterns.astype("<u2").tobytes())
    same(read_all(write(content, "k.safetensors"))["k"], widened)


def test_safetensors(write):
    with open_dump(write(safe_kv(), "kv.safetensors")) as dump:
        assert [(t.name, t.dtype) for t in dump.tensors] == [("k", "fp16"), ("v", "fp32"), ("b", "bf16")]
        same(dump.read("k"), K)
        same(dump.read("v"), V)
        assert dump.read("b").view(np.uint32).tolist() == [0x3F800000, 0xFF800000, 0x7FC10000]


def test_a_file_has_as_many_tensors_as_the_limit_and_no_more(write, monkeypatch):
    monkeypatch.setattr(safetensors, "MAX_TENSORS", 3)
    assert len(read_all(write(safe_kv(), "kv.safetensors"))) == 3
    monkeypatch.setattr(safetensors, "MAX_TENSORS", 2)
    with pytest.raises(LimitError, match="has 3 tensors: at most 2 are read: split it"):
        read_all(write(safe_kv(), "kv.safetensors"))


def test_safetensors_padded_header_and_empty_tensors(write):
    header = json.dumps({"a": entry(shape=(0, 3), offsets=(4, 4)), "k": entry()}).encode() + b"    "
    found = read_all(write(safe_bytes(header, b"\0\x3c\0\xbc"), "k.safetensors"))
    assert found["a"].shape == (0, 3)
    assert found["k"].tolist() == [1, -1]
    assert read_all(write(safe_bytes({}), "k.safetensors")) == {}


def test_large_members_come_in_blocks(write, monkeypatch):
    for module in (npz, npy):
        monkeypatch.setattr(f"{module.__name__}.BLOCK_BYTES", 64, raising=False)
    monkeypatch.setattr("dse.measure.dumps.source.BLOCK_BYTES", 64)
    x = np.arange(1000, dtype=np.float16)
    for save in (np.savez, np.savez_compressed):
        same(read_all(write(npz_bytes({"x": x}, save), "x.npz"))["x"], x)
    same(read_all(write(npy_bytes(x), "x.npy"))["x"], x)
    same(read_all(write(npy_bytes(x.astype(">f4")), "x.npy"))["x"], x.astype(np.float32))


def test_archive_with_a_64_bit_end(write, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 10)
    content = zip_bytes([("k.npy", npy_bytes(K))])
    monkeypatch.undo()
    assert b"PK\6\6" in content
    same(read_all(write(content, "k.npz"))["k"], K)
    broken = content.replace(b"PK\6\6", b"PK\6\5")
    assert "64-bit end" in complaint(write(broken, "k.npz"))


def test_a_symbolic_link_is_followed(write, tmp_path):
    (tmp_path / "link.npy").symlink_to(write(npy_bytes(K), "k.npy"))
    same(read_all(tmp_path / "link.npy")["link"], K)


def test_reading_twice_and_from_threads(write):
    big = np.arange(2**20, dtype=np.float32)
    with open_dump(write(npz_bytes({"a": big, "b": big[::-1]}, np.savez_compressed), "k.npz")) as dump:
        found = []
        threads = [threading.Thread(target=lambda n=n: found.append((n, dump.read(n)))) for n in "abab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        for name, array in found:
            same(array, big if name == "a" else np.ascontiguousarray(big[::-1]))


def test_unknown_name_and_closed_dump(write):
    dump = open_dump(write(npz_bytes(KV), "kv.npz"))
    with pytest.raises(InputError, match=r"tensor 'layer0\.keys': is not there: did you mean layer0\.key"):
        dump.read("layer0.keys")
    dump.close()
    dump.close()
    with pytest.raises(ValueError, match="closed"):
        dump.read("layer0.key")


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "4 GiB", None])
def test_limits_are_whole_numbers(bad):
    with pytest.raises(ValueError, match="max_bytes"):
        DumpLimits(max_bytes=bad)
    with pytest.raises(ValueError, match="max_ratio"):
        DumpLimits(max_ratio=bad)


# what is not a file


def test_fifo_device_directory_loop_missing_and_odd_names(tmp_path):
    os.mkfifo(tmp_path / "fifo.npz")
    assert "not a regular file" in complaint(tmp_path / "fifo.npz")
    (tmp_path / "zero.npy").symlink_to("/dev/zero")
    assert "not a regular file" in complaint(tmp_path / "zero.npy")
    (tmp_path / "dir.npz").mkdir()
    assert "is a directory" in complaint(tmp_path / "dir.npz")
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    assert "cannot be read" in complaint(tmp_path / "loop.npy")
    assert "no such file" in complaint(tmp_path / "missing.safetensors")
    assert "cannot be read" in complaint(tmp_path / "nul\0.npy")
    assert "cannot be read" in complaint(tmp_path / ("x" * 300 + ".npy"))


@pytest.mark.parametrize("name", ["kv", "kv.pt", "kv.npz.gz", "kv.bin", ".npz", "kv.pkl", "a\nb.x"])
def test_the_ending_says_what_it_is(write, name):
    assert ".npy, .npz, .safetensors" in complaint(write(npz_bytes(KV), name))


def test_path_of_another_type():
    for path in (None, 3, 1.5, b"k.npy"):
        with pytest.raises(TypeError):
            open_dump(path)


def test_long_path_keeps_the_reason(tmp_path):
    folder = tmp_path / ("d" * 200) / ("e" * 200)
    folder.mkdir(parents=True)
    (folder / "k.npy").write_bytes(with_header(fields("'<f8'")))
    assert "float16" in complaint(folder / "k.npy")


def test_truncated_after_it_was_opened(write):
    for content, name in (
        (npz_bytes(KV), "kv.npz"),
        (npy_bytes(K), "layer0.key.npy"),
        (safe_bytes({"layer0.key": entry("F16", K.shape, (0, 48))}, K.tobytes()), "k.safetensors"),
    ):
        path = write(content, name)
        with open_dump(path) as dump:
            os.truncate(path, 30)
            with pytest.raises(InputError, match=r"early|damaged"):
                dump.read("layer0.key")


def test_read_errors_are_one_line(write, monkeypatch):
    path = write(npy_bytes(K), "k.npy")

    def fail(*args):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    assert "k.npy: cannot be read: input/output error" in complaint(path)


def test_the_kernel_may_read_less_than_asked(write, monkeypatch):
    path = write(npz_bytes(KV), "kv.npz")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, offset: pread(fd, min(count, 7), offset))
    same(read_all(path)["layer0.key"], K)


# .npy

BAD_NPY = {
    "pickled object": (npy_bytes(np.array([{}], object), allow_pickle=True), "dtype '|O': must be float16"),
    "structured": (npy_bytes(np.zeros(2, [("a", "<f2"), ("b", "<f4")])), "dtype with fields"),
    "complex": (npy_bytes(np.zeros(2, np.complex64)), "dtype '<c8'"),
    "datetime": (npy_bytes(np.zeros(2, "M8[s]")), "dtype '<M8[s]'"),
    "text": (npy_bytes(np.zeros(2, "U4")), "dtype '<U4'"),
    "bytes": (npy_bytes(np.zeros(2, "S4")), "dtype '|S4'"),
    "float64": (npy_bytes(np.zeros(2)), "dtype '<f8'"),
    "integers": (npy_bytes(np.zeros(2, np.int16)), "dtype '<i2'"),
    "void of 4": (npy_bytes(np.zeros(2, "V4")), "dtype '|V4'"),
    "big-endian void": (with_header(fields("'>V2'")), "dtype '>V2'"),
    "negative": (with_header(fields(shape="(-4,)")), "shape = (-4,)"),
    "two to the 40": (with_header(fields(shape="(1099511627776,)")), "at most 4,294,967,296"),
    "overflow": (with_header(fields(shape="(4294967296, 4294967296)")), "2^60"),
    "overflow with a zero": (with_header(fields(shape="(0, 9223372036854775807, 9)"), b""), "2^60"),
    "huge digits": (with_header(fields(shape=f"({'9' * 5000},)")), "whole numbers"),
    "not a tuple": (with_header(fields(shape="(4)")), "whole numbers"),
    "a list": (with_header(fields(shape="[4]")), "is not that of a .npy file"),
    "spaces in numbers": (with_header(fields(shape="(4 4,)")), "whole numbers"),
    "33 axes": (with_header(fields(shape="(" + "1, " * 33 + ")"), bytes(2)), "has 33 axes"),
    "code": (with_header(fields(shape="__import__('os').getcwd()")), "is not that of a .npy file"),
    "code behind": (with_header(fields()[:-2] + "or exit()}\n"), "is not that of a .npy file"),
    "nesting": (with_header("(" * 9000), "is not that of a .npy file"),
    "list bomb": (with_header(fields("[" * 3000)), "dtype with fields"),
    "no dictionary": (with_header("4\n"), "is not that of a .npy file"),
    "empty header": (with_header(""), "is not that of a .npy file"),
    "missing field": (with_header("{'descr': '<f2', 'shape': (4,)}"), "is not that of a .npy file"),
    "extra field": (with_header(fields()[:-2] + "'x': 1}"), "is not that of a .npy file"),
    "field twice": (with_header(fields()[:-2] + "'descr': '<f2'}"), "gives descr twice"),
    "wrong kinds": (with_header("{'descr': True, 'fortran_order': '<f2', 'shape': (4,)}"), "is not that of a .npy"),
    "order as a number": (with_header(fields(order="1")), "is not that of a .npy file"),
    "header beyond 10,000": (with_header(fields() + " " * 10_000), "a header of 10,"),
    "header of 64 KB": (with_header(fields() + " " * 65_000, version=b"\2\0"), "a header of 65,"),
    "header of 4 GB": (b"\x93NUMPY\2\0\xff\xff\xff\xff", "a header of 4,294,967,295 bytes"),
    "not ASCII": (with_header(fields("'<f\xe9'"), version=b"\3\0"), "not ASCII"),
    "version 4": (with_header(fields(), version=b"\4\0"), "format version 4.0"),
    "version 1.1": (with_header(fields(), version=b"\1\1"), "format version 1.1"),
    "trailing bytes": (npy_bytes(K) + b"\0", "49 bytes of values"),
    "empty": (b"", "does not begin"),
    "a zip": (npz_bytes(KV), "does not begin"),
    "prose": (b"hello, world\n" * 10, "does not begin"),
}


@each("case", BAD_NPY)
def test_bad_npy(write, case):
    content, reason = BAD_NPY[case]
    kind = LimitError if case == "two to the 40" else InputError
    assert reason in complaint(write(content, "k.npy"), kind=kind)
    if b"NUMPY" in content[:8]:  # the same array inside an archive
        assert "tensor 'k'" in complaint(write(zip_bytes([("k.npy", content)]), "k.npz"), kind=InputError)


def test_npy_truncated_at_every_byte(write):
    content = npy_bytes(K)
    for length in range(len(content)):
        complaint(write(content[:length], "k.npy"))


def test_npy_limit(write):
    path = write(npy_bytes(K), "k.npy")
    same(read_all(path, DumpLimits(max_bytes=48))["k"], K)
    assert "48 bytes of tensors: at most 47" in complaint(path, DumpLimits(max_bytes=47), LimitError)


def test_memory_that_is_not_there(write, monkeypatch):
    def fail(*args, **kwargs):
        raise MemoryError

    path = write(npy_bytes(K), "k.npy")
    monkeypatch.setattr(np, "empty", fail)
    assert "do not fit into memory" in complaint(path, kind=LimitError)


# .npz

GOOD = npy_bytes(K)


def encrypted():
    content = bytearray(zip_bytes([("k.npy", GOOD)]))
    content[content.index(b"PK\1\2") + 8] |= 1
    content[6] |= 1
    return bytes(content)


def nul_in_name():
    return zip_bytes([("k.npyxx", GOOD)]).replace(b"k.npyxx", b"k.npy\0x")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def twice():
    return zip_bytes([("k.npy", GOOD), ("k.npy", GOOD)])


BAD_NPZ = {
    "twice": (lambda: twice(), "is there twice"),
    "encrypted": (encrypted, "is encrypted"),
    "path": (lambda: zip_bytes([("../../x.npy", GOOD)]), "must not be a path"),
    "absolute": (lambda: zip_bytes([("/x.npy", GOOD)]), "must not be a path"),
    "inner path": (lambda: zip_bytes([("a/../../x.npy", GOOD)]), "must not be a path"),
    "backslash": (lambda: zip_bytes([("..\\x.npy", GOOD)]), "must not be a path"),
    "no name": (lambda: zip_bytes([(".npy", GOOD)]), "printable"),
    "long name": (lambda: zip_bytes([("k" * 300 + ".npy", GOOD)]), "printable"),
    "newline": (lambda: zip_bytes([("k\nerror: x.npy", GOOD)]), "printable"),
    "right-to-left": (lambda: zip_bytes([("k\u202egpj.npy", GOOD)]), "printable"),
    "not .npy": (lambda: zip_bytes([("k.npy", GOOD), ("readme.txt", b"hello")]), "all members must be .npy"),
    "folder": (lambda: zip_bytes([("k/", b"")]), "all members must be .npy"),
    "NUL in the name": (nul_in_name, "all members must be .npy"),
    "bzip2": (lambda: zip_bytes([("k.npy", GOOD)], zipfile.ZIP_BZIP2), "compression method 12"),
    "lzma": (lambda: zip_bytes([("k.npy", GOOD)], zipfile.ZIP_LZMA), "compression method 14"),
    "trailing bytes in a member": (lambda: zip_bytes([("k.npy", GOOD + b"\0")]), "49 bytes of values"),
    "short member": (lambda: zip_bytes([("k.npy", GOOD[:-1])]), "47 bytes of values"),
    "empty member": (lambda: zip_bytes([("k.npy", b"")]), "does not begin"),
    "bytes behind": (lambda: zip_bytes([("k.npy", GOOD)]) + b"\0", "may be truncated"),
    "bytes before": (lambda: b"#!/bin/sh\n" + zip_bytes([("k.npy", GOOD)]), "directory is not where"),
    "empty": (lambda: b"", "too few"),
    "a pickle": (lambda: b"\x80\4\x95" + bytes(100) + b".", "may be truncated"),
    "an .npy": (lambda: npy_bytes(np.zeros(100, np.float16)), "may be truncated"),
}


@each("case", BAD_NPZ)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_bad_npz(write, case):
    make, reason = BAD_NPZ[case]
    assert reason in complaint(write(make(), "k.npz"))


def test_an_archive_without_members(write):
    assert read_all(write(zip_bytes([]), "k.npz")) == {}


def test_too_many_members(write):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for i in range(70_000):
            archive.writestr(zipfile.ZipInfo(f"{i}.npy"), b"")
    assert "has 70,000 members" in complaint(write(file.getvalue(), "k.npz"), kind=LimitError)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_truncated_at_every_byte(write, save):
    content = npz_bytes(KV, save)
    for length in range(len(content)):
        complaint(write(content[:length], "k.npz"))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_bit_flip_of_an_npz_is_found_or_harmless(write, save):
    content = npz_bytes({"key": K, "value": V[:1]}, save)
    found_out = 0
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path = write(bytes(damaged), "k.npz")
        found = arrays_or_error(path)
        if isinstance(found, DseError):
            found_out += 1
        else:
            assert list(found) == ["key", "value"], bit
            same(found["key"], K)
            same(found["value"], V[:1])
    assert found_out > 4 * len(content)


def test_npz_limits(write):
    path = write(npz_bytes(KV), "k.npz")
    total = sum(info.file_size for info in zipfile.ZipFile(path).infolist())
    assert len(read_all(path, DumpLimits(max_bytes=total))) == 2
    assert "raise max_bytes" in complaint(path, DumpLimits(max_bytes=total - 1), LimitError)


def test_a_zip_bomb_takes_no_memory(write):
    path = write(npz_bytes({"k": np.zeros(2**25, np.float16)}, np.savez_compressed), "bomb.npz")
    lies = bytearray(path.read_bytes())
    at = lies.index(b"PK\1\2")
    lies[at + 24 : at + 28] = struct.pack("<I", 300)  # the directory says 300 bytes, the member holds 64 MiB
    tracemalloc.start()
    assert "raise max_ratio" in complaint(path, kind=LimitError)
    assert "raise max_bytes" in complaint(path, DumpLimits(max_bytes=2**25, max_ratio=10_000), LimitError)
    complaint(write(bytes(lies), "lies.npz"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**20
    assert not read_all(path, DumpLimits(max_ratio=10_000))["k"].any()


def test_memory_is_the_result_and_a_block(write):
    x = np.ones(2**23, np.float16)
    for content, name, result in (
        (npz_bytes({"x": x}), "x.npz", 16),
        (npy_bytes(x.astype(">f2")), "x.npy", 16),
        (npy_bytes(x.view("V2")), "x.npy", 32),
        (safe_bytes({"x": entry("BF16", x.shape, (0, 2**24))}, x.tobytes()), "x.safetensors", 32),
    ):
        path = write(content, name)
        tracemalloc.start()
        read_all(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < (result + 16) * 2**20, name


# .safetensors

KEY = {"k": entry()}
BAD_SAFE = {
    "empty": (b"", "too few"),
    "seven bytes": (bytes(7), "too few"),
    "length 2^63": (struct.pack("<Q", 2**63) + b"{}", "at most 4,194,304"),
    "length beyond the file": (struct.pack("<Q", 1000) + b"{}", "header alone takes 1,008"),
    "no header": (bytes(8), "not valid JSON"),
    "a list": (safe_bytes([]), "is a list"),
    "not JSON": (safe_bytes(b"{'k': 1}"), "not valid JSON"),
    "not UTF-8": (safe_bytes(b'{"\xff": 1}'), "not valid JSON"),
    "UTF-16": (safe_bytes(json.dumps(KEY).encode("utf-16"), bytes(4)), "not valid JSON"),
    "twice": (safe_bytes(b'{"k": {}, "k": {}}'), "key 'k' is given twice"),
    "key twice": (safe_bytes(b'{"k": {"dtype": "F16", "dtype": "F32"}}'), "key 'dtype' is given twice"),
    "NaN": (safe_bytes(b'{"k": NaN}'), "NaN is not a number"),
    "deep": (safe_bytes(b"[" * 100_000), "more than 4 deep"),
    "deep objects": (safe_bytes(b'{"a":' * 100_000), "more than 4 deep"),
    "digits": (safe_bytes(b'{"k": ' + b"9" * 5000 + b"}"), "not valid JSON"),
    "not an entry": (safe_bytes({"k": 5}), "must have data_offsets"),
    "key missing": (safe_bytes({"k": {"dtype": "F16", "shape": [2]}}, bytes(4)), "must have data_offsets"),
    "key too many": (safe_bytes({"k": entry(stride=1)}, bytes(4)), "must have data_offsets"),
    "unknown dtype": (safe_bytes({"k": entry("F8_E4M3", (4,))}, bytes(4)), "dtype 'F8_E4M3': must be F16"),
    "integers": (safe_bytes({"k": entry("I64", (1,), (0, 8))}, bytes(8)), "dtype 'I64': must be F16"),
    "sub-byte": (safe_bytes({"k": entry("F4", (3,), (0, 2))}, bytes(2)), "dtype 'F4': must be F16"),
    "dtype of another type": (safe_bytes({"k": entry(["F16"])}, bytes(4)), "dtype ['F16']"),
    "negative shape": (safe_bytes({"k": entry(shape=(-2,))}, bytes(4)), "shape = [-2]"),
    "fraction": (safe_bytes({"k": entry(shape=(2.0,))}, bytes(4)), "shape = [2.0]"),
    "bool": (safe_bytes({"k": entry(shape=(True, 2))}, bytes(4)), "shape = [True, 2]"),
    "overflow": (safe_bytes({"k": entry(shape=(2**62, 4))}, bytes(4)), "2^60"),
    "overflow to the right size": (safe_bytes({"k": entry(shape=(2**63 - 1, 2**63 - 1, 2))}, bytes(4)), "2^60"),
    "beyond 64 bits": (safe_bytes({"k": entry(shape=(2**64 + 2,))}, bytes(4)), "below 2^63"),
    "axes": (safe_bytes({"k": entry(shape=(1,) * 100, offsets=(0, 2))}, bytes(2)), "has 100 axes"),
    "shape of another type": (safe_bytes({"k": {**entry(), "shape": 2}}, bytes(4)), "shape = 2"),
    "offsets of another type": (safe_bytes({"k": {**entry(), "data_offsets": "04"}}, bytes(4)), "data_offsets = '04'"),
    "three offsets": (safe_bytes({"k": entry(offsets=(0, 2, 4))}, bytes(4)), "must be two whole numbers"),
    "negative offset": (safe_bytes({"k": entry(offsets=(-4, 0))}, bytes(4)), "must be two whole numbers"),
    "backwards": (safe_bytes({"k": entry(offsets=(4, 0))}, bytes(4)), "takes 4 bytes"),
    "wrong extent": (safe_bytes({"k": entry(offsets=(0, 6))}, bytes(6)), "takes 4 bytes"),
    "misaligned": (safe_bytes({"k": entry(offsets=(0, 3))}, bytes(3)), "takes 4 bytes"),
    "hole": (safe_bytes({"a": entry(), "k": entry(offsets=(6, 10))}, bytes(10)), "leave a hole"),
    "hole at the start": (safe_bytes({"k": entry(offsets=(4, 8))}, bytes(8)), "leave a hole"),
    "overlap": (safe_bytes({"a": entry(), "k": entry(offsets=(2, 6))}, bytes(6)), "overlap"),
    "the same bytes": (safe_bytes({"a": entry(), "k": entry()}, bytes(4)), "overlap"),
    "bytes behind": (safe_bytes(KEY, bytes(5)), "has 5 bytes of values"),
    "truncated": (safe_bytes(KEY, bytes(3)), "has 3 bytes of values"),
    "metadata": (safe_bytes({"__metadata__": {"a": 1}, **KEY}, bytes(4)), "__metadata__"),
    "metadata of another type": (safe_bytes({"__metadata__": None, **KEY}, bytes(4)), "__metadata__"),
    "path": (safe_bytes({"../k": entry()}, bytes(4)), "must not be a path"),
    "empty name": (safe_bytes({"": entry()}, bytes(4)), "printable"),
    "NUL in a name": (safe_bytes({"k\0": entry()}, bytes(4)), "printable"),
    "half a character": (safe_bytes(b'{"\\ud800": {}}'), "printable"),
}


@each("case", BAD_SAFE)
def test_bad_safetensors(write, case):
    content, reason = BAD_SAFE[case]
    assert reason in complaint(write(content, "k.safetensors"))


def test_safetensors_truncated_at_every_byte(write):
    content = safe_kv()
    for length in range(len(content)):
        complaint(write(content[:length], "k.safetensors"))


def test_safetensors_limits(write, monkeypatch):
    path = write(safe_kv(), "k.safetensors")
    assert len(read_all(path, DumpLimits(max_bytes=70))) == 3
    assert "70 bytes of tensors" in complaint(path, DumpLimits(max_bytes=69), LimitError)
    monkeypatch.setattr("dse.measure.dumps.safetensors.MAX_TENSORS", 2)
    assert "has 3 tensors" in complaint(path, kind=LimitError)


def test_a_large_header_costs_little(write):
    """83 MB of header are not read; 4 MiB of the smallest entries are looked at in a few seconds."""
    path = write(struct.pack("<Q", 83 * 2**20) + b"{", "k.safetensors")
    os.truncate(path, 84 * 2**20)
    tracemalloc.start()
    assert "at most 4,194,304" in complaint(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    names = ",".join(f'"{i:x}":{{}}' for i in range(300_000))
    text = ("{" + names + "}").encode()
    assert len(text) < 4 * 2**20
    assert "at most 100,000" in complaint(write(safe_bytes(text), "k.safetensors"), kind=LimitError)


# anything at all

SEEDS = {
    "k.npy": [npy_bytes(K), npy_bytes(V, version=(2, 0)), npy_bytes(np.asfortranarray(K))],
    "k.npz": [
        npz_bytes(KV),
        npz_bytes(KV, np.savez_compressed),
        npz_bytes({**KV, "meta": np.frombuffer(b'{"model": "m", "rope": "after"}', np.uint8)}),
    ],
    "k.safetensors": [safe_kv()],
}
#: (kind, position, bytes) of one change
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "cut"]),
        st.integers(0, 2**16),
        st.one_of(
            st.binary(min_size=1, max_size=9),
            st.sampled_from([b"\xff" * 4, b"\xff" * 8, b"PK\1\2", b"[[[[", b"(9,)", b'"', b"-1", b"PK\6\7", bytes(8)]),
        ),
    ),
    min_size=1,
    max_size=6,
)


def edited(content, edits):
    content = bytearray(content)
    for kind, at, part in edits:
        at %= len(content) + 1
        if kind == "set":
            content[at : at + len(part)] = part
        elif kind == "insert":
            content[at:at] = part
        elif kind == "delete":
            del content[at : at + len(part)]
        else:
            del content[at:]
    return bytes(content)


@pytest.mark.deep
@pytest.mark.parametrize("name", SEEDS)
def test_any_edit_gives_arrays_or_one_line(tmp_path, name):
    path = tmp_path / name

    @settings(max_examples=4 * settings.default.max_examples)
    @given(st.sampled_from(SEEDS[name]), EDITS)
    def check(seed, edits):
        path.write_bytes(edited(seed, edits))
        arrays_or_error(path, DumpLimits(max_bytes=2**20))

    check()


@pytest.mark.deep
@pytest.mark.parametrize("name", SEEDS)
def test_any_bytes_give_arrays_or_one_line(tmp_path, name):
    path = tmp_path / name

    @given(st.binary(max_size=200))
    def check(content):
        path.write_bytes(content)
        arrays_or_error(path)

    check()


@pytest.mark.deep
def test_any_array_comes_back(tmp_path):
    @given(
        st.sampled_from([np.float16, np.float32, ">f2", ">f4"]),
        st.lists(st.integers(0, 5), max_size=4),
        st.booleans(),
        st.booleans(),
        st.integers(0, 2**32 - 1),
    )
    def check(dtype, shape, fortran, compressed, seed):
        rng = np.random.default_rng(seed)
        count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        array = np.frombuffer(rng.bytes(count), dtype).reshape(shape)
        array = np.asfortranarray(array) if fortran and shape else array
        native = array if array.dtype.isnative else array.byteswap().view(array.dtype.newbyteorder("="))
        save = np.savez_compressed if compressed else np.savez
        path = tmp_path / "x.npz"
        path.write_bytes(npz_bytes({"x": array}, save))
        found = read_all(path, DumpLimits(max_ratio=10_000))["x"]
        assert found.shape == tuple(shape)
        assert found.tobytes() == np.ascontiguousarray(native).tobytes()

    check()
