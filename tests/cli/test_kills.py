"""Commands that write several files, killed: what stands is of one run, and the next run mends what is left."""

import shutil
from pathlib import Path

import pytest

from dse.core import files
from dse.figures.export import image
from killing import alone, content_of, killed_at, n_steps_of

POINT = ["--device", "h100", "--model", "opt-125m"]
#: a command, the end of it that made the files that stand, and the end that makes new ones
COMMANDS = {
    "report": (
        ["report", "--devices", "h100", "--models", "opt-125m", "--quantizers", "fp16,fp8", "--batches"],
        ["16"],
        ["32"],
    ),
    "lab": (["lab", "--quantizer"], ["fp8"], ["fp8_e5m2"]),
    "ask load": (["ask", "load", *POINT, "--quantizer", "fp8", "--batch"], ["16"], ["32"]),
}
#: kills, spread over the calls of a command that change files
N_KILLS = 4


def kill(words: list[str], before: list[str], after: list[str], folder: Path) -> None:
    """Write, and write anew with kills; each run is a child of this process, which itself starts no threads."""
    from dse.cli import main as cli

    image.images = lambda chart, made_by: {"png": made_by.encode()}  # type: ignore[assignment]

    def write(end: list[str]) -> None:
        cli.main([*words, *end, "--out", str(folder)])

    n_before = n_steps_of(lambda: write(before))
    shutil.copytree(folder, folder.with_name("old"))
    old = content_of(folder)
    n_steps = n_steps_of(lambda: write(after))
    new = content_of(folder)
    assert n_before > 10
    assert old.keys() == new.keys()
    assert old != new
    seen = set()
    for i in range(N_KILLS):
        shutil.rmtree(folder)
        shutil.copytree(folder.with_name("old"), folder)
        step = (n_steps - 1) * i // (N_KILLS - 1)
        assert killed_at(step, lambda: write(after)), step
        is_between = any(folder.glob(".dse-*.part/placed/*"))
        assert is_between or content_of(folder) in (old, new), step
        files.prepare(str(folder))  # as the next run does
        assert content_of(folder) in (old, new), step
        assert not [path for path in folder.iterdir() if files.TEMPORARY.fullmatch(path.name)], step
        seen.add(content_of(folder) == new)
    assert seen == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_leaves_the_files_of_one_run(name, tmp_path):
    alone(kill, *COMMANDS[name], tmp_path / "files")
