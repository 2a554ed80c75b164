"""Typed settings, which the entry point reads once and passes on; and the telemetry switches.

The environment (`RAG_EVAL_*`) comes before `settings.toml`.
"""

import datetime as dt
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    SecretStr,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from rag_eval.core.errors import InputError
from rag_eval.core.parts import BUILT_IN_MODEL, ConfigValue, Name, Part

SETTINGS_FILE = "settings.toml"
Entry = TypeVar("Entry")
_BUCKET = re.compile(r"(?!file:|local:)[a-z][a-z0-9+.-]*://[^/:\s][^:\s]*\Z")

ImportPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]

Source = Annotated[
    str, StringConstraints(pattern=r"^(?:[A-Za-z_][\w.]*:[A-Za-z_]\w*|https?://\S+)$")
]
StoreUrl = Annotated[str, StringConstraints(pattern="://")]
HttpUrl = Annotated[str, StringConstraints(pattern=r"^https?://\S+$")]
ServerUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^/?#@\s][^@\s]*$")]
EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
MailAddress = Annotated[str, StringConstraints(pattern=r"^[^\s@,]+@[^\s@,]+$")]


class Endpoint(Part):
    """An OpenAI-compatible chat endpoint that gold sets may name; its key is never shown."""

    base_url: HttpUrl
    """Address that speaks the chat protocol of OpenAI."""
    model: str = Field(min_length=1, max_length=200)
    """Model that is asked."""
    api_key: SecretStr | None = None
    """Key, if it is not in a variable."""
    api_key_env: EnvironmentName | None = None
    """Environment variable that holds the key."""
    concurrency: int = Field(default=4, ge=1, le=256)
    """Most requests at a time."""
    timeout_s: float = Field(default=60, gt=0, le=3600)
    """Seconds until a request is given up."""
    max_retries: int = Field(default=4, ge=0, le=20)
    """Further tries after 429, 5xx, a time-out or a broken connection."""
    temperature: float = Field(default=0, ge=0, le=2)
    """Sampling temperature."""
    max_tokens: int = Field(default=1024, ge=1, le=1_000_000)
    """Longest reply."""
    seed: int | None = 0
    """Sent where not null; equal requests are answered from the cache in any case."""
    price_per_1k_tokens_in: float = Field(default=0, ge=0, description="for the cost figures")
    price_per_1k_tokens_out: float = Field(default=0, ge=0, description="for the cost figures")


class EmbeddingFunction(Part):
    """A Chroma embedding function that gold sets may name."""

    function: str = Field(pattern=r"^[A-Za-z0-9_]+$")
    """Name of the function in Chroma, such as openai."""
    config: dict[str, ConfigValue] = Field(default_factory=dict)
    """Given to the function: api_base, model_name, api_key_env_var and the like."""


class _PairModel(Part):
    entailment: int = Field(default=1, ge=0, le=1000)
    """Place of the label that means support, from 0. A single label counts by its sigmoid."""
    max_tokens: int = Field(default=512, ge=32, le=100_000)
    """Most tokens of evidence and sentence that the model reads; longer evidence is read in
    windows."""


class OnnxVerifier(_PairModel):
    """A cross-encoder in an ONNX file."""

    kind: Literal["onnx"]
    model: Path
    """The file; tokenizer.json stands in its folder."""


class CrossEncoderVerifier(_PairModel):
    """A cross-encoder of the package sentence-transformers, which you install yourself."""

    kind: Literal["cross-encoder"]
    model: str = Field(min_length=1, max_length=1000)
    """Name or folder of the model."""


class ChatVerifier(Part):
    """A chat endpoint that judges sentences."""

    kind: Literal["chat"]
    endpoint: str = Field(min_length=1, max_length=200)
    """A name under `endpoints`."""


VerifierSettings = Annotated[
    OnnxVerifier | CrossEncoderVerifier | ChatVerifier, Field(discriminator="kind")
]


class ExternalLimits(Part):
    """Limits of calls to external retrievers."""

    timeout_s: float = Field(default=30, gt=0, le=3600)
    """Seconds until a request is given up."""
    max_retries: int = Field(default=3, ge=0, le=20)
    """Further tries after 429, 5xx, a time-out or a broken connection."""
    concurrency: int = Field(default=8, ge=1, le=256)
    """Most requests at a time."""


class MailAlerts(Part):
    """Mail server and receivers of failed runs; nothing configured, nothing sent."""

    host: str = Field(min_length=1, max_length=255)
    """Name of the mail server, which is asked at port 587 with STARTTLS."""
    user: str | None = None
    """User at the mail server; default: the sender."""
    password_env: EnvironmentName
    """Environment variable that holds the password."""
    sender: MailAddress
    """Address of the sender."""
    to: tuple[MailAddress, ...] = Field(min_length=1)
    """Addresses of the receivers."""


