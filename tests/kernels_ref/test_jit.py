"""The cache of compiled kernels: used where it is ours, done without, with one warning, where it is not."""

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernels_ref import jit

CODE = """
import warnings, numpy as np
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    {import_}
    found = {call}
print(len(told), [str(w.message) for w in told], found.tolist())
"""
#: a method that packs 1.0 in E4M3, and a single kernel, which is compiled sooner
METHOD = CODE.format(
    import_="from kernels_ref import FP8", call='FP8().quantize(np.ones((2, 4), np.float16)).buffers["codes"]'
)
KERNEL = CODE.format(
    import_="from kernels_ref.packing import look_up",
    call="np.zeros(3); look_up(np.array([0, 2, 1], np.uint8), np.array([5.0, 6.0, 7.0]), found)",
)
PRINTED = {METHOD: "[[56, 56, 56, 56], [56, 56, 56, 56]]", KERNEL: "[5.0, 7.0, 6.0]"}


def start(folder, code=KERNEL, printed=None):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    )
    assert done.returncode == 0, done.stderr
    assert PRINTED[printed or code] in done.stdout
    return done.stdout


def test_a_folder_of_our_own_keeps_what_was_compiled(tmp_path):
    folder = tmp_path / "cache"
    assert start(folder, METHOD).startswith("0 ")
    kept = list(folder.rglob("*.nbc"))
    assert kept
    assert not [path for path in folder.rglob("*") if path.stat().st_mode & 0o022]
    times = {path: path.stat().st_mtime_ns for path in kept}
    assert start(folder, METHOD).startswith("0 ")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.nbc")} == times


def test_a_folder_that_others_can_write_is_not_used(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    out = start(folder)
    assert out.startswith("1 ")
    assert "can be written by other users" in out
    assert not list(folder.iterdir())


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(tmp_path):
    folder = tmp_path / "foreign"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    out = start(folder)
    assert out.startswith("1 ")
    assert "belongs to another user" in out


def test_a_file_in_its_place(tmp_path):
    folder = tmp_path / "file"
    folder.write_text("")
    out = start(folder)
    assert out.startswith("1 ")
    assert "is not a directory" in out


def test_damaged_files_are_compiled_again(tmp_path):
    folder = tmp_path / "cache"
    start(folder)
    for path in folder.rglob("*.nb*"):
        path.write_bytes(b"\x80\x04garbage")
    out = start(folder)
    assert out[0] in "01"


def test_two_processes_at_once_compile_once(tmp_path):
    code = KERNEL + "print(sum(look_up._compiled.stats.cache_misses.values()))"
    with ThreadPoolExecutor(2) as both:
        told = list(both.map(lambda folder: start(folder, code, KERNEL), [tmp_path / "cache"] * 2))
    assert sorted(text.split()[-1] for text in told) == ["0", "1"]


def test_warnings_come_once():
    jit._told.discard("said twice")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        jit._warn("said twice")
        jit._warn("said twice")
    assert len(told) == 1
