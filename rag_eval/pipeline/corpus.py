"""Stages of the corpus, of trust and of the gold set, and commands on their files."""

import dataclasses
import datetime as dt
import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, IntArray
from rag_eval.core.config import FINDINGS, AnswerOverride, GoldSetConfig
from rag_eval.core.errors import InputError
from rag_eval.core.loader import Chunker, ShardedLoader
from rag_eval.core.settings import Settings
from rag_eval.corpus.analyzer import name_analyzer
from rag_eval.corpus.chunking import chunk_documents, chunks_hash
from rag_eval.corpus.loading import (
    CorpusFacts,
    CorpusFrames,
    describe_corpus,
    empty_corpus,
    identify,
    load_corpus,
)
from rag_eval.gold.lint import (
    GoldFacts,
    identical_ids,
    lint,
    report_warnings,
)
from rag_eval.gold.loading import GoldSet, load_gold, read_gold, variants
from rag_eval.gold.resolving import resolve as resolve_gold
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.runner import Result, Stage, Work, array_part, frame_part, json_part
from rag_eval.pipeline.shards import (
    CUT,
    READ,
    SCREENED,
    Layout,
    divide,
    run_step,
    screen_documents,
    sharded_frame,
)
from rag_eval.retrieval.embedding.source import ChunkTable
from rag_eval.retrieval.lexical import bm25s_engine
from rag_eval.retrieval.strategies import StrategyIndex
from rag_eval.storage.artifacts import Parts, ShardedFrame, read_shards
from rag_eval.storage.hashing import digest
from rag_eval.trust.guard import find_across_titles, join_findings, judge_chunks
from rag_eval.trust.planted import FIRST, find_paraphrases, find_restating, topic_shift
from rag_eval.trust.rules import RuleSet
from rag_eval.trust.signatures import read_trust_inputs
from rag_eval.trust.sources import judge_sources
from rag_eval.trust.trust_report import (
    BlockedGold,
    TrustFacts,
    blocked_problems,
)

# ---- The corpus: read, mask, and cut into chunks.


class CorpusSnapshot(Result):
    """The corpus after reading and masking: DOCUMENTS, SECTIONS and SOURCES frames."""

    documents: pd.DataFrame = frame_part()
    sections: pd.DataFrame = frame_part()
    sources: pd.DataFrame = frame_part()
    about: CorpusFacts = json_part()
    layout: Layout | None = json_part(volatile=True, default=None)
    """The shards of a divided corpus. They do not count: other shards give the same corpus."""

    def report_part(self, _: Work) -> dict[str, object]:
        """Give the identity and the size of the corpus."""
        corpus = self.about
        sizes = {name: getattr(corpus, name) for name in ("n_documents", "loader", "masked")}
        return {"index": {"rev": corpus.corpus_rev, "corpus_rev": corpus.corpus_rev, **sizes}}


@dataclasses.dataclass(frozen=True)
class ChunkFacts:
    """Identity and number of chunks."""

    chunks_hash: str
    n_chunks: int
    analyzer: str


class CorpusChunks(Result):
    """The corpus cut into chunks: a CHUNKS frame."""

    chunks: pd.DataFrame = frame_part()
    about: ChunkFacts = json_part()


def _chosen_loader(evaluation: Evaluation, strategy: str) -> list[str]:  # noqa: ARG001 - of stages
    """Name the module of the configured loader."""
    return [type(evaluation.config.corpus).__module__]


@Stage(
    "corpus_snapshot",
    "corpus",
    outside=lambda work: identify(work.config.corpus, work.base),
    chosen=_chosen_loader,
)
def read_corpus(work: Work) -> CorpusSnapshot:
    """Read the corpus as it is now: documents and sections, masked, with its revision.

    Raises `InputError`, for example for an empty corpus.
    """
    spec = work.config.corpus
    n_shards = spec.n_shards(work.base) if isinstance(spec, ShardedLoader) else None
    if isinstance(spec, ShardedLoader) and n_shards is not None:
        return _read_shards(work, spec, n_shards)
    with work.progress.step("Reading the corpus"):
        loaded = load_corpus(spec, work.base)
    if loaded.documents.empty:
        message = "the corpus has no document"
        raise InputError.of("empty_corpus", message, work.base, field="corpus")
    return CorpusSnapshot(**loaded._asdict())