FilterValue = str | int | bool


class EngineFields(Part):
    """Names of the fields of an index; a name with dots leads into nested fields."""

    id: str | None = Field(default=None, description="id of a unit; default: the engine's own")
    doc_id: str | None = None
    """Document of a unit; needed where the ids are not those of documents or chunks."""
    section_id: str | None = None
    """Section of a unit."""
    text: str = Field(default="text", description="text of a unit; empty where the index has none")
    vector: str | None = None
    """Vectors; default: embedding, and the unnamed vectors of Qdrant."""


class EngineSettings(Part):
    """Settings that every kind of engine has. The limits are those of `external`."""

    index: str = Field(min_length=1, max_length=500, description="index, collection or table")
    fields: EngineFields = EngineFields()
    filters: dict[str, FilterValue | list[FilterValue]] = Field(default_factory=dict)
    """Accepted value or values of fields, by name; all must hold."""
    embedding: str | None = None
    """How questions are embedded: a name under `embeddings`, or module:attribute of a function from
    texts to vectors; it must be the model of the index."""
    api_key_env: EnvironmentName | None = None
    """Environment variable that holds the key, or the password of PostgreSQL."""


class OpenSearchEngine(EngineSettings):
    """An index or alias of OpenSearch."""

    kind: Literal["opensearch"]
    url: HttpUrl
    """Address of the cluster."""
    search_pipeline: str | None = Field(default=None, min_length=1)
    """Pipeline that normalizes scores, for mode hybrid."""


class QdrantEngine(EngineSettings):
    """A collection of Qdrant, on a server or in a folder."""

    kind: Literal["qdrant"]
    url: HttpUrl | None = None
    """Address of the server."""
    path: Path | None = None
    """Folder of a local collection, in place of `url`."""

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if (self.url is None) == (self.path is None):
            raise ValueError("give either url or path")
        return self


class PgvectorEngine(EngineSettings):
    """A table of PostgreSQL with a column of pgvector."""

    kind: Literal["pgvector"]
    url: SecretStr
    """Address, `postgresql://user@host/database`."""
    distance: Literal["cosine", "l2", "inner_product"] = "cosine"
    """Distance that orders the rows."""
    session: dict[str, str] = Field(default_factory=dict)
    """Settings of the session, such as hnsw.ef_search; an HNSW index returns at most as many rows
    as hnsw.ef_search says."""

    @field_validator("url")
    @classmethod
    def _is_postgresql(cls, value: SecretStr) -> SecretStr:
        if not value.get_secret_value().startswith(("postgresql://", "postgres://")):
            raise ValueError("accepted: postgresql://...")
        return value


AnyEngine = OpenSearchEngine | QdrantEngine | PgvectorEngine


class ChromaServer(Part):
    """What a Chroma server asks for beyond its address."""

    tenant: str = Field(default="default_tenant", min_length=1)
    """Tenant that owns the database."""
    database: str = Field(default="default_database", min_length=1)
    """Give each home that shares a server a database of its own."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Sent with each request, such as Authorization."""


TELEMETRY_OFF = {
    "ANONYMIZED_TELEMETRY": "False",  # read by chromadb
    "CHROMA_ANONYMIZED_TELEMETRY": "False",
    "DAGSTER_DISABLE_TELEMETRY": "yes",
    "DISABLE_MLFLOW_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",  # read by mlflow, datasets and others
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAGAS_DO_NOT_TRACK": "true",
}


def telemetry_off() -> None:
    """Turn off telemetry of every library. Call this before the libraries are imported."""
    os.environ.update(TELEMETRY_OFF)


VIEW_PORT: Final = 7777
"""Port of the viewer, to which Dagster links."""

REMOVED_SETTINGS: Final = {
    "trace_log": "every run writes traces.log; delete the line",
    "view_port": "give `rag-eval view --port`",
    "max_questions": "split a gold set of more than 1,000,000 questions",
    "max_judgements": "split a gold set of more than 10,000,000 judgements",
    "view_token": "the viewer answers this machine only; reach it through an SSH tunnel",
    "alerts.webhook": "name a mail server under `alerts`, or add a sensor of your own to Dagster",
    "alerts.smtp": "write its keys under `alerts` itself; Dagster mails without a port of ours",
    "external.backoff_s": "the first wait is 0.5 s; delete the line",
    "external.max_reply_bytes": "a reply has at most 8,000,000 bytes; delete the line",
    "engines.*.key_scheme": "write the scheme before the key in its variable, as `ApiKey ...`",
    "latency_queries": "up to 60 wordings are timed; delete the line",
    "alerts.dagster_url": "a mail names the run; Dagster finds it by its id",
    "alerts.tls": "mail goes by STARTTLS; delete the line",
    "timezone": "write `schedule` in UTC",
}
"""Settings of earlier versions, each with what to use instead; `*` is any name."""


