"""The README does what it says: its files load, its Python runs, its outputs are what the commands print."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from dse import catalog, cli, kv_sample, specfile

TEXT = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.M | re.S)


def test_device_and_model_files_load_and_run(tmp_path, monkeypatch, capsys):
    device, model = blocks("toml")
    (tmp_path / "my-gpu.toml").write_text(device)
    (tmp_path / "my-model.toml").write_text(model)
    np.savez(tmp_path / "kv.npz", **kv_sample.arrays(kv_sample.synthetic(3, 2, 64, 16, 0)))
    monkeypatch.chdir(tmp_path)
    assert catalog.device_from(specfile.read("my-gpu.toml")).name == "My-GPU"
    assert catalog.model_from(specfile.read("my-model.toml")).name == "my-model"
    commands = [line for line in TEXT.splitlines() if line.startswith("dse ") and "config.json" not in line]
    assert len(commands) >= 2
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            cli.main(shlex.split(command)[1:])
        assert stop.value.code == 0, command
    assert "no problem found" in capsys.readouterr().out


def test_sweep_and_front(tmp_path, monkeypatch, capsys):
    text = TEXT.split("## Sweeps and fronts")[1].split("\n## ")[0]
    spec, commands = [
        re.sub(r"^    ", "", block, flags=re.M) for block in re.findall(r"(?:^    .*\n)+", text, re.M)
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text(spec)
    for command in commands.splitlines():
        with pytest.raises(SystemExit) as stop:
            cli.main([*shlex.split(command)[1:], *(["--static", "matplotlib"] if "pareto" in command else [])])
        assert stop.value.code == 0, command
    assert "verified: designs" in capsys.readouterr().out
    assert Path("front/front.html").exists()


def test_python_runs(capsys):
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), {})
    assert "qserve" in capsys.readouterr().out


def test_printed_outputs_are_what_the_commands_print(capsys):
    shown = re.findall(r"^```\n\$ (dse .*?)\n```\n\n```\n(.*?)^```", TEXT, re.M | re.S)
    assert len(shown) == 2
    for command, output in shown:
        with pytest.raises(SystemExit):
            cli.main(shlex.split(command)[1:])
        assert capsys.readouterr().out == output


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (Path(__file__).parent.parent / target).exists(), target