def _read_shards(work: Work, spec: ShardedLoader, n_shards: int) -> CorpusSnapshot:
    recorded, store = work.evaluation.find_recorded("corpus_snapshot"), work.evaluation.store
    before = None if recorded is None else CorpusSnapshot.stored(recorded).layout
    layout = divide(work, spec, n_shards, before)
    if not layout.shards:
        raise empty_corpus("there is no document", spec.loader, "at least one document")
    frames: dict[str, Any] = {
        name: sharded_frame(layout, READ, name, layout.made_by)
        for name in (*CorpusFrames._fields, "masked")
    }
    masked = read_shards(store, frames.pop("masked"), "masked").to_pandas()
    hashes = read_shards(store, frames["documents"], "documents", ["doc_id", "content_hash"])
    facts = describe_corpus(spec, hashes.to_pandas(), masked)
    return CorpusSnapshot(**frames, about=facts, layout=layout)


@Stage("corpus_chunks", "corpus", reads=("corpus.chunker",))
def cut_chunks(work: Work, corpus_snapshot: CorpusSnapshot) -> CorpusChunks:
    """Cut the documents into chunks with exact offsets.

    Raises `empty_index` when no document has any text.
    """
    chunker, layout = work.config.corpus.chunker, corpus_snapshot.layout
    chunks: Any
    if layout is not None:
        keys, store = run_step(work, CUT, layout, chunker), work.evaluation.store
        decided_by = [work.version, chunker.model_dump(mode="json")]
        chunks = sharded_frame(layout, CUT, "chunks", decided_by, keys)
        names = read_shards(store, chunks, "chunks", ["chunk_id", "text_hash"]).to_pandas()
        # One shard after the other, because a large corpus does not fit into the memory.
        parts: Iterable[pd.DataFrame] = (
            part[~part["doc_id"].isin(gone)]
            for key, gone in chunks.gone.items()
            for part in [store.need(CUT, key).frame("chunks", ["doc_id", "title", "text"])]
        )
    else:
        with work.progress.step("Cutting documents into chunks"):
            chunks = chunk_documents(corpus_snapshot.documents, corpus_snapshot.sections, chunker)
        names, parts = chunks, [chunks]
    if names.empty:
        message = "no document has any text, so there is nothing to retrieve"
        raise InputError.of("empty_index", message, work.base, field="corpus")
    analyzer = name_analyzer(itertools.chain.from_iterable(_list_texts(part) for part in parts))
    return CorpusChunks(chunks=chunks, about=_chunk_facts(names, chunker, analyzer))


def _list_texts(chunks: pd.DataFrame) -> Iterable[str]:
    return itertools.chain(chunks["title"], chunks["text"])


def _chunk_facts(chunks: pd.DataFrame, chunker: Chunker, analyzer: str) -> ChunkFacts:
    """Identify chunks with `chunk_id` and `text_hash`."""
    return ChunkFacts(chunks_hash(chunks, chunker, analyzer), len(chunks), analyzer)


# ---- Source trust and poisoning guard: verdicts on all chunks, and the chunks for the index.

LEFT_OUT: Final = (
    "left_out: topic shifts were not looked for, because they compare all documents and this "
    "corpus is read by shards"
)


class EvidenceTrust(Result):
    """Verdicts on all chunks: EVIDENCE_TRUST in the order of chunks, FINDINGS by chunk row."""

    trust: pd.DataFrame = frame_part()
    findings: pd.DataFrame = frame_part()
    about: TrustFacts = json_part()

    def describe(self) -> dict[str, object]:
        """Show also how many chunks are blocked, warned about and allowed."""
        verdicts = self.trust["verdict"].value_counts()
        counts = {
            "n_chunks": len(self.trust),
            "n_blocked": int(verdicts.get("blocked", 0)),
            "n_warned": int(verdicts.get("warning", 0)),
            "n_allowed": int((self.trust["allowed_by"] != "").sum()),
        }
        return super().describe() | counts


