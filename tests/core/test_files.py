"""Files of a run appear together: a kill at any step leaves the old ones, after the next run, or all of the new."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from dse.core import files
from dse.core.errors import InputError, OutputError
from killing import alone, content_of, killed_at, n_steps_of

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


def kill_at_every_step(root: Path) -> None:
    step, seen = 0, set()
    while True:
        folder = root / str(step)
        write_old(folder)
        was_killed = killed_at(step, lambda folder=folder: publish_new(folder))
        after = content_of(folder)
        is_between = any(folder.glob(".dse-*.part/placed/*"))
        assert after in (OLD, NEW) or is_between, step
        files.prepare(str(folder))
        assert content_of(folder) in (OLD, NEW), step
        assert not [path for path in folder.iterdir() if files.TEMPORARY.fullmatch(path.name)], step
        seen.add(content_of(folder) == NEW)
        if not was_killed:
            break
        step += 1
    assert step > 20
    assert seen == {True, False}


def kill_what_mends(root: Path) -> None:
    write_old(root / "old")
    n_steps = n_steps_of(lambda: publish_new(root / "old"))
    for step in range(n_steps):
        folder = root / f"at {step}"
        write_old(folder)
        assert killed_at(step, lambda folder=folder: publish_new(folder))
        if content_of(folder) not in (OLD, NEW):
            break
    for again in range(99):
        copy = root / f"again {again}"
        subprocess.run(["cp", "-a", folder, copy], check=True)
        was_killed = killed_at(again, lambda copy=copy: files.prepare(str(copy)))
        files.prepare(str(copy))
        assert content_of(copy) == OLD, again
        assert not list(copy.glob(".dse-*")), again
        if not was_killed:
            break
    assert again > 10


def test_a_kill_at_any_step_leaves_no_mixture(tmp_path):
    alone(kill_at_every_step, tmp_path)


def test_a_run_that_mends_may_be_killed_as_well(tmp_path):
    """Killed where one of the new files stands, and then at each step of taking it back."""
    alone(kill_what_mends, tmp_path)


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
        if "new" in Path(source).parts and next(n_calls) == 1 + len(NEW):
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


@pytest.fixture
def plain_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("plain_umask")
def test_other_peoples_temporary_files_stay(tmp_path):
    """The owner, the mode and the prefix of a leftover are ours, or it is none."""
    kept = {".download.part": 0o600, ".abcdefgh.part": 0o600, ".dse-abcdefgh.ready": 0o600, ".dse-abcdefgh.part": 0o640}
    for name, mode in kept.items():
        (tmp_path / name).write_bytes(b"mine")
        (tmp_path / name).chmod(mode)
    (tmp_path / ".dse-folder_0.part").mkdir(mode=0o755)
    (tmp_path / ".dse-linked_0.part").symlink_to(tmp_path / ".download.part")
    before = sorted(path.name for path in tmp_path.iterdir())
    for name in (".dse-killed_0.part", ".dse-killed_1.part"):
        (tmp_path / name).write_bytes(b"ours")
    (tmp_path / ".dse-killed_0.part").chmod(0o600)
    (tmp_path / ".dse-killed_1.part").chmod(0o644)
    (tmp_path / ".dse-killed_2.part").mkdir(mode=0o700)
    files.prepare(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to somebody else")
def test_a_leftover_of_somebody_else_stays(tmp_path):
    theirs = tmp_path / ".dse-abcdefgh.part"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 1234, -1)
    files.prepare(str(tmp_path))
    assert theirs.is_dir()


def test_a_planted_folder_changes_nothing_outside_of_itself(tmp_path):
    """Neither as earlier versions left one, with names in it, nor as this one does."""
    out, outside = tmp_path / "out", tmp_path / "outside"
    write_old(out)
    write_old(outside)
    (out / "link").symlink_to(outside)
    for ending in ("ready", "part"):
        planted = out / f".dse-abcdefgh.{ending}"
        for folder in ("files/link", "files/figures", "new", "placed", "old", "gone"):
            (planted / folder).mkdir(parents=True)
        planted.chmod(0o700)
        for name in ("files/link/a.csv", "files/a.csv", "new/a.csv", "placed/0", "old/0", "gone/0", "old/a.csv"):
            (planted / name).write_bytes(b"evil")
        (planted / "removed").write_text(f"../outside/a.csv\n{outside}/b.html\nb.html\n")
        (planted / "old" / "link").symlink_to(outside / "a.csv")
        (planted / "gone" / "1").symlink_to(outside / "a.csv")
        (planted / "placed" / "1").symlink_to(out / "a.csv")
    files.publish(str(out), {"new.csv": b"new"})
    assert content_of(outside) == OLD
    own = {name: content for name, content in content_of(out).items() if ".ready" not in name}
    assert own == {**OLD, "new.csv": b"new"}
    assert not (out / ".dse-abcdefgh.part").exists()


def test_a_leftover_takes_back_only_what_it_holds_itself(tmp_path):
    """Somebody who can plant a folder with links to files of his own can have those replaced, and no others."""
    write_old(tmp_path)
    planted = tmp_path / ".dse-abcdefgh.part"
    for folder in ("new", "placed", "old", "gone"):
        (planted / folder).mkdir(parents=True)
    planted.chmod(0o700)
    (planted / "new" / "9").touch()
    os.link(tmp_path / "a.csv", planted / "placed" / "0")
    (planted / "old" / "0").write_bytes(b"other")
    files.prepare(str(tmp_path))
    assert content_of(tmp_path) == {**OLD, "a.csv": b"other"}


def test_a_disk_that_fails_while_files_move_leaves_the_old_ones(tmp_path, monkeypatch):
    write_old(tmp_path)
    replace, n_calls = os.replace, iter(range(99))

    def failing(source, target):
        if "new" in Path(source).parts and next(n_calls) == 1 + len(NEW):
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OutputError, match="input/output error"):
        publish_new(tmp_path)
    assert content_of(tmp_path) == OLD
    assert not list(tmp_path.glob(".dse-*"))


def test_files_that_cannot_be_linked_are_still_replaced(tmp_path, monkeypatch):
    write_old(tmp_path)

    def refused(*args, **options):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    publish_new(tmp_path)
    assert content_of(tmp_path) == NEW


def test_files_are_read_below_the_named_folders_alone(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "in-too"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "a.txt").write_bytes(b"a")
    (inside / "link.txt").symlink_to(outside / "a.txt")
    with files.read_below([inside], "give another"):
        assert files.read_bytes(inside / "a.txt") == b"a"
        for path in (outside / "a.txt", inside / "link.txt", inside / ".." / "in-too" / "a.txt", outside / "none"):
            with pytest.raises(InputError, match="is no file that is read here: give another"):
                files.read_bytes(path)
    assert files.read_bytes(inside / "link.txt") == b"a"
