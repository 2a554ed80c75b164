"""Typed settings, read once at the edge (environment `RAG_EVAL_*`, then `settings.toml`) and passed in; and the switch that turns telemetry off."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, Field, StringConstraints
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

ImportPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]

TELEMETRY_OFF = {
    "ANONYMIZED_TELEMETRY": "False",  # chromadb
    "CHROMA_ANONYMIZED_TELEMETRY": "False",
    "DAGSTER_DISABLE_TELEMETRY": "yes",
    "DISABLE_MLFLOW_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",  # mlflow, datasets and others
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAGAS_DO_NOT_TRACK": "true",
}


def telemetry_off() -> None:
    """Set every library's own switch against telemetry; called before any of them is imported. Dagster's is in its dagster.yaml."""
    os.environ.update(TELEMETRY_OFF)


class Settings(BaseSettings):
    """What belongs to an installation and not to a gold set: places, addresses, names that gold sets may use, feature flags."""

    model_config = SettingsConfigDict(env_prefix="RAG_EVAL_", toml_file="settings.toml", extra="forbid", frozen=True)

    home: Path = Field(default=Path(".rag_eval"), description="artifacts, embeddings, Chroma, MLflow and Dagster stores")
    reports: Path = Field(default=Path("reports"), description="where reports are written")
    gold_sets: Path = Field(default=Path("gold_sets"), description="folder of gold sets")
    primary_gold_set: str = "pandas_api"
    tracking_uri: str | None = Field(default=None, description="MLflow; default: SQLite in the home")
    chroma_url: str | None = Field(default=None, description="http(s)://host:port of a Chroma server; default: embedded in the home")
    schedule: str = Field(default="0 2 * * *", description="cron of the nightly job")
    timezone: str = Field(default="UTC", description="IANA time zone of the schedule")
    rerankers: dict[str, ImportPath] = Field(default_factory=dict, description="name -> module:attribute of a reranker that gold sets may name")
    latency_queries: int = Field(default=60, ge=1, le=10_000, description="wordings timed one at a time for each strategy")
    price_per_1k_embedding_tokens: float = Field(default=0.0, ge=0, description="for cost_per_1k; local models cost nothing")
    feature_hybrid_retrieval: bool = Field(
        default=False, validation_alias=AliasChoices("FEATURE_HYBRID_RETRIEVAL", "RAG_EVAL_FEATURE_HYBRID_RETRIEVAL", "feature_hybrid_retrieval")
    )
    feature_ragas_eval: bool = Field(default=False, validation_alias=AliasChoices("FEATURE_RAGAS_EVAL", "RAG_EVAL_FEATURE_RAGAS_EVAL", "feature_ragas_eval"))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic-settings' own
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - likewise
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Explicit arguments, then the environment, then settings.toml."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def mlflow_uri(self) -> str:
        """The MLflow tracking address."""
        return self.tracking_uri or f"sqlite:///{self.home.resolve() / 'mlflow.db'}"
