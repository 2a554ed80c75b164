"""Pages in a browser on this machine: kept runs, and the review of drafts of a gold set.

The viewer of runs reads, and changes nothing. The review writes the decisions of a person.
"""

import datetime as dt
import functools
import json
import logging
import re
import secrets
import socket
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn import Config, Server

from rag_eval.core.errors import InputError, ProblemList, quoted
from rag_eval.core.records import Estimate
from rag_eval.core.rows import Fault, parse_object
from rag_eval.core.settings import Settings
from rag_eval.core.types import Id
from rag_eval.gold.files import rows_of
from rag_eval.gold.lint import DRAFT
from rag_eval.gold.loading import GoldSet, read_gold
from rag_eval.gold.resolving import Catalogue, locate
from rag_eval.pipeline.corpus import CorpusSnapshot
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.history import RUN_ID, KeptRun, read_run, run_ids, run_name
from rag_eval.pipeline.stages import open_runner
from rag_eval.reporting.tables import visible
from rag_eval.storage.hashing import text_hash
from rag_eval.storage.home import atomic_path, open_home

LOG = logging.getLogger("rag_eval.viewer")

# ---- Pages: Jinja2 escapes every text, and invisible characters are written out

_ABSENT: Final = "–"
_GATES: Final = {
    "pass": "passed",
    "fail": "failed",
    "insufficient_evidence": "without enough evidence",
    "not_applicable": "not applicable",
}


def _format_moment(text: str) -> str:
    """Format an ISO 8601 time for people, in UTC; another text is returned, made visible."""
    try:
        return dt.datetime.fromisoformat(text).astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError):  # OverflowError: in UTC the year is out of range
        return visible(text)


def _format_figure(figure: Estimate) -> str:
    value, low, high = figure.triple
    if value is None:
        return _ABSENT
    ends = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return f"{value:.3f}{ends}"


def _format_gates(gates: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {_GATES[status]}" for status, n in gates.items() if n) or _ABSENT


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "visible": visible,
        "moment": _format_moment,
        "figure": _format_figure,
        "gates": _format_gates,
    }
    return environment


def render(template: str, **context: Any) -> HTMLResponse:
    """Render a page of this folder's templates."""
    return HTMLResponse(_environment().get_template(template).render(**context))


# ---- The viewer of kept runs

MAX_RUNS: Final = 100
"""Largest number of runs in the list."""
PART: Final = re.compile(r"summary|questions-[0-9]{4,7}")


class Viewer:
    """Handlers of the viewer's requests. Starlette runs handlers that are not async in threads."""

    def __init__(self, settings: Settings) -> None:
        self._home = open_home(settings)

    def list_runs(self, _: Request) -> Response:
        """Answer GET / with the newest runs."""
        ids = [run_id for run_id in run_ids(self._home) if re.fullmatch(RUN_ID, run_id)]
        rows: list[tuple[str, KeptRun | None]] = []
        for run_id in ids[: -MAX_RUNS - 1 : -1]:
            try:
                rows.append((run_id, read_run(self._home, run_id)))
            except InputError:  # a damaged run is named, and hides no other
                rows.append((run_id, None))
        return render("runs.html", rows=rows, n_runs=len(ids))

    def show_run(self, request: Request) -> Response:
        """Answer GET /runs/ID/ with the page of a run."""
        run = self._run(request)
        return render("run.html", run=run, explorer=run.artifact("explorer") is not None)

    def show_report(self, request: Request) -> Response:
        """Answer GET /runs/ID/report with the report of the kept parts, in a sandbox."""
        from rag_eval.pipeline.report_stages import built_page

        run = self._run(request)
        try:
            page = built_page(run.report().dump(), run.artifact("explorer"))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # A report can fit the schema with impossible values.
            cause = f"{type(error).__name__}: {error}"
            message = "a part of it is damaged"
            raise InputError.of("run_unreadable", message, file=run.file, found=cause) from error
        return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})

    def explorer_part(self, request: Request) -> Response:
        """Answer GET /runs/ID/explorer/PART.json with the gzip bytes, which browsers unpack."""
        run, part = self._run(request), request.path_params["part"]
        explorer = run.artifact("explorer") if PART.fullmatch(part) else None
        name = f"{part}.json.gz"
        if explorer is None or name not in explorer.files:
            raise HTTPException(404, "The run keeps no such part.")
        headers = {"Content-Encoding": "gzip"}
        return Response(explorer.bytes(name), headers=headers, media_type="application/json")

    def _run(self, request: Request) -> KeptRun:
        run_id = request.path_params["run_id"]
        if not re.fullmatch(RUN_ID, run_id) or not self._home.has(run_name(run_id)):
            raise HTTPException(404, "There is no such run.")
        return read_run(self._home, run_id)

    def app(self) -> Starlette:
        """Make the application of the viewer."""
        return _guarded(
            [
                Route("/", self.list_runs),
                Route("/runs/{run_id}/", self.show_run),
                Route("/runs/{run_id}/report", self.show_report),
                Route("/runs/{run_id}/explorer/{part}.json", self.explorer_part),
            ]
        )