class AdmittedChunks(Result):
    """The chunks for the index (CHUNKS), with their rows among all chunks, int64 [n].

    `facts` has domain, domain_state, signature_state, allowed_by, warned (whether the guard warns
    of the chunk) and passes (whether the trust filter admits it). Ages are left out, because a new
    day must not repeat the indexing.
    """

    chunks: pd.DataFrame = frame_part()
    rows: IntArray = array_part()
    facts: pd.DataFrame = frame_part()
    about: ChunkFacts = json_part()

    def report_part(self, _: Work) -> dict[str, object]:
        """Give the identity and the number of the chunks in the index."""
        return {"index": {"chunks_hash": self.about.chunks_hash, "n_chunks": self.about.n_chunks}}

    @property
    def names(self) -> pd.DataFrame:
        """The chunks without their texts: chunk_id, doc_id, section_id, start, end."""
        columns = ["chunk_id", "doc_id", "section_id", "start", "end"]
        return self.artifact.frame("chunks", columns)

    @property
    def passes(self) -> BoolArray:
        """Whether the trust filter admits each chunk, bool [n]."""
        return self.artifact.frame("facts", ["passes"])["passes"].to_numpy(dtype=bool)

    def trust_of(self, trust: EvidenceTrust) -> pd.DataFrame:
        """Return the rows of EVIDENCE_TRUST for the admitted chunks, in the order of the chunks."""
        return trust.trust.iloc[self.rows].reset_index(drop=True)


def _as_of(settings: Settings) -> dt.date:
    """Choose the reference day of ages."""
    return settings.trust_as_of or dt.datetime.now(dt.UTC).date()


def _identify_trust(
    work: Work, corpus_snapshot: CorpusSnapshot, corpus_chunks: CorpusChunks
) -> list[object]:
    """Identify the files, decisions and the day that trust depends on.

    The day counts only when a document has a date.
    """
    sources = corpus_snapshot.sources
    inputs = read_trust_inputs(work.config, work.base, work.evaluation.home, sources)
    day = _as_of(work.settings).isoformat() if (sources["date"] != "").any() else None
    manifest = (
        None if inputs.states is None else [list(inputs.states), inputs.manifest.model_dump()]
    )
    allowed, files = sorted(inputs.allowed.items()), digest([manifest, _wordings(work)])
    whole = [] if corpus_snapshot.layout is None else [LEFT_OUT]
    return [corpus_chunks.id, files, inputs.notes, allowed, day, *whole]


@Stage(
    "evidence_trust",
    "trust",
    reads=("trust.domains", "trust.authors", "trust.keys", "trust.unlisted"),
    stores=("manifests",),
    outside=_identify_trust,
    chosen=_chosen_loader,
)
def judge_evidence(
    work: Work, corpus_snapshot: CorpusSnapshot, corpus_chunks: CorpusChunks
) -> EvidenceTrust:
    """Judge every chunk: source trust with its factors, and the verdict of the poisoning guard.

    Paraphrases and restated questions are searched among the first chunks of BM25 for each wording.
    Raises InputError if a file of trust cannot be used.
    """
    config, day, sources = work.config.trust, _as_of(work.settings), corpus_snapshot.sources
    inputs = read_trust_inputs(work.config, work.base, work.evaluation.home, sources)
    facts, about_sources = judge_sources(sources, config, inputs.states, day)
    of_documents = join_findings([about_sources, _screen_corpus(work, corpus_snapshot)])
    with work.progress.step("Judging chunks"):
        of_chunks = [_screen_titles(work, corpus_chunks)]
        of_chunks.append(_judge_first_chunks(work, corpus_chunks, facts))
        trust, findings = judge_chunks(
            corpus_chunks.chunks, facts, of_documents, join_findings(of_chunks), inputs.allowed
        )
    summary = TrustFacts(
        as_of=day.isoformat(),
        rules_version=RuleSet.load().version,
        manifest=inputs.manifest,
        notes=[*inputs.notes, *([] if corpus_snapshot.layout is None else [LEFT_OUT])],
    )
    return EvidenceTrust(trust=trust, findings=findings, about=summary)


