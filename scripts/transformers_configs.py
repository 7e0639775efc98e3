"""Write what transformers makes of configurations into tests/golden/transformers.json.gz, which tests read.

Run it where that release is installed (it needs no PyTorch): `python scripts/transformers_configs.py`. `written` has
each published configuration as the newest classes save it, by its name; `defaults` the default configuration of each
type of a language model. transformers is under Apache-2.0.
"""

import gzip
import importlib.util
import json
import re
from pathlib import Path

import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

ROOT = Path(__file__).parents[1]
OUT = ROOT / "tests" / "golden" / "transformers.json.gz"
LANGUAGE = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")


def published() -> dict[str, dict]:
    """The configurations of the repository and of aiconfigurator-core, by the name of the file."""
    paths = list((ROOT / "tests" / "golden" / "hf_configs").glob("*.json"))
    if spec := importlib.util.find_spec("aiconfigurator_core"):
        paths += Path(str(spec.origin)).parent.glob("model_configs/*_config.json")
    paths = [path for path in paths if "hf_quant_config" not in path.name]
    return {path.stem.removesuffix("_config"): json.loads(path.read_text()) for path in sorted(paths)}


def written(config: dict) -> dict | None:
    """A configuration as its class saves it; None where there is no such class, or it refuses the file."""
    kind = config.get("model_type")
    if kind == "step3p7" and "text_config" not in config:  # released with its text in a section of its own
        config = {"model_type": kind, "text_config": {**config, "model_type": "step3p5"}}
    try:
        return json.loads(CONFIG_MAPPING[kind].from_dict(config).to_json_string())
    except (KeyError, TypeError, ValueError, StrictDataclassError):
        return None


def defaults() -> dict[str, dict]:
    """The default configuration of each type that makes text."""
    source, found = (Path(transformers.__file__).parent / "models" / "auto" / "modeling_auto.py").read_text(), {}
    lists = [re.search(rf"^{name} = .*?^\)", source, re.MULTILINE | re.DOTALL) for name in LANGUAGE]
    for kind in sorted(
        {kind for one in lists if one for kind in re.findall(r'^ +\("([^"]+)", "', one[0], re.MULTILINE)}
    ):
        try:
            found[kind] = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
        except (KeyError, TypeError, ValueError, StrictDataclassError):
            continue
    return found


def main() -> None:
    """Write the file."""
    saved = {name: new for name, config in published().items() if (new := written(config)) is not None}
    content = {"transformers": transformers.__version__, "written": saved, "defaults": defaults()}
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    OUT.write_bytes(gzip.compress(text, mtime=0))
    print(f"{OUT}: {len(saved)} written, {len(content['defaults'])} defaults, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