def _has(values: object, path: Sequence[str]) -> bool:
    """Tell whether nested dictionaries have a key at a path."""
    if not path:
        return True
    return isinstance(values, Mapping) and any(
        path[0] in {"*", name} and _has(value, path[1:]) for name, value in values.items()
    )


class Settings(BaseSettings):
    """Settings of an installation: folders, addresses, names for gold sets, feature flags."""

    model_config = SettingsConfigDict(
        env_prefix="RAG_EVAL_",
        toml_file=SETTINGS_FILE,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    home: Annotated[str, BeforeValidator(str)] = Field(default=".rag_eval", min_length=1)
    """Folder of artifacts, embeddings, Chroma, MLflow and Dagster stores; or the address of an
    object store that workers share, such as s3://bucket/home."""
    scratch: Path = Path(".rag_eval")
    """With an address as home: folder for local copies and for what can be made again, such as the
    embedded Chroma."""
    reports: Path = Field(default=Path("reports"), description="where reports are written")
    gold_sets: Path = Field(default=Path("gold_sets"), description="folder of gold sets")
    primary_gold_set: str = Field(
        default="pandas_api", description="default: the only gold set of the folder, else this one"
    )
    """Gold set whose report is at the top of `reports`."""
    tracking_uri: str | None = Field(default=None, validate_default=True)
    """MLflow; default: SQLite in the home, so an address as home needs a server."""
    chroma_url: ServerUrl | None = None
    """Chroma server, http(s)://host:port/path, with credentials in chroma.headers; default:
    embedded in the home."""
    chroma: ChromaServer = ChromaServer()
    schedule: str = Field(default="0 2 * * *", description="cron of the nightly job, in UTC")
    schedule_on: bool = True
    """Whether Dagster starts the nightly job by itself; off under make ui, until a person turns the
    schedule on there."""
    asset_key_prefix: str = Field(default="", pattern=r"^[A-Za-z0-9_]*$")
    """First part of the keys of Dagster's assets; each code location of an instance needs its
    own."""
    executor: str = Field(default="in_process", pattern=r"^[A-Za-z_][\w.]*(?::[A-Za-z_]\w*)?$")
    """How Dagster runs the steps of a run: in_process, multiprocess, k8s, docker, celery, dask, or
    module:attribute."""
    executor_config: dict[str, Any] = Field(default_factory=dict)
    """Configuration of the executor; default: the configuration of each run."""
    alerts: MailAlerts | None = None
    rerankers: dict[str, ImportPath] = Field(default_factory=dict)
    """Rerankers that gold sets may name: name -> module:attribute."""
    sources: dict[str, Source] = Field(default_factory=dict)
    """Retrievers that gold sets may name: name -> module:attribute or URL."""
    external: ExternalLimits = ExternalLimits()
    engines: dict[Name, Annotated[AnyEngine, Field(discriminator="kind")]] = Field(
        default_factory=dict, description="name -> index of a search engine that gold sets may name"
    )
    embeddings: dict[Name, EmbeddingFunction] = Field(default_factory=dict)
    """Chroma embedding functions that gold sets may name, by name."""
    corpus_roots: tuple[Annotated[StoreUrl | Path, Field(union_mode="left_to_right")], ...] = ()
    """Folders outside a gold set's own that gold sets may read from, and addresses of object
    stores, such as s3://bucket/corpora."""
    package_docs: tuple[str, ...] = ("pandas",)
    """Installed distributions that the loader package_docs may import."""
    shard_workers: int = Field(default=0, ge=0, le=1024)
    """Processes that work on the shards of a large corpus; 0: one for each core, 1: this process
    only."""
    ray: str | None = Field(default=None, min_length=1)
    """Ray cluster that works on the shards instead: an address, or local; its workers must see the
    home."""
    endpoints: dict[str, Endpoint] = Field(default_factory=dict)
    """OpenAI-compatible chat endpoints that gold sets may name, by name."""
    verifiers: dict[Name, VerifierSettings] = Field(default_factory=dict)
    """Models that score answer sentences, which gold sets may name, by name."""
    database_url: SecretStr | None = Field(default=None, validate_default=True)
    """SQLAlchemy address of the SQL store (traces, outcomes); default: SQLite in the home, so an
    address as home needs PostgreSQL."""
    wait_s: float = Field(default=600, ge=0, le=86_400)
    """Longest wait for another run that writes to the home, in seconds; 0: none. Dagster's default
    is 7,200."""
    trust_as_of: dt.date | None = None
    """Day that documents' ages are counted to, to repeat a run; default: today, UTC."""
    html_report: bool = True
    """Whether runs write the page, which takes seconds."""
    price_per_1k_embedding_tokens: float = Field(default=0.0, ge=0)
    """For cost_per_1k; local models cost nothing."""
    feature_hybrid_retrieval: bool = Field(
        default=False,
        validation_alias=AliasChoices(
            "FEATURE_HYBRID_RETRIEVAL",
            "RAG_EVAL_FEATURE_HYBRID_RETRIEVAL",
            "feature_hybrid_retrieval",
        ),
    )
    """Whether the retrieval port answers with the hybrid strategy unless told otherwise."""
    feature_ragas_eval: bool = Field(
        default=False,
        validation_alias=AliasChoices(
            "FEATURE_RAGAS_EVAL", "RAG_EVAL_FEATURE_RAGAS_EVAL", "feature_ragas_eval"
        ),
    )
    """Whether ragas and a chat endpoint judge faithfulness."""
    ragas_endpoint: str | None = None
    """Chat endpoint that judges faithfulness; default: the one that answers."""

    @model_validator(mode="before")
    @classmethod
    def _removed_settings_are_refused(cls, values: dict[str, object]) -> dict[str, object]:
        """Refuse a removed setting by its name; variables that no setting reads are ignored."""
        for name, advice in REMOVED_SETTINGS.items():
            if f"RAG_EVAL_{name.upper()}" in os.environ or _has(values, name.split(".")):
                raise ValueError(f"{name} was removed; {advice}")
        return values

    @model_validator(mode="before")
    @classmethod
    def _only_gold_set_is_primary(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Make the only gold set of the folder the primary one, unless one is named."""
        folder = Path(values.get("gold_sets", "gold_sets"))
        names = [path.parent.name for path in folder.glob("[!.]*/gold_set.yaml")]
        return {"primary_gold_set": names[0], **values} if len(names) == 1 else values

    @field_validator("corpus_roots")
    @classmethod
    def _roots_name_buckets(cls, value: tuple[str | Path, ...]) -> tuple[str | Path, ...]:
        for root in value:
            if isinstance(root, str) and not _BUCKET.match(root):
                raise ValueError(f"{root}: a folder, or scheme://bucket of an object store")
        return value

    @field_validator("tracking_uri", "database_url")
    @classmethod
    def _shared_with_the_home(
        cls, value: str | SecretStr | None, info: ValidationInfo
    ) -> str | SecretStr | None:
        """Refuse a home for several workers beside a store that only one of them can open."""
        address = value.get_secret_value() if isinstance(value, SecretStr) else value or ""
        schemes = {"tracking_uri": "http", "database_url": "postgresql"}
        if "://" in info.data.get("home", "") and not address.startswith(
            scheme := schemes[str(info.field_name)]
        ):
            raise ValueError(
                f"an address as home needs a server here too; accepted: an address that starts "
                f"with {scheme}"
            )
        return value

    @model_validator(mode="after")
    def _chroma_has_an_address(self) -> Self:
        if self.chroma_url is None and self.chroma != ChromaServer():
            raise ValueError("chroma is of a server: set chroma_url too, or remove chroma")
        return self

    @field_validator("embeddings")
    @classmethod
    def _names_are_free(cls, value: dict[str, EmbeddingFunction]) -> dict[str, EmbeddingFunction]:
        for name in value:
            if BUILT_IN_MODEL.fullmatch(name) or name.startswith("lsa-"):
                raise ValueError(f"{name}: a built-in model has this name; choose another")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings' own
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources in order: arguments, then the environment, then settings.toml."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def mlflow_uri(self) -> str:
        """The MLflow tracking address."""
        return self.tracking_uri or f"sqlite:///{Path(self.home).resolve() / 'mlflow.db'}"

    def find_endpoint(self, name: str | None, field: str) -> Endpoint:
        """Return the chat endpoint of a name in `field`; raises InputError `unknown_endpoint`."""
        return _find("endpoint", self.endpoints, name, field)

    def find_verifier(self, name: str) -> VerifierSettings:
        """Return the verifier of a name; raises InputError `unknown_verifier`."""
        return _find("verifier", self.verifiers, name, "answers.verifier")


def _find(kind: str, entries: Mapping[str, Entry], name: str | None, field: str) -> Entry:
    if name is None or name not in entries:
        message = f"the settings hold no {kind} of this name"
        accepted = ", ".join(sorted(entries)) or f"none is there; see {kind}s of the settings"
        raise InputError.of(
            f"unknown_{kind}", message, field=field, found=name or "nothing", accepted=accepted
        )
    return entries[name]