def _wordings(work: Work) -> list[str]:
    """Return the wordings of the gold set that can be read."""
    evaluation = work.evaluation
    gold = read_gold(evaluation.base, evaluation.config, evaluation.split)
    return [*gold.queries["text"], *gold.paraphrases["text"]]


def _judge_first_chunks(
    work: Work, corpus_chunks: CorpusChunks, facts: pd.DataFrame
) -> pd.DataFrame:
    """Find paraphrases and restated questions among the first chunks, as FINDINGS by chunk row."""
    chunks, texts, vouched = corpus_chunks.chunks, _wordings(work), _vouched_for(facts)
    cut = corpus_chunks.about
    table = ChunkTable(chunks, cut.chunks_hash, work.evaluation.home, cut.analyzer)
    engine = bm25s_engine(StrategyIndex(table, work.evaluation.places))
    if vouched is not None:
        vouched = vouched[pd.Index(facts["doc_id"]).get_indexer(pd.Index(chunks["doc_id"]))]
    ranked = engine.search(table.query_terms(texts), FIRST).rows.astype(np.int64)
    groups = find_paraphrases(ranked, chunks, table.terms, engine.frequency, vouched=vouched)
    restating = find_restating(texts, ranked, chunks, vouched=vouched)
    work.made_from += sorted(table.made_from)
    return join_findings([groups, restating])


def _vouched_for(facts: pd.DataFrame) -> BoolArray | None:
    """Tell whether the allowlist or a valid signature vouches for each source (`judge_sources`).

    Returns None if neither domains nor keys are configured. As for trust, one false claim voids the
    other claim.
    """
    domains, signatures = facts["domain_state"], facts["signature_state"]
    if (domains == "not_configured").all() and (signatures == "not_configured").all():
        return None
    honest = (domains != "lookalike") & (signatures != "invalid")
    return (((domains == "allowed") | (signatures == "valid")) & honest).to_numpy(dtype=bool)


def _screen_titles(work: Work, corpus_chunks: CorpusChunks) -> pd.DataFrame:
    """Find poison across title and text, as FINDINGS by chunk row."""
    cut = corpus_chunks.artifact.sharded("chunks")
    if cut is not None:
        return _read_findings(work, cut, "across", corpus_chunks.chunks["chunk_id"])
    return work.keep(
        "screened_titles",
        [corpus_chunks.id],
        lambda: {"findings": find_across_titles(corpus_chunks.chunks)},
    ).frame("findings")


def _screen_corpus(work: Work, corpus: CorpusSnapshot) -> pd.DataFrame:
    """Screen the texts, and return FINDINGS by document row.

    The result is stored separately, because neither the day nor allowed chunks change it.
    """
    layout = corpus.layout
    if layout is not None:
        keys = run_step(work, SCREENED, layout)
        work.evaluation.close_pool()  # later steps have no shards, and its processes hold memory
        frame = sharded_frame(layout, SCREENED, "findings", work.version, keys)
        owners = corpus.artifact.frame("documents", ["doc_id"])["doc_id"]
        return join_findings([_read_findings(work, frame, "findings", owners)])

    def make() -> Parts:
        documents = corpus.documents
        texts = documents["text"].tolist()
        with work.progress.step("Screening the corpus", len(texts), "documents") as advance:
            parts = [screen_documents(documents)[list(FINDINGS.columns)]]
            advance(len(texts))
        with work.progress.step("Looking for topic shifts"):
            parts.append(topic_shift(texts))
        return {"findings": join_findings(parts)}

    return work.keep("screened", [corpus.id], make).frame("findings")


def _read_findings(work: Work, frame: ShardedFrame, name: str, owners: pd.Series) -> pd.DataFrame:
    """Read findings of shards, and number their rows by the owners, doc_ids or chunk_ids."""
    findings: pd.DataFrame = read_shards(work.evaluation.store, frame, name).to_pandas()
    rows = pd.Index(owners).get_indexer(pd.Index(findings[str(owners.name)])).astype(np.int64)
    return findings.assign(row=rows)[list(FINDINGS.columns)]


