"""Column schemas of the frames that answers and measures leave behind, one row a question or a retrieval.

Belongs here: frames that only reports, exports and the Dagster UI read. What stages hand to each other is `rag_eval.records.frames`.
"""

from rag_eval.records.frames import schema

ANSWERS = schema(
    "answers",
    query_id=("str", "the question"),
    mode=("str", "deterministic | llm | recorded"),
    outcome=("str", "how the question ended: answered, not_found, ..."),
    codes=("list", "what broke the contract; empty where nothing did"),
    text=("str", "the answer"),
    verdict=("str", "verdict of the two-line form; empty for none"),
    signal=("float", "what the decision to answer rests on; NaN where it was not asked"),
    delta_s=("float", "what the reply stated; NaN for none"),
    lambda_state=("str", "what the reply stated; empty for none"),
    attempts=("int", "times it was tried"),
    top_k=("int", "evidence that was given"),
    tokens_in=("int", "tokens sent to a model"),
    tokens_out=("int", "tokens that came back"),
    confidence=("float", "what the answering system reported; NaN for none"),
)

CITATIONS = schema(
    "citations",
    query_id=("str", "the question"),
    segment=("int", "sentence of the answer, from 0"),
    doc_id=("str", "cited document"),
    start=("int", "first cited character of its text"),
    end=("int", "one past the last"),
    code=("str", "first rule that it breaks, or ok"),
    field=("str", "field that breaks it; empty for ok"),
    correct=("bool", "valid, and overlaps a gold span by half of the shorter"),
)

ANSWER_MEASURES = schema(
    "answer_measures",
    query_id=("str", "the question"),
    n_cited=("int", "citations made"),
    n_valid=("int", "of these ok"),
    n_correct=("int", "of these correct"),
    n_due=("int", "citations that were due"),
    n_gold=("int", "gold spans"),
    n_gold_matched=("int", "of these matched by a correct citation"),
    coverage=("float", "share of the anchors' tokens that is cited; NaN without gold"),
    outcome=("str", "how the question ended"),
    groundedness=("float", "mean over the answer's sentences; NaN without an answer"),
    supported=("float", "share of its sentences that the evidence supports; NaN without an answer"),
    gap=("bool", "whether retrieved content is neither cited nor used"),
    gap_reason=("str", "why or why not"),
)

DELTA_S = schema(
    "delta_s",
    strategy=("str", "who retrieved"),
    query_id=("str", "the question"),
    paraphrase_id=("str", "its wording"),
    seed=("int", "the seed that the retriever was given"),
    delta_s=(
        "float",
        "1 - cosine between the question and the mean of what was retrieved; NaN where nothing was",
    ),
)

PER_QUERY = schema(
    "per_query",
    strategy=("str", "who retrieved"),
    level=("str", "document | section | span"),
    query_id=("str", "the question"),
    group_id=("str", "unit of inference"),
    paraphrase_id=("str", "its wording"),
    seed=("int", "the seed that the retriever was given"),
    eligible=("bool", "whether it has gold at this level"),
    failed=("bool", "whether the retrieval failed, which scores 0"),
    mrr=("float", "1 / rank of the first gold; NaN where ineligible, as all measures"),
    ndcg_at_10=("float", "normalised discounted cumulative gain"),
)
"""The columns that every gold set has; beside them recall, success, precision and judged share at each of its k."""