# ---- The drafts of a gold set, and decisions of a person on them

_BEFORE, _AFTER = 240, 400
"""Largest numbers of characters shown around a quote."""
_ONE_WRITER = threading.Lock()
"""The requests of a page are decided in several threads."""


class Draft(NamedTuple):
    """A draft question with the passage around its quote; empty if the document lacks the quote.

    `version` is a hash of the text: a decision is made on the text that the person saw.
    """

    query_id: str
    text: str
    version: str
    target: str
    before: str = ""
    quote: str = ""
    after: str = ""


def _list_drafts(gold: GoldSet, documents: pd.DataFrame, sections: pd.DataFrame) -> list[Draft]:
    """List the drafts of a gold set on DOCUMENTS and SECTIONS, in the order of the file."""
    anchors = gold.anchors.drop_duplicates("query_id", ignore_index=True)
    located = locate(anchors, Catalogue(documents, sections), ProblemList(), passages=False)
    passages: dict[str, tuple[str, str, str]] = {}
    for row in rows_of(located):
        text, low, high = documents["text"].iloc[row.document], row.start, row.end
        before, after = text[max(low - _BEFORE, 0) : low], text[high : high + _AFTER]
        passages[anchors["query_id"][row.anchor]] = (before, text[low:high], after)
    targets = dict(zip(gold.judgements["query_id"], gold.judgements["target"], strict=True))
    return [
        Draft(name, text, text_hash(text), targets.get(name, ""), *passages.get(name, ()))
        for name, text, tags in zip(
            *(gold.queries[column] for column in ("query_id", "text", "tags")), strict=True
        )
        if DRAFT in tags
    ]


class StaleDraftError(Exception):
    """The draft has changed, or was decided, since the person saw it."""


def _read_row(line: bytes) -> Mapping[str, Any]:
    """Read a row of a file of the gold set; a row of judgements has only its question."""
    if not line.lstrip().startswith((b"{", b"\xef\xbb\xbf{")):
        return {"query_id": line.split(b"\t")[0].strip().decode("utf-8", "replace")}
    row = parse_object(line.removeprefix(b"\xef\xbb\xbf"))
    return {} if isinstance(row, Fault) else row


def _replace_lines(path: Path, lines: Sequence[bytes]) -> None:
    with atomic_path(path, path.stat().st_mode & 0o777) as partial:
        partial.write_bytes(b"".join(lines))


def _decide(folder: Path, query_id: str, version: str, text: str | None) -> None:
    """Accept a draft with `text`, or drop the draft with its evidence where `text` is None.

    Each file is replaced as a whole. A dropped question leaves its own file last, so that a killed
    process leaves a draft that can be dropped again. Raises StaleDraftError, and InputError
    (`missing_file`) without a file of questions.
    """
    questions = folder / "queries.jsonl"
    if not questions.is_file():
        raise InputError.of("missing_file", "the file of questions does not exist", questions)
    with _ONE_WRITER:
        lines = questions.read_bytes().splitlines(keepends=True)
        places = (
            (place, row)
            for place, row in enumerate(map(_read_row, lines))
            if row.get("query_id") == query_id
            and DRAFT in row.get("tags", ())
            and text_hash(str(row.get("text"))) == version
        )
        place, row = next(places, (-1, {}))
        if place < 0:
            raise StaleDraftError
        if text is not None:
            tags = [tag for tag in row["tags"] if tag != DRAFT]
            changed = json.dumps({**row, "text": text, "tags": tags}, ensure_ascii=False)
            end = lines[place][len(lines[place].rstrip(b"\r\n")) :]
            lines[place] = changed.encode() + end
        else:
            for name in ("qrels.tsv", "answers.jsonl", "paraphrases.jsonl"):
                path = folder / name
                old = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
                others = [line for line in old if _read_row(line).get("query_id") != query_id]
                if len(others) < len(old):
                    _replace_lines(path, others)
            del lines[place]
        _replace_lines(questions, lines)


