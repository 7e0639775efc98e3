"""Compiled code is kept where the folder is ours alone, for these sources; elsewhere there is one warning."""

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kernels_ref import code_cache, jit

KERNEL = """
import numpy as np
from kernels_ref.packing import look_up
found = np.zeros(3)
look_up(np.array([0, 2, 1], np.uint8), np.array([5.0, 6.0, 7.0]), found)
assert found.tolist() == [5.0, 7.0, 6.0]
print(sum(look_up._compiled.stats.cache_misses.values()))
"""
STATE = f"kernels_ref-{code_cache.stamp(())}"
only_root = pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give files away")


def double(number):
    return 2 * number


@pytest.fixture
def start(monkeypatch):
    """A function that compiles `double` as a new process would: how often it compiled, and what was warned."""

    def run(folder, variable="NUMBA_CACHE_DIR"):
        monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
        monkeypatch.setenv(variable, str(folder))
        monkeypatch.setattr(jit, "code_folder", code_cache.code_folder.__wrapped__)
        monkeypatch.setattr(code_cache, "_said", set())
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            kernel = jit.sequential(double)
            assert kernel(21) == 42
        return sum(kernel._compiled.stats.cache_misses.values()), [str(one.message) for one in warned]

    return run


def code_of(folder):
    (path,) = folder.rglob("*.code")
    return path


def test_code_is_kept_for_processes_that_come_later_or_start_together(tmp_path):
    def n_compiled(_):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", KERNEL], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return int(done.stdout)

    with ThreadPoolExecutor(2) as both:
        assert sorted(both.map(n_compiled, range(2))) == [0, 1]
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.code")}
    assert len(kept) == 1
    assert not [path for path in tmp_path.rglob("*") if path.stat().st_mode & 0o077]
    assert n_compiled(0) == 0
    assert kept == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.code")}


def test_without_a_folder_of_its_own_it_is_that_of_the_user(tmp_path, start, monkeypatch):
    assert start(tmp_path, "XDG_CACHE_HOME") == (1, [])
    assert start(tmp_path, "XDG_CACHE_HOME") == (0, [])
    assert code_of(tmp_path).parent == tmp_path / "dse" / STATE
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert start(tmp_path / "home", "HOME") == (1, [])
    assert code_of(tmp_path / "home").parent == tmp_path / "home" / ".cache" / "dse" / STATE


def test_checkouts_of_equal_sources_share_code_and_any_change_compiles_anew(tmp_path, monkeypatch):
    stamp = code_cache.stamp.__wrapped__
    (tmp_path / "kernels_ref").mkdir()
    for path in Path(code_cache.__file__).parent.rglob("*.py"):
        place = tmp_path / "kernels_ref" / path.relative_to(Path(code_cache.__file__).parent)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(path.read_bytes())
    before, extra = stamp(()), tmp_path / "more.py"
    extra.write_text("1")
    with_more = stamp((extra,))
    assert with_more != before
    monkeypatch.setattr(code_cache, "__file__", str(tmp_path / "kernels_ref" / "code_cache.py"))
    assert (stamp(()), stamp((extra,))) == (before, with_more)
    extra.write_text("2")
    assert stamp((extra,)) != with_more
    with (tmp_path / "kernels_ref" / "half.py").open("a") as file:
        file.write("# changed\n")
    assert stamp(()) != before
    monkeypatch.setattr(np, "__version__", "0")
    assert stamp(()) != before


@pytest.mark.parametrize("place", ["above", "above/cache", f"above/cache/{STATE}"], ids=["above", "cache", "state"])
def test_a_folder_that_others_can_write_is_not_used(tmp_path, start, place):
    cache = tmp_path / "above" / "cache"
    (cache / STATE).mkdir(parents=True)
    (tmp_path / place).chmod(0o777)
    for _ in range(2):
        n_compiled, (warned,) = start(cache)
        assert n_compiled == 1
        assert f"{tmp_path / place}: can be written by other users" in warned
    assert not list((cache / STATE).iterdir())


def test_a_folder_below_a_shared_one_whose_entries_are_protected_is_used(tmp_path, start):
    tmp_path.chmod(0o1777)
    assert start(tmp_path / "cache") == (1, [])
    assert start(tmp_path / "cache") == (0, [])


@only_root
@pytest.mark.parametrize("place", ["cache", f"cache/{STATE}"], ids=["cache", "state"])
def test_a_folder_of_another_user_is_not_used(tmp_path, start, place):
    (tmp_path / "cache" / STATE).mkdir(parents=True)
    os.chown(tmp_path / place, 12345, 12345)
    n_compiled, (warned,) = start(tmp_path / "cache")
    assert n_compiled == 1
    assert "belongs to another user" in warned


@only_root
def test_a_group_may_write_where_it_is_the_user_alone(tmp_path, start):
    tmp_path.chmod(0o770)
    assert start(tmp_path) == (1, [])
    os.chown(tmp_path, -1, 12345)
    n_compiled, (warned,) = start(tmp_path)
    assert n_compiled == 1
    assert "can be written by other users" in warned


def test_a_link_or_a_file_in_place_of_a_folder_is_refused(tmp_path, start):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / STATE).symlink_to(tmp_path / "elsewhere")
    n_compiled, (warned,) = start(tmp_path)
    assert n_compiled == 1
    assert "is not a directory" in warned
    assert not list((tmp_path / "elsewhere").iterdir())
    (tmp_path / "file").write_text("")
    n_compiled, (warned,) = start(tmp_path / "file")
    assert n_compiled == 1
    assert "not a directory" in warned


def test_a_file_that_others_can_write_is_not_loaded(tmp_path, start):
    start(tmp_path)
    code_of(tmp_path).chmod(0o666)
    n_compiled, (warned,) = start(tmp_path)
    assert n_compiled == 1
    assert "can be written by other users" in warned


@only_root
def test_a_file_of_another_user_is_not_loaded(tmp_path, start):
    start(tmp_path)
    os.chown(code_of(tmp_path), 12345, -1)
    n_compiled, (warned,) = start(tmp_path)
    assert n_compiled == 1
    assert "belongs to another user" in warned


def test_damaged_code_is_compiled_again_and_mended(tmp_path, start):
    start(tmp_path)
    path = code_of(tmp_path)
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for damaged in (content[:middle], flipped, b"\x80\x04garbage", b""):
        path.write_bytes(damaged)
        assert start(tmp_path) == (1, [])
        assert start(tmp_path) == (0, [])


def test_code_of_other_argument_types_under_the_name_of_these_is_not_loaded(tmp_path, start, monkeypatch):
    start(tmp_path)
    path = code_of(tmp_path)
    monkeypatch.setattr(code_cache.CodeCache, "_path", lambda self, key: path)
    kernel = jit.sequential(double)
    assert kernel(0.5) == 1.0


def test_states_that_were_not_used_for_longest_go(tmp_path, start):
    names = [f"kernels_ref-{n:016x}" for n in range(code_cache.KEPT_STATES + 3)]
    others = ["kernels_ref-other", "dse.model.many-0000000000000000"]
    for n, name in enumerate([*names, *others]):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (n, n))
    start(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*names[4:], *others, STATE}


def test_warnings_come_once(monkeypatch):
    monkeypatch.setattr(code_cache, "_said", set())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        code_cache.warn_once("said twice")
        code_cache.warn_once("said twice")
    assert len(warned) == 1
