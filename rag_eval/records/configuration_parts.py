"""What the parts of `gold_set.yaml` share: how strict a part is, what a name is, what turns texts into vectors."""

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME)]


class Part(BaseModel):
    """A part of the file: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Embedding(Part):
    """What turns texts into vectors: a built-in model, a Chroma embedding function by name, or a file of vectors."""

    model: str | None = Field(
        default=None, description="lsa-<dimensions>, all-MiniLM-L6-v2, or chroma:<function name>"
    )
    config: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="passed to the Chroma embedding function"
    )
    vectors: str | None = Field(
        default=None, description="an .npz file with `sha256` and `vectors`"
    )

    @model_validator(mode="after")
    def _one_source(self) -> "Embedding":
        if (self.model is None) == (self.vectors is None):
            raise ValueError("give either model or vectors")
        if self.model is not None and not re.fullmatch(
            r"lsa-[1-9]\d{0,3}|all-MiniLM-L6-v2|chroma:[A-Za-z0-9_]+", self.model
        ):
            raise ValueError(
                "accepted models: lsa-<dimensions>, all-MiniLM-L6-v2, chroma:<function name>"
            )
        if self.config and not (self.model or "").startswith("chroma:"):
            raise ValueError("config belongs to chroma: models")
        return self