# ---- The review of drafts

MAX_QUESTION: Final = 2000
"""Largest number of characters of a question."""
MAX_BODY: Final = 16 * 1024


class _Decision(BaseModel):
    """Decision of a person on one draft."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    query_id: Id
    version: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    decision: Literal["accept", "drop"]
    text: Annotated[str, Field(max_length=MAX_QUESTION)]


async def _read_change(request: Request, page_token: str) -> bytes:
    """Read the body of a request that only a page of ours can send; else raise HTTPException."""
    headers, host = request.headers, request.headers.get("host", "").lower()
    if headers.get("origin", f"http://{host}").lower() != f"http://{host}":
        raise HTTPException(403, "Requests of other sites are not answered.")
    token = headers.get("x-rag-eval-token", "").encode("utf-8", "surrogatepass")
    if not secrets.compare_digest(token, page_token.encode()):
        raise HTTPException(403, "This page is from an earlier start of the viewer; reload it.")
    if headers.get("content-type", "").lower() != "application/json":
        raise HTTPException(415, "The content type must be application/json.")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"At most {MAX_BODY} bytes are accepted.")
    return bytes(body)


class ReviewDesk:
    """Handlers of the requests of the review page of one gold set."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._page_token = secrets.token_urlsafe(32)
        self._corpus = open_runner(evaluation).get(CorpusSnapshot)

    def drafts(self) -> list[Draft]:
        """Read the drafts as they are now."""
        gold = read_gold(self._evaluation.base, self._evaluation.config)
        return _list_drafts(gold, self._corpus.documents, self._corpus.sections)

    def show(self, _: Request) -> Response:
        """Answer GET / with the drafts."""
        return render(
            "review.html",
            gold_set=self._evaluation.config.name,
            drafts=self.drafts(),
            max_question=MAX_QUESTION,
            token=self._page_token,
        )

    async def decide(self, request: Request) -> Response:
        """Answer POST /decide after the files of the gold set are written."""
        try:
            change = _Decision.model_validate_json(await _read_change(request, self._page_token))
        except ValidationError:
            fields = ", ".join(_Decision.model_fields)
            raise HTTPException(400, f"Accepted is a JSON object of {fields}.") from None
        text = " ".join(change.text.split()) if change.decision == "accept" else None
        if text is not None and (not text or not text.isprintable()):
            raise HTTPException(400, "A question has words, and no control characters.")
        place = (self._evaluation.base, change.query_id, change.version)
        try:
            await run_in_threadpool(_decide, *place, text)
        except StaleDraftError:
            message = "This draft was changed or decided elsewhere; reload the page."
            raise HTTPException(409, message) from None
        return JSONResponse({"decision": change.decision})

    def app(self) -> Starlette:
        """Make the application of the review page."""
        return _guarded([Route("/", self.show), Route("/decide", self.decide, methods=["POST"])])


# ---- The guard before every page

HOSTS: Final = ("127.0.0.1", "localhost")
"""Accepted Host headers. A page of another site may point its own host name to this machine."""
MAX_HEAD: Final = 16 * 1024
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "sandbox allow-scripts allow-downloads allow-popups allow-popups-to-escape-sandbox"
)
"""Content security policy of a report page, besides the policy with script hashes in the page.

The sandbox gives the report an opaque origin, so it can read no page of the viewer."""
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_ASSETS: Final = Path(__file__).parent / "assets"
_REPORT_ASSETS: Final = Path(__file__).parents[1] / "reporting" / "assets"
ASSETS: Final = {
    "viewer.css": (_ASSETS, "text/css"),
    "review.js": (_ASSETS, "text/javascript"),
    "explorer.css": (_REPORT_ASSETS, "text/css"),
    "explorer.js": (_REPORT_ASSETS, "text/javascript"),
}
"""Served files by name. A requested name never becomes a path."""


