"""Types of fields that the settings and `gold_set.yaml` share.

They stand apart from the rules of `fields`, because the library evaluates without pydantic.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME)]

ConfigValue = str | int | float | bool
BUILT_IN_MODEL = re.compile(
    r"lsa-[1-9]\d{0,3}|all-MiniLM-L6-v2|chroma:(?:default|onnx_mini_lm_l6_v2)"
)
"""Models that compute on this machine and need no configuration."""
MODELS = (
    "lsa-<dimensions>, all-MiniLM-L6-v2, chroma:default, chroma:onnx_mini_lm_l6_v2, "
    "or the name of an entry of `embeddings` in settings.toml"
)
NAME_AN_ENTRY = "name an entry of `embeddings` in settings.toml"


class Part(BaseModel):
    """A part of `gold_set.yaml`; unknown keys are refused, and the fields cannot be set."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Embedding(Part):
    """Turns texts into vectors: a built-in model, an entry of the settings, or a file of vectors.

    A gold set comes from a stranger, so it gives no `config`: a configuration can hold an address
    or the name of an environment variable. Only `from_settings` fills it.
    """

    model: str | None = Field(default=None, description=MODELS)
    config: dict[str, ConfigValue] = Field(default_factory=dict)
    vectors: str | None = Field(
        default=None, description="an .npz file with `sha256` and `vectors`"
    )

    @classmethod
    def from_settings(cls, function: str, config: Mapping[str, ConfigValue]) -> "Embedding":
        """Make the embedding of a Chroma function that the settings configure."""
        return Embedding.model_construct(
            model=f"chroma:{function}", config=dict(config), vectors=None
        )

    @property
    def is_named(self) -> bool:
        """Whether `model` is the name of an entry of the settings."""
        return (
            self.model is not None
            and re.fullmatch(NAME, self.model) is not None
            and (BUILT_IN_MODEL.fullmatch(self.model) is None)
        )

    @model_validator(mode="before")
    @classmethod
    def _has_no_config(cls, data: object) -> object:
        if isinstance(data, Mapping) and (unknown := data.keys() - {"model", "vectors"}):
            reason = "a gold set gives no address, key, variable or configuration"
            raise ValueError(f"{min(unknown)}: {reason}; {NAME_AN_ENTRY}")
        return data

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.model is None) == (self.vectors is None):
            raise ValueError("give either model or vectors")
        if (
            self.model is not None
            and BUILT_IN_MODEL.fullmatch(self.model) is None
            and (not self.is_named or self.model.startswith("lsa-"))
        ):
            raise ValueError(f"accepted models: {MODELS}")
        return self
