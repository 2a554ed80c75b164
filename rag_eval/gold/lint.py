"""List all faults of a gold set at once, with file and line, and make its part of the report.

Errors block a run, warnings are shown.
"""

import dataclasses
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd

from rag_eval.core.errors import Place, Problem, ProblemList, quoted
from rag_eval.core.parts import Name
from rag_eval.core.records import Count, Hash, Record
from rag_eval.corpus.analyzer import ANALYZER, BLANKLESS, words
from rag_eval.gold.files import report_row, rows_of
from rag_eval.gold.loading import GoldSet
from rag_eval.gold.resolving import Placed, place

DRAFT = "draft"
"""Tag of a draft question that no person has edited."""
MIN_QUERIES = 2

# ---- The gold set in the report


class LintWarning(Record):
    """A warning of lint; file is relative to the gold set."""

    code: str
    message: str
    file: str | None = None
    line: Count | None = None
    field: str | None = None
    found: str | None = None
    accepted: str | None = None
    severity: Literal["warning"]


class GoldFacts(Record):
    """The gold set without its seeds.

    `n_answerable_unknown` counts the questions of recorded outputs that nobody judged.
    """

    name: Name
    version: str
    hash: Hash
    n_queries: Count
    n_answerable: Count
    n_answerable_unknown: Count
    n_judged: Count
    n_paraphrases: Count
    n_groups: Count
    n_groups_answerable: Count
    n_spans: Count
    warnings: list[LintWarning]


class GoldPart(GoldFacts):
    """The gold set."""

    seeds: list[Count]


def report_warnings(problems: Iterable[Problem], base: Path) -> list[LintWarning]:
    """Make warnings for the report, with file names that do not depend on the folder `base`."""
    warnings: list[LintWarning] = []
    for problem in problems:
        values = {key: it for key, it in dataclasses.asdict(problem).items() if it is not None}
        if problem.file:
            path = Path(problem.file)
            is_below = path.is_relative_to(base)
            values["file"] = path.relative_to(base).as_posix() if is_below else path.name
        warnings.append(LintWarning.model_validate(values))
    return warnings


# ---- Rules of questions, targets and paraphrases

_NOT_WORD = re.compile(r"[\W_]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_RULES = {
    "missing_answerable": "answerable: question {} lacks answerable: true or false",
    "empty_text": "text: {} has no text",
    "control_character": "text: question {} holds a control character",
    "draft_question": "tags: question {} is a draft: accept, edit or drop it (view --drafts NAME)",
    "answerable_without_target": "query_id: question {} is answerable but names no document",
    "nothing_relevant": "query_id: question {} is judged 0 only: it scores 0, as in trec_eval",
    "unanswerable_with_target": "answerable: question {} is not answerable but names a document",
    "decoy_is_target": "decoy: the decoy of question {} is judged relevant too",
    "contradicting_judgement": "anchors: question {} quotes a document that line {} judges 0",
    "paraphrase_equals_question": "text: paraphrase {} of question {} says what the question says",
    "paraphrases_equal": "text: paraphrase {} of question {} says what paraphrase {} says",
    "missing_paraphrases": "query_id: question {} has no paraphrase, so its stability is unknown",
}
"""Code of each fault -> field, and message with places for names."""
_WARNINGS = {"control_character", "missing_paraphrases", "nothing_relevant"}


class _Finding(NamedTuple):
    """A broken rule, the row that breaks it, the names of the message and the found text."""

    code: str
    row: Any
    names: Sequence[object]
    found: str | None = None


def _fold(text: str) -> str:
    """Return a text without case, punctuation and white space, to find equal wordings."""
    folded = _NOT_WORD.sub(" ", unicodedata.normalize("NFKC", text).casefold())
    return folded.strip() or text.strip()


def _check_questions(gold: GoldSet) -> Iterator[_Finding]:
    """Check flag, text, draft tag, and targets against the flag."""
    is_above_zero = gold.judgements["gain"] > 0
    relevant = {*gold.judgements["query_id"][is_above_zero], *gold.anchors["query_id"]}
    with_judgement = set(gold.judgements["query_id"])
    for query, row in zip(rows_of(gold.queries), rows_of(gold.places), strict=True):
        name, is_relevant = [query.query_id], query.query_id in relevant
        if gold.layout == "own" and not row.has_flag:
            yield _Finding("missing_answerable", row, name)
        if not query.text.strip() and DRAFT not in query.tags:
            yield _Finding("empty_text", row, [f"question {query.query_id}"])
        elif control := _CONTROL.search(query.text):
            yield _Finding("control_character", row, name, f"U+{ord(control.group()):04X}")
        if DRAFT in query.tags:
            yield _Finding("draft_question", row, name, DRAFT)
        if query.answerable and not is_relevant:
            if query.query_id in with_judgement:
                yield _Finding("nothing_relevant", row, name)
            elif gold.layout != "recorded":
                yield _Finding("answerable_without_target", row, name)
        if not query.answerable and is_relevant:
            yield _Finding("unanswerable_with_target", row, name, "false")


