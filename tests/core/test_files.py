"""Files of a run appear together: a kill at any step leaves the old ones or, after the next run, all of the new."""

import os
from pathlib import Path

import pytest

from dse.core import files
from dse.core.errors import OutputError
from killing import content_of, killed_at

OLD = {"a.csv": b"old a", "b.html": b"old b", "figures/c.svg": b"old c", "gone.csv": b"old"}
NEW = {"a.csv": b"new a", "b.html": b"new b", "figures/d.svg": b"new d", "figures/c.svg": b"new c"}


def write_old(folder: Path) -> None:
    for name, content in OLD.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def publish_new(folder: Path) -> None:
    with files.publishing(str(folder)) as published:
        for name, content in NEW.items():
            published.write(name, content)
        published.remove("gone.csv")


def test_a_kill_at_any_step_leaves_no_mixture(tmp_path):
    step, seen = 0, set()
    while True:
        folder = tmp_path / str(step)
        write_old(folder)
        was_killed = killed_at(step, lambda folder=folder: publish_new(folder))
        after = content_of(folder)
        assert after in (OLD, NEW) or any(path.suffix == ".ready" for path in folder.iterdir()), step
        files.prepare(str(folder))
        assert content_of(folder) in (OLD, NEW), step
        assert not [path for path in folder.iterdir() if files.TEMPORARY.fullmatch(path.name)], step
        seen.add(content_of(folder) == NEW)
        if not was_killed:
            break
        step += 1
    assert step > 20
    assert seen == {True, False}


def test_what_fails_leaves_the_old_files_and_no_directory(tmp_path, monkeypatch):
    files.publish(str(tmp_path / "out"), OLD)
    with pytest.raises(ZeroDivisionError), files.publishing(str(tmp_path / "out")) as published:
        published.write("a.csv", b"%d" % (1 // 0))
    (tmp_path / "out" / "e").mkdir()
    with pytest.raises(OutputError, match="e is a directory"):
        files.publish(str(tmp_path / "out"), {**NEW, "e": b""})
    (tmp_path / "out" / "e").rmdir()
    full = OSError(28, "No space left on device")
    with monkeypatch.context() as patch:
        n_writes = iter(range(3))
        patch.setattr(os, "fsync", lambda handle: next(n_writes, None) is None and (_ for _ in ()).throw(full))
        with pytest.raises(OutputError, match="no space left"):
            publish_new(tmp_path / "out")
    assert content_of(tmp_path / "out") == OLD
    with pytest.raises(ZeroDivisionError), files.publishing(str(tmp_path / "new" / "er")):
        _ = 1 // 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_ctrl_c_while_files_move_finishes_first(tmp_path, monkeypatch):
    files.publish(str(tmp_path), OLD)
    replace, n_calls = os.replace, iter(range(99))

    def pressed(source, target):
        if ".ready" in str(source) and next(n_calls) == 1:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", pressed)
    with pytest.raises(KeyboardInterrupt):
        publish_new(tmp_path)
    assert content_of(tmp_path) == NEW


def test_work_in_progress_is_no_leftover(tmp_path):
    with files.publishing(str(tmp_path)) as first, files.writing(tmp_path / "single") as single:
        first.write("a.csv", b"first")
        files.publish(str(tmp_path), NEW)
        single.write(b"single")
    assert content_of(tmp_path) == {**NEW, "a.csv": b"first", "single": b"single"}