@Stage(
    "admitted_chunks",
    "corpus",
    reads=("trust.quarantine", "trust.filter", "trust.threshold", "corpus.chunker"),
)
def admit_chunks(
    work: Work, corpus_chunks: CorpusChunks, evidence_trust: EvidenceTrust
) -> AdmittedChunks:
    """Select the chunks that may be indexed: all but the quarantined ones.

    Quarantine keeps chunks out until a person allows them. Raises `empty_index` when no chunk is
    left.
    """
    spec, trust, chunks = work.config.trust, evidence_trust.trust, corpus_chunks.artifact
    poor = trust["verdict"].isin(spec.withheld) & (trust["allowed_by"] == "")
    left_out = poor.to_numpy(dtype=bool)
    rows = np.flatnonzero(~left_out)
    sharded = chunks.sharded("chunks")
    admitted: Any
    if sharded is None:
        admitted = names = chunks.frame("chunks").iloc[rows].reset_index(drop=True)
    else:  # the shards hold the texts of a large corpus once
        names = chunks.frame("chunks", ["chunk_id", "text_hash"])
        without = names["chunk_id"][left_out].tolist()
        content = digest([sharded.content, without])
        admitted = dataclasses.replace(sharded, content=content, without={"chunk_id": without})
        names = names.iloc[rows]
    if names.empty:
        message = "every chunk is quarantined, so there is nothing to retrieve"
        codes = Counter(code for codes in trust["reasons"] for code in codes).most_common(5)
        reasons = ", ".join(f"{code} {count}" for code, count in codes)
        accepted = f"harmless documents are allowed with rag-eval trust allow; reasons: {reasons}"
        raise InputError.of("empty_index", message, work.base, field="corpus", accepted=accepted)
    facts = trust.iloc[rows].reset_index(drop=True)
    passes = np.ones(len(facts), dtype=bool)
    if spec.filter and spec.threshold is not None:
        passes = facts["trust"].to_numpy() >= spec.threshold
    columns = ["domain", "domain_state", "signature_state", "allowed_by"]
    return AdmittedChunks(
        chunks=admitted,
        rows=rows.astype(np.int64),
        facts=facts[columns].assign(warned=facts["verdict"] == "warning", passes=passes),
        about=_chunk_facts(names, work.config.corpus.chunker, corpus_chunks.about.analyzer),
    )


# ---- Gold: lint, resolve against the corpus revision, and expand into variants.


class GoldVariants(Result):
    """The gold set over this corpus revision.

    The frames are QUERIES, VARIANTS, QRELS, SPANS of quoted evidence, SPAN_CHUNKS and DECOYS.
    SPAN_CHUNKS has the rows of the admitted chunks that carry the spans. `answerable_known`, bool
    [n_queries], marks whether the gold set says if the corpus answers the question. `overrides`
    maps a query id to the settings of its row that override `answers`. `layout` is the layout of
    the gold files. `blocked` has the relevant documents with chunks that the guard removed.
    """

    queries: pd.DataFrame = frame_part()
    variants: pd.DataFrame = frame_part()
    qrels_document: pd.DataFrame = frame_part()
    qrels_section: pd.DataFrame = frame_part()
    spans: pd.DataFrame = frame_part()
    span_chunks: pd.DataFrame = frame_part()
    decoys: pd.DataFrame = frame_part()
    answerable_known: BoolArray = array_part()
    overrides: dict[str, AnswerOverride] = json_part()
    layout: str = json_part()
    about: GoldFacts = json_part()
    blocked: BlockedGold = json_part()

    def report_part(self, work: Work) -> dict[str, object]:
        """Give the facts on the gold set, with the warnings of lint."""
        more = {"seeds": list(work.config.seeds), "warnings": self.about.warnings}
        return {"gold": self.about.model_dump() | more}

    @property
    def texts(self) -> list[str]:
        """The texts of all wordings."""
        texts: list[str] = self.variants["text"].tolist()
        return texts

    def own_documents(self, config: GoldSetConfig, doc_ids: pd.Series) -> IntArray:
        """Return `variant * n_units + unit` where a unit's document has the id of the question.

        `doc_ids` [n_units] has the documents of the units. Empty unless the gold set ignores them.
        """
        query_ids = self.variants["query_id"] if config.ignore_identical_ids else ()
        asked, units = (
            pd.DataFrame({"id": np.asarray(ids, dtype=object), row: np.arange(len(ids))})
            for ids, row in ((query_ids, "variant"), (doc_ids, "unit"))
        )
        both = asked.merge(units, on="id")
        return np.asarray(both["variant"] * len(doc_ids) + both["unit"], dtype=np.int64)


