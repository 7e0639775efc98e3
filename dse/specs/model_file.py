"""A model file of counted sizes: any decoder that the reader of config.json understands, made by a command.

Where `ModelFile` computes a uniform decoder from its shape, this one carries what was counted: layers of several
shapes, latent attention, indexes, parameters. Equal layers stand together; `repeat` says how often the layers listed
follow each other, so that patterns keep their order.
"""

import json

from pydantic import Field

from dse.specs.device_and_model import (
    HubName,
    LayerKV,
    ModelSpec,
    Name,
    Released,
    WeightsName,
    Wide,
    order_problem,
    released_fields,
)
from dse.specs.quantity import Kind, Parameters, Quantity
from dse.specs.stack import Spec
from dse.specs.weights import WIDE

#: field -> unit, and how a file made from a config.json has it
UNITS: dict[str, tuple[str, Kind]] = {
    "hidden_size": ("channel", "published"),
    "vocab_size": ("token", "published"),
    "n_q_heads": ("head", "published"),
    "n_experts": ("expert", "published"),
    "n_active_experts": ("expert", "published"),
    "dense_parameters": ("parameter", "derived"),
    "expert_parameters": ("parameter", "derived"),
    "attention_parameters": ("parameter", "derived"),
    "embedding_parameters": ("parameter", "derived"),
    "copied_parameters": ("parameter", "derived"),
    "tower_parameters": ("parameter", "derived"),
    "image_elements": ("element", "derived"),
    "rotary_elements": ("element", "derived"),
    "expert_width": ("channel", "published"),
    "shared_expert_width": ("channel", "published"),
    "activation_elements": ("element", "derived"),
    "layer_elements": ("element", "derived"),
    "max_position_tokens": ("token", "published"),
}


class CountedModelFile(Spec):
    """A language model as counted from its config.json; `source` is that of every number but the published count."""

    name: Name
    title: str = Field(default="", max_length=120)
    aliases: list[Name] = Field(default=[], max_length=100)
    source: str = Field(min_length=1, max_length=300)
    revision: str = Field(default="", max_length=64)
    published_parameters: Parameters | None = None
    hidden_size: int = Field(ge=1, le=2**20)
    vocab_size: int = Field(ge=1, le=2**24)
    n_q_heads: int = Field(ge=1, le=65_536)
    dense_parameters: int = Field(ge=0, le=10**15)
    expert_parameters: int = Field(default=0, ge=0, le=10**15)
    attention_parameters: int | None = Field(default=None, ge=0, le=10**15)
    embedding_parameters: int = Field(default=0, ge=0, le=10**15)
    copied_parameters: int | None = Field(default=None, ge=0, le=10**15)
    tower_parameters: int | None = Field(default=None, ge=0, le=10**15)
    image_elements: int | None = Field(default=None, ge=0, le=2**40)
    image_mask: bool = False
    rotary_elements: int | None = Field(default=None, ge=0, le=2**60)
    expert_width: int | None = Field(default=None, ge=1, le=2**24)
    shared_expert_width: int | None = Field(default=None, ge=1, le=2**24)
    n_experts: int = Field(default=1, ge=1, le=65_536)
    n_active_experts: int = Field(default=1, ge=1, le=65_536)
    activation_elements: int = Field(ge=0, le=2**40)
    layer_elements: int | None = Field(default=None, ge=0, le=2**40)
    max_position_tokens: int | None = Field(default=None, ge=1, le=2**40)
    repeat: int = Field(default=1, ge=1, le=10_000)
    notes: list[str] = Field(default=[], max_length=100)
    hub: HubName = ""
    released: Released | None = None
    checkpoints: dict[str, WeightsName] = Field(default_factory=dict)
    wide: dict[WeightsName, Wide] = Field(default_factory=dict)
    layers: list[LayerKV] = Field(min_length=1, max_length=1000)

    def problems(self) -> list[tuple[str, object, str]]:
        """Rules that join several fields: (field, value, what must hold)."""
        broken: list[tuple[str, object, str]] = []
        if self.n_active_experts > self.n_experts:
            broken.append(("n_active_experts", self.n_active_experts, f"must be at most n_experts = {self.n_experts}"))
        if self.attention_parameters is not None and self.attention_parameters > self.dense_parameters:
            rule = f"must be at most dense_parameters = {self.dense_parameters}"
            broken.append(("attention_parameters", self.attention_parameters, rule))
        if self.repeat * sum(layer.n_layers for layer in self.layers) > 10_000:
            broken.append(("repeat", self.repeat, "must leave at most 10,000 layers"))
        if any((layer.index_bits or layer.index_flops) and not layer.read_limit_tokens for layer in self.layers):
            broken.append(("layers", "index_bits", "needs read_limit_tokens beside it"))
        if problem := order_problem(self.layers):
            broken.append(("layers", f"{len(self.layers)} runs", problem))
        elif self.repeat > 1 and not all(layer.stored for layer in self.layers):
            broken.append(("layers", "stored = false", "needs an earlier layer that stores, and no repeat"))
        return broken

    def to_model(self) -> ModelSpec:
        """The model, its layers written out in order."""
        numbers = {
            name: Quantity(value=getattr(self, name), unit=unit, source=self.source, kind=kind)
            for name, (unit, kind) in UNITS.items()
            if getattr(self, name) is not None
        }
        if self.published_parameters:
            numbers["published_parameters"] = self.published_parameters
        quantities = {name: getattr(self, name) for name in UNITS}
        return ModelSpec(
            name=self.name,
            title=self.title or self.name,
            source=self.source + (f", revision {self.revision}" if self.revision else ""),
            layers=tuple(self.layers) * self.repeat,
            image_mask=self.image_mask,
            notes=tuple(self.notes),
            wide=self.wide,
            numbers=numbers,
            published_parameters=self.published_parameters.count if self.published_parameters else None,
            **released_fields(self.released, self.checkpoints, self.hub),
            **quantities,
        )


