"""The README does what it says: its files load, its Python runs, its outputs are what the commands print."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from dse import catalog, cli, kv_sample, measure_run, specfile

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
    spec, *commands = [
        re.sub(r"^    ", "", block, flags=re.M) for block in re.findall(r"(?:^    .*\n)+", text, re.M)
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text(spec)
    for command in "".join(commands).splitlines():
        with pytest.raises(SystemExit) as stop:
            cli.main([*shlex.split(command)[1:], *(["--static", "matplotlib"] if "pareto" in command else [])])
        assert stop.value.code == 0, command
    assert "verified: designs" in capsys.readouterr().out
    assert Path("front/front.html").exists()
    assert Path("best/front.parquet").exists()


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
    (script,) = [code for code in blocks("py") if "transformers" in code]
    exec(compile(script, "README.md", "exec"), {})
    found = measure_run.check("kv.npz", measure_run.Asked(), lambda items, **_: contextlib.nullcontext(items))
    assert (found["model"], found["rope"], found["n_layers"], found["problems"]) == (
        "meta-llama/Llama-2-7b-hf", "after", 2, []
    )  # fmt: skip