def _load_gold(work: Work) -> GoldSet:
    evaluation = work.evaluation
    return load_gold(evaluation.base, evaluation.config, evaluation.split)


def _identify_gold(work: Work, **_: Result) -> list[object]:
    """Identify the content, layout and warnings of the gold files.

    Recorded outputs can have new warnings although their questions are equal.
    """
    gold = _load_gold(work)
    warnings = report_warnings(gold.problems, work.base)
    return [gold.gold_hash, gold.layout, [warning.dump() for warning in warnings]]


@Stage(
    "gold_variants",
    "gold",
    reads=("ignore_identical_ids",),
    outside=_identify_gold,
)
def resolve_gold_set(
    work: Work,
    corpus_snapshot: CorpusSnapshot,
    corpus_chunks: CorpusChunks,
    admitted_chunks: AdmittedChunks,
) -> GoldVariants:
    """List every question under every wording, with judgements and evidence in this corpus.

    Raises `InputError` with every problem when lint finds an error.
    """
    config, gold = work.config, _load_gold(work)
    documents, sections = corpus_snapshot.documents, corpus_snapshot.sections
    with work.progress.step("Checking the gold set"):
        problems = lint(gold, documents, sections)
    if any(problem.severity == "error" for problem in problems):
        raise InputError(problems)
    resolved = resolve_gold(gold, documents, sections, admitted_chunks.chunks)
    blocked = find_blocked_gold(resolved.qrels["document"], corpus_chunks, admitted_chunks)
    problems += blocked_problems(blocked)
    if not config.ignore_identical_ids:
        problems += identical_ids(gold.queries, documents)
    queries, is_known = resolved.gold.queries, gold.layout != "recorded"
    # Recorded outputs do not say whether the corpus answers a question. Only a flag says so.
    flags = gold.places["has_flag"].to_numpy(dtype=bool) | is_known
    with_gold = {*gold.judgements["query_id"], *gold.anchors["query_id"]}
    facts = GoldFacts(
        name=config.name,  # its kept runs go by this name too
        version=str(gold.version),
        hash=gold.gold_hash,
        n_queries=len(gold.queries),
        n_answerable=int(gold.queries["answerable"].sum()),
        n_answerable_unknown=int((~flags).sum()),
        n_judged=int(gold.queries["query_id"].isin(with_gold).sum()),
        n_paraphrases=len(gold.paraphrases),
        n_groups=int(queries["group_id"].nunique()),
        n_groups_answerable=int(queries.loc[queries["answerable"], "group_id"].nunique()),
        n_spans=len(resolved.spans),
        warnings=report_warnings(problems, work.base),
    )
    return GoldVariants(
        queries=queries,
        variants=variants(resolved.gold),
        qrels_document=resolved.qrels["document"],
        qrels_section=resolved.qrels["section"],
        spans=resolved.spans,
        span_chunks=resolved.span_chunks,
        decoys=resolved.decoys,
        answerable_known=flags,
        overrides=dict(gold.overrides),
        layout=gold.layout,
        about=facts,
        blocked=blocked,
    )


def find_blocked_gold(
    qrels: pd.DataFrame, chunks: CorpusChunks, admitted: AdmittedChunks
) -> BlockedGold:
    """Find the relevant documents (QRELS) with chunks that the guard removed."""
    cut, indexed = (
        part.artifact.frame("chunks", ["doc_id"])["doc_id"] for part in (chunks, admitted)
    )
    return BlockedGold.of(qrels, cut, indexed)
