"""A sweep's directory: the same bytes however a run was disturbed, and one line for every directory it cannot use."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

import dse
import hwspecs
from cases import each
from dse.core import files
from dse.core.errors import BusyError, InputError, LimitError, OutputError
from dse.sweep import points as sweep_points
from dse.sweep import reading
from dse.sweep import run as sweep_run
from dse.sweep import spec as sweep_spec
from dse.sweep import store as sweep_store
from dse.sweep import table as sweep_table
from factories import SMALL_SWEEP, fast_points, files_of


@pytest.fixture
def small(monkeypatch):
    """Eight points a part, a manifest after each, results that cost nothing; an undisturbed run to compare with."""
    monkeypatch.setattr(sweep_spec, "MIN_PART_POINTS", 8)
    monkeypatch.setattr(sweep_run, "MANIFEST_S", 0.0)
    monkeypatch.setattr(sweep_points, "evaluate_points", fast_points)
    return sweep_spec.from_dict(SMALL_SWEEP)


@pytest.fixture
def whole(small, tmp_path):
    dse.sweep(small, tmp_path / "whole", threads=1)
    return files_of(tmp_path / "whole")


def test_the_files_hold_the_table(small, whole, tmp_path):
    done = dse.sweep(small, tmp_path / "whole")
    assert sorted(whole) == sorted([".lock", "_manifest.json", "_spec.json", *(path.name for path in done.paths)])
    assert len(done.paths) == -(-small.n_points // 8) == 20
    table = done.read()
    pd.testing.assert_frame_equal(table, dse.sweep(small), check_exact=True)
    assert len(pd.read_parquet(tmp_path / "whole")) == len(table) == done.n_rows
    assert table["feasible"].sum() == done.manifest.codes[0]
    assert table["decode_step_s"].isna().equals(~table["feasible"])
    assert (table["batch"] * table["input_tokens"] <= 32768).all()
    assert done.read(["batch", "bound"]).equals(table[["batch", "bound"]])
    assert pd.concat(part for part in done.parts(["batch"])).reset_index(drop=True).equals(table[["batch"]])
    one = pq.ParquetFile(done.paths[0])
    assert {one.metadata.row_group(0).column(i).compression for i in range(4)} == {"ZSTD"}
    assert one.schema_arrow.field("decode_step_s").metadata[b"unit"] == b"s"


def test_a_manifest_is_complete_with_its_last_part_and_not_before(small, tmp_path, monkeypatch):
    """As others read it after every write of a run: `complete` in the file, what `stored` takes, `verify` says."""
    seen, write = [], sweep_store.files.write

    def noted(path, content, *more, **options):
        write(path, content, *more, **options)
        if Path(path).name == "_manifest.json":
            found = json.loads(Path(path).read_bytes())
            seen.append((len(found["parts"]), found["complete"]))
            _, problems = sweep_store.verify(tmp_path / "out")
            assert found["complete"] == (problems == [])
            if not found["complete"]:
                with pytest.raises(InputError, match=rf"{len(found['parts'])} of 20 parts are done"):
                    reading.stored(tmp_path / "out")

    monkeypatch.setattr(sweep_store.files, "write", noted)
    dse.sweep(small, tmp_path / "out", threads=1)
    assert {n for n, _ in seen} >= {1, 10, 19, 20}
    assert [is_complete for n, is_complete in seen] == [n == 20 for n, _ in seen]
    assert reading.stored(tmp_path / "out").manifest.complete


@pytest.mark.parametrize("gone", [0, 7, 19])
def test_a_sweep_without_one_of_its_parts_is_not_complete(small, whole, tmp_path, gone):
    """A manifest that claims to be complete is not believed: its parts are counted."""
    path = tmp_path / "whole" / "_manifest.json"
    found = json.loads(path.read_bytes())
    found["parts"].pop(gone)
    path.write_text(json.dumps(found))
    assert found["complete"] is True
    manifest, problems = sweep_store.verify(tmp_path / "whole")
    assert not manifest.complete
    assert json.loads(manifest.to_json())["complete"] is False
    assert problems == ["1 of 20 parts are not done"]
    with pytest.raises(InputError, match="19 of 20 parts are done"):
        reading.stored(tmp_path / "whole")


def test_complete_is_every_part_by_number_and_the_front_of_them():
    def complete(numbers, **more):
        parts = {n: sweep_store.Part(n, 8 * n, 8 * n + 7, 8, "", (0,) * 5) for n in numbers}
        return sweep_store.Manifest("", 3, parts, **more).complete

    assert complete([0, 1, 2])
    assert not complete([])
    assert not complete([0, 2])
    assert not complete([0, 1, 3])  # three parts, of which one is of another sweep
    assert not complete([0, 1, 2, 3])
    assert not complete([0, 1, 2], is_front=True)
    assert complete([0, 1, 2], is_front=True, front=(5, "00"))
    assert not complete([0, 1], is_front=True, front=(5, "00"))


def test_real_points_are_those_of_the_grid(tmp_path):
    spec = {
        "axes": {"device": ["h100"], "model": ["llama3-8b"], "quantizer": ["fp16", "kivi"], "batch": [1, 64]},
        "keep": "all",
    }
    table = dse.sweep(spec, tmp_path / "out").read()
    grid = dse.grid("h100", "llama3-8b", ["fp16", "kivi"], batch=[1, 64])
    for name in table.columns:
        if name != "infeasible_code":
            assert table[name].astype(object).where(table[name].notna(), None).tolist() == (
                grid[name].astype(object).where(grid[name].notna(), None).tolist()
            ), name


@pytest.mark.parametrize(("threads", "block"), [(1, 1), (1, 3), (2, 5), (4, 8), (3, 1000)])
def test_same_bytes_for_threads_blocks_and_order(small, whole, tmp_path, monkeypatch, threads, block):
    monkeypatch.setattr(sweep_points, "BLOCK_POINTS", block)
    done = dse.sweep(small, tmp_path / "other", threads=threads)
    assert files_of(done.folder) == whole
    folder = tmp_path / "shuffled"
    with sweep_store.locked(folder):
        manifest, _ = sweep_store.begin(folder, small)
        order = list(range(manifest.n_parts))
        random.Random(block).shuffle(order)
        sweep_run.write_parts(folder, small, manifest, order, threads)
    assert files_of(folder) == whole


def in_child(work):
    """Run `work` in a forked process; its number."""
    number = os.fork()
    if number:
        return number
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        work()
        os._exit(0)
    except BaseException:
        os._exit(1)


@pytest.mark.slow
def test_killed_at_random_10_times(small, tmp_path):
    """By two threads, of 80 points in 10 parts; at every sync and rename in the next test."""
    few = sweep_spec.from_dict({**SMALL_SWEEP, "axes": {**SMALL_SWEEP["axes"], "batch": [1, 16]}})
    assert dse.sweep(few, tmp_path / "whole", threads=1).n_rows == few.n_points == 80
    whole = files_of(tmp_path / "whole")
    rng = random.Random(6)
    start = time.monotonic()
    assert os.waitpid(in_child(lambda: dse.sweep(few, tmp_path / "timed", threads=2)), 0)[1] == 0
    usual_s = time.monotonic() - start
    n_kills = n_finished = 0
    while n_kills < 10:
        folder = tmp_path / f"run{n_finished}"
        child = in_child(lambda folder=folder: dse.sweep(few, folder, threads=2))
        time.sleep(rng.uniform(0, usual_s))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        n_kills += os.WIFSIGNALED(status)
        if not os.WIFSIGNALED(status):
            assert files_of(folder) == whole
            n_finished += 1
    dse.sweep(few, folder)
    assert files_of(folder) == whole


@pytest.mark.slow
def test_killed_at_every_step(small, whole, tmp_path, monkeypatch):
    """Just before each sync and each rename, when files are written but not yet safe or in place."""
    real_sync, real_replace = os.fsync, os.replace

    def run_until(step, folder):
        seen = [0]

        def counted(real):
            def call(*args, **options):
                seen[0] += 1
                if seen[0] == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **options)

            return call

        os.fsync, os.replace = counted(real_sync), counted(real_replace)
        dse.sweep(few, folder, threads=1)

    monkeypatch.setattr(sweep_spec, "MIN_PART_POINTS", 64)
    few = sweep_spec.from_dict(SMALL_SWEEP)
    expected = files_of(dse.sweep(few, tmp_path / "few").folder)
    for step in range(1, 1000):
        folder = tmp_path / f"step{step}"
        status = os.waitpid(in_child(lambda step=step, folder=folder: run_until(step, folder)), 0)[1]
        if not os.WIFSIGNALED(status):  # it had fewer steps and came to its end
            assert status == 0
            assert files_of(folder) == expected
            break
        for name in files_of(folder):
            if not name.startswith(".") and name != "_manifest.json":
                assert (folder / name).read_bytes() == expected[name]  # whole or not there
        dse.sweep(few, folder)
        assert files_of(folder) == expected
    # file synced, renamed, directory synced: of the spec, three parts and the last manifest
    assert step > 3 * (1 + 3 + 1)


def test_ctrl_c_keeps_what_is_finished(small, whole, tmp_path):
    calls = []

    def progress(done, of):
        calls.append(done)
        if len(calls) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep_run.to_directory(small, tmp_path / "out", threads=1, progress=progress)
    _, manifest = sweep_store.manifest_of(tmp_path / "out")
    assert 0 < len(manifest.parts) < manifest.n_parts
    assert not [path for path in files_of(tmp_path / "out") if path.endswith(".part")]
    with pytest.raises(InputError, match="parts are done: run `dse sweep` again"):
        reading.stored(tmp_path / "out")
    done = dse.sweep(small, tmp_path / "out")
    assert done.n_written == manifest.n_parts - len(manifest.parts)
    assert files_of(tmp_path / "out") == whole


@pytest.mark.parametrize("how", ["flip", "cut", "gone", "folder", "link"])
def test_a_damaged_part_is_set_aside_and_done_again(small, whole, tmp_path, how):
    folder = tmp_path / "whole"
    part = folder / "part-000003.parquet"
    content = bytearray(part.read_bytes())
    if how == "flip":
        content[len(content) // 2] ^= 1
        part.write_bytes(content)
    elif how == "cut":
        part.write_bytes(content[:-1])
    else:
        part.unlink()
        if how == "folder":
            part.mkdir()
        if how == "link":
            part.symlink_to(folder / "part-000004.parquet")
    _, problems = sweep_store.verify(folder)
    assert len(problems) == 1
    assert problems[0].startswith("part-000003.parquet is ")
    said = []
    done = sweep_run.to_directory(small, folder, say=said.append)
    assert done.n_written == 1
    assert len(said) == 1
    found = files_of(folder) if how != "folder" else {n: (folder / n).read_bytes() for n in whole}
    if how == "gone":
        assert "is missing: it is done again" in said[0]
    else:
        assert "set aside as _part-000003.parquet.bad" in said[0]
        found.pop("_part-000003.parquet.bad", None)
        assert (folder / "_part-000003.parquet.bad").exists()
        assert len(reading.stored(folder).read()) == done.n_rows
    assert found == whole
    assert sweep_store.verify(folder)[1] == []


def test_damaged_and_foreign_files_of_the_directory(small, whole, tmp_path):
    folder = tmp_path / "whole"
    (folder / "_manifest.json").write_bytes(whole["_manifest.json"][:-30])
    (folder / "part-000099.parquet").write_bytes(b"of another sweep")
    (folder / ".dse-abcdefgh.part").write_bytes(b"left by a kill")
    (folder / ".dse-abcdefgh.part").chmod(0o600)
    said = []
    done = sweep_run.to_directory(small, folder, say=said.append)
    assert done.n_written == 20
    assert [line.split(": ")[0] for line in said] == [
        "_manifest.json is damaged",
        "part-000099.parquet is no part of this sweep",
    ]
    found = files_of(folder)
    assert found.pop("_part-000099.parquet.bad") == b"of another sweep"
    del found["_manifest.json.bad" if "_manifest.json.bad" in found else "__manifest.json.bad"]
    assert found == whole
    (folder / "_spec.json").write_bytes(b"{")
    assert sweep_run.to_directory(small, folder, say=said.append).n_written == 0
    assert (folder / "_spec.json").read_bytes() == whole["_spec.json"]
    (folder / "_spec.json").unlink()
    (folder / "_manifest.json").write_bytes(b"{")
    with pytest.raises(InputError, match="holds files such as"):
        dse.sweep(small, folder)


def test_directories_that_hold_something_else(small, whole, tmp_path):
    other = sweep_spec.from_dict({**SMALL_SWEEP, "where": []})
    with pytest.raises(InputError, match="holds another sweep"):
        dse.sweep(other, tmp_path / "whole")
    assert files_of(tmp_path / "whole") == whole
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds files such as 'notes.txt'"):
        dse.sweep(small, tmp_path)
    with pytest.raises(InputError, match="is a file"):
        dse.sweep(small, tmp_path / "notes.txt")
    for name, value, text in (("dse", "0.0.1", "begun with dse"), ("format", 9, "has format 9")):
        spec = json.loads(whole["_spec.json"])
        (tmp_path / "whole" / "_spec.json").write_text(json.dumps({**spec, name: value}))
        with pytest.raises(InputError, match=text):
            dse.sweep(small, tmp_path / "whole")
    for bad in ("", "a\0b"):
        with pytest.raises(InputError, match="not a directory name"):
            dse.sweep(small, bad)


@pytest.mark.slow
def test_two_processes_on_one_directory(small, whole, tmp_path):
    folder = tmp_path / "shared"
    ready, go = os.pipe(), os.pipe()

    def hold():
        with sweep_store.locked(folder):
            os.write(ready[1], b"x")
            os.read(go[0], 1)

    holder = in_child(hold)
    os.read(ready[0], 1)
    with pytest.raises(BusyError, match=rf"written by another sweep \(process {holder}\)") as busy:
        dse.sweep(small, folder)
    assert busy.value.exit_status == 3
    os.kill(holder, signal.SIGKILL)  # its lock dies with it
    os.waitpid(holder, 0)
    dse.sweep(small, folder)
    assert files_of(folder) == whole


def test_the_lock_is_no_way_out_of_the_directory(small, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "precious").write_text("keep")
    (tmp_path / "out" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OutputError, match="cannot write"):
        dse.sweep(small, tmp_path / "out")
    assert (tmp_path / "precious").read_text() == "keep"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_disk_that_fails_for_a_while(small, whole, tmp_path, monkeypatch, code, where):
    real, calls = getattr(os, where), []

    def failing(*args, **options):
        calls.append(1)
        if len(calls) > 9:
            raise OSError(code, os.strerror(code))
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, where, failing)
        if where == "fsync":  # a directory that cannot be synced is no failure
            patch.setattr(files, "sync", lambda folder: None)
        with pytest.raises(OutputError, match=r"of 20 parts are done: free space .* it goes on"):
            dse.sweep(small, tmp_path / "out", threads=2)
    assert not [name for name in files_of(tmp_path / "out") if name.endswith(".part")]
    dse.sweep(small, tmp_path / "out")
    assert files_of(tmp_path / "out") == whole


def test_a_file_size_limit_that_is_raised(small, whole, tmp_path):
    """The disk is full for the second, larger part: RLIMIT_FSIZE makes writes fail as a full disk does."""
    biggest = max(len(content) for name, content in whole.items() if name.startswith("part-"))

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (biggest - 1, biggest - 1))
        try:
            dse.sweep(small, tmp_path / "out", threads=1)
        except OutputError as error:
            (tmp_path / "said").write_text(str(error)[: biggest - 10])

    assert os.waitpid(in_child(limited), 0)[1] == 0
    assert "file too large" in (tmp_path / "said").read_text()
    dse.sweep(small, tmp_path / "out")
    assert files_of(tmp_path / "out") == whole


def _mount(*args):
    return subprocess.run(["mount", *args], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_full_and_a_read_only_file_system(small, whole, tmp_path, kind):
    folder = tmp_path / "mounted"
    folder.mkdir()
    options = "size=96k" if kind == "full" else "size=8m"
    if not _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder)):
        pytest.skip("needs the right to mount")
    try:
        if kind == "full":
            with pytest.raises(OutputError, match=r"no space left on device: .* parts are done"):
                dse.sweep(small, folder / "out", limits=False)
            assert subprocess.run(["mount", "-o", "remount,size=8m", str(folder)]).returncode == 0
        else:
            dse.sweep(small, folder / "out")
            assert _mount("-o", "remount,ro", str(folder))
            with pytest.raises(OutputError, match="read-only file system"):
                dse.sweep(small, folder / "out")
            with pytest.raises(OutputError, match="read-only file system"):
                dse.sweep(small, folder / "new")
            assert sweep_store.verify(folder / "out")[1] == []
            assert _mount("-o", "remount,rw", str(folder))
        dse.sweep(small, folder / "out")
        assert files_of(folder / "out") == whole
    finally:
        subprocess.run(["umount", str(folder)])


def test_limits(tmp_path, monkeypatch):
    axes = {**SMALL_SWEEP["axes"], "batch": {"from": 1, "to": 100_000, "step": 1}}
    many = {**axes, "input_tokens": {"from": 1, "to": 100_000, "step": 1}}
    huge = sweep_spec.from_dict({"axes": many})
    assert huge.n_points == 2 * 2 * (1 + 3 + 1) * 10**10
    with monkeypatch.context() as patch:  # refused at once: no point is counted or evaluated
        for name in ("evaluate_chunk", "evaluate_points"):
            patch.setattr(sweep_points, name, None)
        patch.setattr(sweep_run.count, "rows_left", None)
        with pytest.raises(LimitError, match=r"200,000,000,000 points: at most 10,000,000,000: .*--no-limit"):
            dse.sweep(huge, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # 4e6 points of 9 numbers, 2 names, 5 axes of a byte, batch of 8 and 3 flags: 90 B each
    large = sweep_spec.from_dict({"axes": axes})
    assert sweep_run.row_bytes(large) == 9 * 8 + 2 + 5 + 8 + 3
    monkeypatch.setattr(sweep_run.shutil, "disk_usage", lambda folder: _Usage)
    with pytest.raises(LimitError, match=r"up to 360.5 MB, the disk has 120 MB free: .*--no-limit"):
        dse.sweep(large, tmp_path / "out")
    with pytest.raises(LimitError, match="give a directory"):
        dse.sweep(large)
    # three quarters are there already, as one of 62 parts: 90 MB are left to write, and what 61 parts take beside rows:
    # 21 columns (20 and the place of a front's) and the names in them, each with the 4 B of its length
    names = ("A100-80GB", "Oaken-HBM", "llama2-7b", "llama2-70b", "fp16", "oaken", "kivi")
    part_bytes = 21 * sweep_run.COLUMN_BYTES + sum(len(name) + 4 for name in names)
    parts = {0: sweep_store.Part(0, 0, 3_000_000, 0, "", (0,) * 5)}
    (tmp_path / "begun").mkdir()
    manifest = sweep_store.Manifest(large.sha256, 2, parts)
    (tmp_path / "begun" / "_manifest.json").write_bytes(manifest.to_json())
    assert sweep_run.check_limits(large, tmp_path / "begun") == 90_000_000 + 61 * part_bytes


@pytest.mark.parametrize("point_s", [1e-6, 1e-3])
@pytest.mark.slow
def test_the_time_told_is_that_of_many_points(monkeypatch, point_s):
    """A call costs 5 ms whatever its points, the first half of the grid nothing beside it."""
    axes = {"device": "h100", "model": ["llama2-7b", "llama2-13b"], "batch": {"from": 1, "to": 500000, "step": 1}}
    found, now = sweep_spec.from_dict({"axes": axes}), [0.0]

    def evaluate(sweep, first, last):
        now[0] += 0.005 + point_s * (max(last, 500_000) - max(first, 500_000))

    monkeypatch.setattr(
        sweep_run, "time", types.SimpleNamespace(perf_counter=lambda: now[0], thread_time=lambda: now[0])
    )
    monkeypatch.setattr(sweep_points, "evaluate_chunk", evaluate)
    monkeypatch.setattr(sweep_table, "encode", lambda sweep, columns: None)
    assert sweep_run.estimate(found).seconds == pytest.approx(500_000 * point_s, rel=0.5)
    assert now[0] < 3


class _Usage:
    free, total = 120_000_000, 10**12  # of which 100 MB may be taken


@each("keep", [["bound"], ["effective_bits"], None, "all"])
@each("batches", [[1], [1, 2], {"from": 1, "to": 40, "step": 1}])
def test_files_take_no_more_than_was_said(tmp_path, keep, batches):
    """Of a few points nearly all bytes are heads, footers and names."""
    axes = {"device": ["h100", "oaken-hbm"], "model": "llama2-7b", "quantizer": ["fp16", "kivi"], "batch": batches}
    found = sweep_spec.from_dict({"axes": axes, **({"keep": keep} if keep else {})})
    done = dse.sweep(found, tmp_path / "out", threads=1)
    n_bytes = sum(path.stat().st_size for path in done.paths)
    said = sweep_run.estimate(found).n_bytes
    assert n_bytes <= said <= 4 * n_bytes


def test_axes_of_many_numbers_are_counted(monkeypatch):
    """5,000 bandwidths repeat too seldom to be told in a byte each."""
    axes = {"device": "h100", "model": "llama2-7b", "memory_bandwidth": {"from": 1e12, "to": 4e12, "count": 5000}}
    found = sweep_spec.from_dict({"axes": axes, "keep": ["bound"]})
    monkeypatch.setattr(sweep_points, "evaluate_points", fast_points)
    n_bytes = len(sweep_table.encode(found, sweep_points.evaluate_chunk(found, 0, 4096)))
    assert n_bytes <= sweep_run.most_bytes(found, 4096, 1)


def test_where_nothing_can_be_written(tmp_path, monkeypatch):
    """The kernel's views of itself have no bytes, which is not that they are full."""
    for out in ("/proc/x", "/proc/x/y"):
        with pytest.raises(OutputError, match=rf"cannot write '{out}': '/proc' is not a file system that holds files"):
            dse.sweep(SMALL_SWEEP, out)

    def refuse(folder):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(sweep_run.shutil, "disk_usage", refuse)
    with pytest.raises(OutputError, match="permission denied: give another directory"):
        dse.sweep(SMALL_SWEEP, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, 100_000])