def _answer_asset(request: Request) -> Response:
    """Answer GET /assets/NAME with a file of `ASSETS`."""
    name = request.path_params["name"]
    if name not in ASSETS:
        raise HTTPException(404, "There is no such file.")
    folder, kind = ASSETS[name]
    return Response((folder / name).read_bytes(), media_type=kind)


def _refuse(request: Request, status: int, message: str) -> Response:
    """Answer with `message`, which holds no text of the request; a POST gets JSON."""
    if request.method == "POST":
        return JSONResponse({"error": message}, status)
    return PlainTextResponse(f"{message}\n", status)


def _is_foreign(headers: Headers, method: str) -> bool:
    """Tell whether a page of another site sent a request, except by a link to this viewer."""
    if headers.get("sec-fetch-site") in {None, "none", "same-origin"}:
        return False
    is_link = headers.get("sec-fetch-mode") == "navigate"
    return not (method == "GET" and is_link and headers.get("sec-fetch-dest") == "document")


class _Guard(BaseHTTPMiddleware):
    """Middleware around the application: requests of other sites, headers of answers, errors."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Refuse a request, or pass it to the application."""
        try:
            if sum(len(name) + len(value) for name, value in request.headers.raw) > MAX_HEAD:
                answer = _refuse(request, 431, "The head of this request is too large.")
            elif _is_foreign(request.headers, request.method):
                answer = _refuse(request, 403, "Requests of other sites are not answered.")
            else:
                answer = await call_next(request)
        except ClientDisconnect:
            answer = _refuse(request, 400, "The request ended early.")
        except Exception as error:  # noqa: BLE001 - the browser is told nothing, the log all of it
            last, kind = traceback.extract_tb(error.__traceback__)[-1], type(error).__name__
            place = f"{Path(last.filename).name}:{last.lineno}"
            cause = quoted(str(error), 500)
            # A traceback would hold untrusted text.
            LOG.error("a request failed: %s: %s at %s", kind, cause, place)  # noqa: TRY400 - a trace would hold request data
            answer = _refuse(request, 500, "This failed on the server; its log says why.")
        answer.headers.update(_HEADERS)
        answer.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        answer.headers.setdefault("Cache-Control", "no-store")
        if answer.headers["Content-Security-Policy"] != REPORT_POLICY:
            # Browsers refuse a page with this header and a sandbox, as the report has.
            answer.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        return answer


def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _refuse(request, error.status_code, error.detail)


def _answer_unusable(request: Request, error: Exception) -> Response:
    """Answer that files of the home cannot be used; the log holds place and cause."""
    LOG.error("%s", quoted(str(error), 1000))
    message = "This cannot be shown: it is damaged, or of another version of rag-eval."
    return _refuse(request, 409, message)


def _guarded(routes: Sequence[Route]) -> Starlette:
    """Make an application of pages behind the guard, with the assets."""
    return Starlette(
        routes=[*routes, Route("/assets/{name}", _answer_asset)],
        middleware=[
            Middleware(_Guard),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS), www_redirect=False),
        ],
        exception_handlers={HTTPException: _answer_http_error, InputError: _answer_unusable},
    )


# ---- A server of this machine


def listen(port: int) -> socket.socket:
    """Listen on this machine's own address; port 0 takes any free port.

    Raises
    ------
    InputError
        `cannot_listen`: the port is taken.
    """
    try:
        return socket.create_server((HOSTS[0], port))
    except OSError as error:
        message = f"the viewer cannot listen there: {error.strerror}"
        accepted = "a free port; --port 0 takes any"
        raise InputError.of(
            "cannot_listen", message, field="--port", found=str(port), accepted=accepted
        ) from None


def serve(bound: socket.socket, app: Starlette, ready: Callable[[str], object]) -> None:
    """Serve until the process receives a signal to end; `ready` gets the address before."""
    server = Server(
        Config(
            app,
            http="h11",  # h11 bounds a request head that arrives in pieces
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_level="warning",
            access_log=False,  # requested addresses are untrusted text
            server_header=False,
            proxy_headers=False,  # a client could forge the headers of a proxy
            h11_max_incomplete_event_size=MAX_HEAD,
            limit_concurrency=256,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=5,
        )
    )
    ready(f"http://{HOSTS[0]}:{bound.getsockname()[1]}/")
    server.run(sockets=[bound])