def _check_targets(gold: GoldSet, placed: Placed) -> Iterator[_Finding]:
    """Find decoys that are judged relevant, and anchors in documents that are judged 0."""
    relevant = placed.judgements[placed.judgements["gain"] > 0]
    pairs = {
        level: set(zip(relevant["query_id"], relevant[level], strict=True))
        for level in ("document", "section")
    }
    for row in rows_of(placed.decoys):
        level = "section" if row.section >= 0 else "document"
        if (row.query_id, getattr(row, level)) in pairs[level]:
            yield _Finding("decoy_is_target", row, [row.query_id], row.target)
    judged = placed.judgements
    zero = judged[(judged["gain"] == 0) & (judged["section"] < 0)]
    zero = zero[["query_id", "document", "line"]].rename(columns={"line": "judged_line"})
    rows = gold.anchors.iloc[placed.located["anchor"]][["query_id", "doc", "file", "line"]]
    rows = rows.assign(document=placed.located["document"].to_numpy())
    for row in rows_of(rows.merge(zero, on=["query_id", "document"])):
        yield _Finding("contradicting_judgement", row, [row.query_id, row.judged_line], row.doc)


def _check_paraphrases(gold: GoldSet) -> Iterator[_Finding]:
    """Find paraphrases that are empty or say nothing new, and questions without a paraphrase."""
    wordings: dict[tuple[str, str], str] = {
        (query_id, _fold(text)): ""
        for query_id, text in zip(gold.queries["query_id"], gold.queries["text"], strict=True)
    }
    for row in rows_of(gold.paraphrases):
        names, folded = [row.paraphrase_id, row.query_id], _fold(row.text)
        if not folded:
            yield _Finding("empty_text", row, ["paraphrase {} of question {}".format(*names)])
            continue
        first = wordings.setdefault((row.query_id, folded), row.paraphrase_id)
        if not first:
            yield _Finding("paraphrase_equals_question", row, names, row.text)
        elif first != row.paraphrase_id:
            yield _Finding("paraphrases_equal", row, [*names, first], row.text)
    lacks = ~gold.queries["query_id"].isin(gold.paraphrases["query_id"]).to_numpy()
    for row in rows_of(gold.places[lacks]):
        yield _Finding("missing_paraphrases", row, [row.query_id])


def _report(findings: Iterable[_Finding], gold: GoldSet, problems: ProblemList) -> None:
    """Report findings; those on wordings and grades of a foreign set become one warning a rule."""
    counted = Counter[str]()
    for code, row, names, text in findings:
        field, _, message = _RULES[code].partition(": ")
        if gold.layout != "own" and ("paraphrase" in code or code == "nothing_relevant"):
            counted[code] += 1
            continue
        more: Place = {"field": field, "found": None if text is None else quoted(text)}
        more["severity"] = "warning" if code in _WARNINGS else "error"
        report_row(problems, row, code, message.format(*map(quoted, names)), **more)
    for code, n in counted.items():
        field, _, message = _RULES[code].partition(": ")
        message = f"{n} times: {message.format('…', '…', '…')}"
        problems.add(code, message, field=field, severity="warning")


def lint(gold: GoldSet, documents: pd.DataFrame, sections: pd.DataFrame) -> list[Problem]:
    """List every problem of a gold set on one revision of its corpus, in the order of the checks.

    At most 100 errors and 100 warnings are listed; `more_problems` counts the rest.
    """
    problems = ProblemList()
    problems.extend(gold.problems)
    if len(gold.queries) < MIN_QUERIES:
        message = "nothing can be estimated from so few questions"
        more: Place = {"line": 1, "found": str(len(gold.queries)), "severity": "warning"}
        more["accepted"] = f"at least {MIN_QUERIES}, better 50"
        problems.add("few_queries", message, next(iter(gold.files), None), **more)
    problems.extend(_unserved_languages(gold.queries["text"], documents))
    placed = place(gold, documents, sections, problems)
    checks = (_check_questions(gold), _check_targets(gold, placed), _check_paraphrases(gold))
    _report((finding for check in checks for finding in check), gold, problems)
    return list(problems.listed())


# ---- Languages that the analyzer does not serve: their words are found only as they are written

