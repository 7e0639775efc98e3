"""The wheel: what is in it, and that it runs from an empty directory with nothing of the source tree near."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import dse

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
PACKAGES = ("dse", "hwspecs", "kernels_ref")
#: older ones do not read the licence of pyproject.toml; the extra `test` brings a newer one
SETUPTOOLS = 77


def files_of(folder):
    """Paths of all files of the packages below a folder, but what running them leaves."""
    return {
        str(path.relative_to(folder))
        for package in PACKAGES
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of a copy of the source tree, built without network."""
    assert int(version("setuptools").partition(".")[0]) >= SETUPTOOLS, 'pip install -c constraints.txt -e ".[test]"'
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "import sys, setuptools.build_meta as build; build.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(out)], cwd=source, check=True, capture_output=True, timeout=120)
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="module")
def run(wheel, tmp_path_factory):
    """Runs a command of the unpacked wheel in an empty directory and returns what it prints."""
    site, empty = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("empty")
    zipfile.ZipFile(wheel).extractall(site)
    start = (
        f"import sys; sys.path.insert(0, {str(site)!r}); import dse; assert dse.__file__.startswith({str(site)!r}); "
        "from dse.__main__ import main; main()"
    )
    around = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def command(*words):
        started = [sys.executable, "-I", "-c", start, *words]
        return subprocess.run(started, cwd=empty, env=around, check=True, capture_output=True, text=True, timeout=120)

    command.empty = empty
    return command


def test_it_holds_every_file_of_the_packages_and_no_other(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == files_of(ROOT)
    assert f"kv_dse-{dse.__version__}.dist-info/licenses/LICENSE" in names


def test_it_is_below_5_megabytes(wheel):
    assert wheel.stat().st_size < 5e6


def test_its_name_command_and_extras(wheel):
    assert wheel.name == f"kv_dse-{dse.__version__}-py3-none-any.whl"
    info = zipfile.ZipFile(wheel)
    metadata = info.read(f"kv_dse-{dse.__version__}.dist-info/METADATA").decode()
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    extras = {line.partition(": ")[2] for line in metadata.splitlines() if line.startswith("Provides-Extra: ")}
    assert extras == {"calibrate", "cluster", "docs", "export", "mcp", "models", "test", "train"}
    commands = info.read(f"kv_dse-{dse.__version__}.dist-info/entry_points.txt").decode()
    assert "dse = dse.__main__:main" in commands


def test_it_runs_from_an_empty_directory(run):
    assert run("--version").stdout == f"dse, version {dse.__version__}\n"
    n_devices = len(list((ROOT / "hwspecs" / "devices").glob("*.toml")))
    assert len(json.loads(run("list", "devices", "--json").stdout)) == n_devices
    design = ("--device", "h200", "--model", "qwen3-32b", "--tp", "2", "--quantizer", "fp8")
    assert json.loads(run("point", *design, "--json").stdout)["feasible"]
    assert not list(run.empty.iterdir())
    load = ("--model", "llama3.1-8b", "--devices", "h100", "--rate", "1", "--input", "1k", "--output", "100")
    assert "vllm serve meta-llama/Llama-3.1-8B-Instruct" in run("recommend", *load).stdout


def test_its_templates_pictures_and_data_are_found(run):
    run("ask", "formats", "--device", "h200", "--model", "qwen3-32b", "--quantizers", "fp8", "--out", "pays")
    written = {path.suffix for path in (run.empty / "pays").rglob("*") if path.is_file()}
    assert written == {".html", ".js", ".png", ".svg", ".pdf", ".csv", ".json"}
    run("docs", "--models", "llama3.1-8b", "--devices", "h100", "--lengths", "1024+1024", "--out", "site")
    names = {path.name for path in (run.empty / "site").iterdir()}
    assert names == {"answers.html", "accuracy.html", "plotly.min.js"}