def looks_counted(data: dict[str, object]) -> bool:
    """True for a model file of counted sizes, told by its layers."""
    return "layers" in data


def _repeated(layers: tuple[LayerKV, ...]) -> tuple[tuple[LayerKV, ...], int]:
    """The shortest run of layers that gives all of them when repeated, and how often."""
    for length in range(1, len(layers) + 1):
        n_times, rest = divmod(len(layers), length)
        if not rest and layers[:length] * n_times == layers and all(layer.stored for layer in layers[:length]):
            return layers[:length], n_times
    return layers, 1


def _line(name: str, value: object) -> str:
    # JSON's texts, whole numbers and truth values are TOML's too
    return f"{name} = {json.dumps(value, ensure_ascii=False)}"


def text(model: ModelSpec, revision: str = "", published: Quantity | None = None, by: str = "dse model export") -> str:
    """The TOML text of a file that gives this model again, made by the command `by`. Defaults are left out."""
    lines = [f"# {model.title}: counted from its config.json by `{by}`.", _line("name", model.name)]
    lines += [_line("title", model.title), _line("source", model.source)]
    if revision:
        lines.append(_line("revision", revision))
    if published:
        whole = published.model_dump(exclude_none=True) | {"value": published.count}
        fields = ", ".join(_line(name, value) for name, value in whole.items())
        lines.append(f"published_parameters = {{ {fields} }}")
    if model.hub:
        lines.append(_line("hub", model.hub))
    if model.released != WIDE:
        stored = ", ".join([_line("weights", model.released), _line("source", model.released_source or model.source)])
        lines.append(f"released = {{ {stored} }}")
    if model.checkpoints:
        named = ", ".join(_line(word, name) for word, name in model.checkpoints.items())
        lines.append(f"checkpoints = {{ {named} }}")
    for name, wide in model.wide.items():
        fields = ", ".join(_line(field, value) for field, value in wide.model_dump(exclude_defaults=True).items())
        lines.append(f"wide.{name} = {{ {fields} }}")
    lines.append("")
    for name in UNITS:
        value = getattr(model, name)
        if value != CountedModelFile.model_fields[name].default:
            lines.append(_line(name, value))
    if model.image_mask:
        lines.append(_line("image_mask", True))
    layers, n_times = _repeated(model.layers)
    if n_times > 1:
        lines.append(_line("repeat", n_times))
    if model.notes:
        lines += ["notes = [", *(f"  {json.dumps(note, ensure_ascii=False)}," for note in model.notes), "]"]
    for layer in layers:
        stated = layer.model_dump(exclude_defaults=True)
        lines += ["", "[[layers]]", *(_line(name, value) for name, value in stated.items())]
    return "\n".join(lines) + "\n"