_READ_CHARS, _MOST_READ = 1000, 5000
"""Characters that are read of a text, and most documents that are looked at."""
_FEWEST = 2
"""Fewest different function words that name a language."""
_FUNCTION_WORDS = {
    "English": "the of and to in is that for it on with as was are what how which does by from",
    "German": "der die das und ist nicht ein eine mit für auf wie wird werden von zu sich auch den",
    "French": "le la les des et est une dans pour que qui sur par au avec il ne pas quelle du",
    "Spanish": "el la los las es una en por que con para del se no como su al más cuál",
    "Italian": "il la che di è una per con del della sono non gli nel alla come più quale si dei",
    "Portuguese": "uma em por que com para não como mais dos ao qual são é foi pelo pela",
    "Dutch": "de het een van en dat niet met voor zijn aan wordt hoe welke ook naar",
    "Polish": "się nie jest że jak od przez dla oraz są który jakie ich być może",
    "Turkish": "ve bir bu için ile olarak daha çok gibi nasıl hangi olan değil kadar",
    "Swedish": "och att det som är på av för med till den inte ett har om hur vilken från kan",
    "Vietnamese": "là của và các có được cho trong một với những không để này khi từ người đã",
    "Indonesian": "yang dan di dengan untuk dari ini itu pada adalah tidak dalam ke apa oleh",
}
_WORDS = {name: frozenset(listed.split()) for name, listed in _FUNCTION_WORDS.items()}
_SERVED = re.compile(f"[a-zA-Zªºµ{BLANKLESS}]")


def _find_language(text: str) -> str:
    """Name the script or the language of a text that the analyzer does not serve; "" if served."""
    text = text[:_READ_CHARS]
    letters = filter(str.isalpha, "" if text.isascii() else text)
    scripts = Counter(
        "LATIN" if _SERVED.match(letter) else unicodedata.name(letter, "LATIN").split()[0]
        for letter in letters
    )
    latin = scripts.pop("LATIN", 0)
    script, count = max(scripts.items(), key=lambda item: item[1], default=("", 0))
    if count > latin:
        return script.capitalize()
    counts = {name: len(listed.intersection(words(text))) for name, listed in _WORDS.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] >= max(_FEWEST, 1 + 2 * counts["English"]) else ""


def _unserved_languages(questions: pd.Series, documents: pd.DataFrame) -> list[Problem]:
    """Warn once of questions and documents in a language that the analyzer does not serve."""
    shown = documents["text"].iloc[:: 1 + len(documents) // _MOST_READ]
    asked, found = (Counter(filter(None, map(_find_language, it))) for it in (questions, shown))
    if not (asked or found):
        return []
    names = ", ".join(name for name, _ in (asked + found).most_common(5))
    message = (
        f"{asked.total():,} of {len(questions):,} questions and {found.total():,} of {len(shown):,}"
        f" documents are in a language that the analyzer {ANALYZER} does not serve ({names}): BM25"
        " finds their words only as they are written"
    )
    accepted = "English, or scripts without blanks between words; else a multilingual embedding"
    more: Place = {"field": "corpus", "severity": "warning", "accepted": accepted}
    return [Problem("unserved_language", message, **more)]


# ---- Questions that are documents, as in ArguAna and Quora, and sections with few questions

FEWEST_QUESTIONS = 3


def identical_ids(queries: pd.DataFrame, documents: pd.DataFrame) -> list[Problem]:
    """Warn of questions (QUERIES) with the id of a document (DOCUMENTS), in one problem."""
    both = queries.merge(documents, left_on="query_id", right_on="doc_id", suffixes=("", "_of"))
    if both.empty:
        return []
    texts = zip(both["text"], both["title"], both["text_of"], strict=True)
    n_same = sum(
        _fold(text) in {_fold(body), _fold(f"{title} {body}")} for text, title, body in texts
    )
    message = (
        f"{len(both)} of {len(queries)} questions have the id of a document, {n_same} of them also"
        " its text; that document is ranked for its own question"
    )
    more: Place = {"field": "ignore_identical_ids", "severity": "warning"}
    more["accepted"] = "ignore_identical_ids: true in gold_set.yaml leaves it out, as BEIR does"
    more["found"] = quoted(both["query_id"].iloc[0])
    return [Problem("identical_ids", message, **more)]


def sparse_sections(qrels: pd.DataFrame) -> list[Problem]:
    """Warn of relevant sections (QRELS of sections) with few questions, in one problem."""
    n_questions = qrels[qrels["gain"] > 0].groupby("item_id")["query_id"].nunique()
    n_sparse = int((n_questions < FEWEST_QUESTIONS).sum())
    message = (
        f"{n_sparse} of {len(n_questions)} relevant sections have fewer than {FEWEST_QUESTIONS}"
        " questions, so little is known of each section"
    )
    more: Place = {"field": "query_id", "severity": "warning"}
    more["accepted"] = "3 to 5 a section; they share gold, so more sections tell more than that"
    return [Problem("few_questions_in_sections", message, **more)] if n_sparse else []