def test_bad_threads(small, tmp_path, threads):
    with pytest.raises(InputError, match=r"threads = .*: must be a whole number from 1 to"):
        dse.sweep(small, tmp_path / "out", threads=threads)


def test_verify_needs_a_sweep(tmp_path):
    for folder in (tmp_path, tmp_path / "none", Path(__file__)):
        with pytest.raises(InputError, match="give the --out"):
            sweep_store.verify(folder)


@pytest.mark.slow
def test_same_bytes_in_other_processes(tmp_path):
    """Hash seed, time zone, locale and directory reach no byte."""
    spec = tmp_path / "spec.json"
    axes = {
        "device": ["h100", "a100-80gb", "oaken-hbm", "l40s"],
        "model": "llama2-7b",
        "quantizer": ["kivi", "fp16", "oaken"],
        "batch": [1, 512],
    }
    spec.write_text(json.dumps({"axes": axes, "keep": "all"}))
    found = []
    for i, seed in enumerate(("0", "77")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "TZ": f"UTC{i}", "LC_ALL": "C", "PYTHONOPTIMIZE": str(2 * i)}
        args = [sys.executable, "-m", "dse", "sweep", str(spec), "--out", str(tmp_path / f"out{i}")]
        done = subprocess.run(args, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(files_of(tmp_path / f"out{i}"))
    assert found[0] == found[1]


def test_a_directory_is_stamped_by_sources_and_not_by_what_was_compiled_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_store, "__file__", str(tmp_path / "sweep" / "store.py"))
    (tmp_path / "model" / "__pycache__").mkdir(parents=True)
    source, kept = tmp_path / "model" / "step.py", tmp_path / "model" / "__pycache__" / "step.run-1.py311.nbi"
    source.write_text("a = 1\n")
    stamp = sweep_store.code_sha256.__wrapped__()
    kept.write_bytes(b"machine code")
    assert sweep_store.code_sha256.__wrapped__() == stamp
    source.write_text("a = 2\n")
    assert sweep_store.code_sha256.__wrapped__() != stamp


def test_a_directory_is_stamped_by_the_numbers_of_servers(tmp_path, monkeypatch):
    folder = Path(hwspecs.__file__).parent
    for name in ("servers", "benchmarked"):
        shutil.copytree(folder / name, tmp_path / name)
    shutil.copy(folder / "links.toml", tmp_path)
    monkeypatch.setattr(sweep_store.hwspecs, "__file__", str(tmp_path / "__init__.py"))
    stamps = {sweep_store.code_sha256.__wrapped__()}
    for changed in ("servers/vllm.toml", "benchmarked/kernels.toml", "links.toml"):
        with (tmp_path / changed).open("a") as file:
            file.write("# other\n")
        stamps.add(sweep_store.code_sha256.__wrapped__())
    assert len(stamps) == 4
