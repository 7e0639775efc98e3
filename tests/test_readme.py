"""The README's two commands are what CI runs; the script for Hugging Face works. test_docs.py runs the rest."""

import os
import re
import runpy
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dse.measure import run as measure_run
from dse.measure import synthetic as kv_sample
from dse.measure.options import MeasureOptions

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()


START = "# dse\n\n## Start\n\n```\n{}\n```\n\nThe tests:\n\n```\n{}\n```\n\n## Next\n\n```\nelsewhere\n```\n"


def test_ci_runs_the_two_commands_and_installs_nothing_else():
    set_up = "python3 -m venv .venv && . .venv/bin/activate && pip install -c constraints.txt -e "
    commands = runpy.run_path(str(ROOT / ".ci" / "commands"))["commands"]
    assert commands(TEXT) == [f"{set_up}. && dse report", f'{set_up}".[test]" && pytest']
    script = (ROOT / ".ci" / "run").read_text()
    assert not re.search(r"pip |dse |-m venv", re.sub(r"^ *#.*", "", script, flags=re.M))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (START.replace("## Start", "## Begin"), '0 sections "## Start": must be one'),
        (START.split("The tests")[0], '1 blocks under "## Start": must be two'),
        (START.replace("## Next", ""), '3 blocks under "## Start": must be two'),
        (START.format("one\ntwo", "three"), 'a block under "## Start" of 2 lines: must be one command'),
        (START.format("", "three"), "of 0 lines"),
    ],
)
def test_ci_refuses_a_readme_without_its_two_commands(text, reason, tmp_path):
    path = tmp_path / "README.md"
    path.write_text(text)
    done = subprocess.run([ROOT / ".ci" / "commands", path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr


@pytest.mark.parametrize("fails", ["", "report", "tests", "slow", "browser", "browser once", "mypy"])
def test_ci_gives_each_command_its_own_files_and_environment(fails, tmp_path):
    """`.ci/run` of a small project, whose commands note where they run and what they see."""
    project, tools = tmp_path / "project", tmp_path / "tools"
    report = "mkdir -p report/figures; for kind in html png svg pdf; do seq 999 > report/figures/a.$kind; done"
    tests = f"mkdir -p .venv/bin && touch .venv/bin/activate && ln -s {tools}/* .venv/bin"
    lines = [
        f"note {name} $PWD `ls` ${{PYTHONPATH-none}} ${{VIRTUAL_ENV-none}} && {command} && [ {name} != '{fails}' ]"
        for name, command in (("report", report), ("tests", tests))
    ]
    for folder in (project / ".ci", project / ".venv", tools):
        folder.mkdir(parents=True)
    for name in ("commands", "run"):
        (project / ".ci" / name).write_bytes((ROOT / ".ci" / name).read_bytes())
        (project / ".ci" / name).chmod(0o755)
    (project / "README.md").write_text(START.format(*lines))
    (project / "pyproject.toml").write_text("")
    (project / ".venv" / "old").write_text("")
    (tools / "note").write_text(f"#!/bin/sh\necho $* >> {tmp_path}/notes\n")
    (tools / "note").chmod(0o755)
    for name in ("chromium", "ruff", "mypy"):
        (tools / name).write_text(f"#!/bin/sh\nnote {name} $PWD\n[ {name} != '{fails}' ]\n")
        (tools / name).chmod(0o755)
    red, once = fails.partition(" ")[0], f"[ '{fails}' = 'browser once' ] && ! mkdir {tmp_path}/failed"
    script = f"#!/bin/sh\ntier=${{2%% *}}\nnote $tier $PWD\n[ $tier != '{red}' ] || {{ {once}; }}\n"
    (tools / "pytest").write_text(script)
    (tools / "pytest").chmod(0o755)
    path = os.pathsep.join([str(tools), os.environ["PATH"]])
    done = subprocess.run(
        [project / ".ci" / "run"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": "/there", "VIRTUAL_ENV": "/there"},
    )
    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert (done.returncode == 0) == (fails in ("", "browser once")), done.stderr
    assert ("browser: failed, once more" in done.stdout) == fails.startswith("browser")
    notes[:2] = sorted(notes[:2])  # which run at the same time
    lint = [words[0] for words in notes if words[0] in ("ruff", "mypy")]  # at the same time as the slow tier
    tiers = [words[0] for words in notes[2:] if words[0] not in lint]
    tiers[:2] = sorted(tiers[:2])  # which run at the same time
    is_set_up = fails not in ("report", "tests")
    assert [words[0] for words in notes[:2]] == ["report", "tests"]
    assert tiers == ["browser", "slow", *["browser"] * fails.startswith("browser")] * is_set_up
    assert lint == ["ruff", "ruff", "mypy"] * is_set_up
    for words in notes[:2]:
        assert words[2:] == ["README.md", "pyproject.toml", "none", "none"]
    places = {words[1] for words in notes}
    assert str(project) not in places
    assert len(places) == 2
    assert {words[1] for words in notes[1:]} <= {words[1] for words in notes[1:2]}
    assert not any(Path(place).exists() for place in places)


def test_the_extra_of_the_tests_ends_every_skip_that_an_install_would():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {re.match(r"[\w.-]+", name)[0] for name in extras["test"]}
    others = {
        re.match(r"[\w.-]+", name)[0]
        for extra, names in extras.items()
        if extra not in ("test", "train")
        for name in names
    }
    assert others <= brought
    assert extras["train"] == ["torch"]  # numpy_torch.py stands in for it
    skipping = [path.name for path in (ROOT / "tests").rglob("*.py") if "import" + "orskip" in path.read_text()]
    assert skipping == []


@pytest.mark.parametrize("release", [5, 4])
def test_the_script_for_hugging_face_takes_both_kinds_of_cache(release, tmp_path, monkeypatch):
    import contextlib
    import sys
    from types import SimpleNamespace as Named

    class Tensor(np.ndarray):
        def numpy(self):
            return np.asarray(self)

    pairs = [[x.view(Tensor) for x in layer] for layer in kv_sample.synthetic(2, 2, 8, 4, 0)]
    cache = Named(layers=[Named(keys=k, values=v) for k, v in pairs]) if release == 5 else tuple(map(tuple, pairs))
    loaded = {
        "AutoModelForCausalLM": Named(from_pretrained=lambda *a, **k: lambda **given: Named(past_key_values=cache)),
        "AutoTokenizer": Named(from_pretrained=lambda name: lambda text, return_tensors: {"input_ids": text}),
    }
    monkeypatch.setitem(sys.modules, "torch", Named(float16=None, no_grad=contextlib.nullcontext))
    monkeypatch.setitem(sys.modules, "transformers", Named(**loaded))
    monkeypatch.chdir(tmp_path)
    Path("prompt.txt").write_text("hello")
    page = (ROOT / "docs" / "how-to" / "own-dump.md").read_text()
    (script,) = re.findall(r"^```py\n(.*?)^```", page, re.M | re.S)
    exec(compile(script, "own-dump.md", "exec"), {})
    found = measure_run.check("kv.npz", MeasureOptions(), lambda items, **_: contextlib.nullcontext(items))
    assert (found["model"], found["rope"], found["n_layers"], found["problems"]) == (
        "meta-llama/Llama-2-7b-hf",
        "after",
        2,
        [],
    )
