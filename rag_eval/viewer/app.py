"""The viewer: kept runs in a browser, and the feedback that becomes outcomes."""

import asyncio
import datetime as dt
import functools
import ipaddress
import logging
import math
import re
import secrets
import socket
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final

import h11
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from rag_eval.core.errors import InputError, quoted
from rag_eval.core.records import Estimate
from rag_eval.core.settings import Settings
from rag_eval.core.types import GoldSource, Id
from rag_eval.corpus.masking import mask_snippet
from rag_eval.pipeline.history import RUN_ID, KeptRun, read_run, run_ids, run_name
from rag_eval.reporting.tables import visible
from rag_eval.storage.home import Home, open_home
from rag_eval.storage.sql import open_store
from rag_eval.uncertainty.outcome_records import (
    MAX_NOTE,
    MISSED_BY_FEEDBACK,
    Feedback,
    Note,
    RetrievalOutcome,
    Shown,
)
from rag_eval.uncertainty.outcomes import OutcomeStore, new_outcome, of_frame
from rag_eval.viewer.security import (
    MAX_HEAD,
    REPORT_POLICY,
    Access,
    Guard,
    list_hosts,
    read_change,
    refuse,
)

LOG = logging.getLogger("rag_eval.viewer")

# ---- Pages: Jinja2 escapes every text, and invisible characters are written out

MAX_RUNS: Final = 100
"""Largest number of runs in the list."""
LEFT_OUT: Final = "–"
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
    """Format a figure and its interval with three decimals."""
    if figure.value is None:
        return LEFT_OUT
    if figure.ci_low is None or figure.ci_high is None:
        return f"{figure.value:.3f}"
    return f"{figure.value:.3f} [{figure.ci_low:.3f}, {figure.ci_high:.3f}]"


def _format_gates(gates: Mapping[str, int]) -> str:
    """Format how many gates passed, failed, or could not be judged."""
    return ", ".join(f"{n} {_GATES[status]}" for status, n in gates.items() if n) or LEFT_OUT


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
    """Render a page. The page sends `token` of the context with its feedback."""
    return HTMLResponse(_environment().get_template(template).render(**context))


# ---- Feedback of a reader on one retrieval, recorded as an outcome before it is answered.

SOURCE: Final[GoldSource] = "user_feedback"
_NO_CLAIMS: Final = "This run keeps no claims, so feedback on it cannot be recorded."
TRY_SECONDS: Final = 60.0
"""Seconds for retries while other writers correct the same claim."""
_CLAIM_FIELDS: Final = (
    "claim_id",
    "query_id",
    "group_id",
    "strategy",
    "strategy_fingerprint",
    "target",
    "k",
)


class FeedbackRequest(BaseModel):
    """Feedback of a reader about one retrieval."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    run_id: Annotated[str, Field(pattern=f"^{RUN_ID}$")]
    query_id: Id
    paraphrase_id: Id
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    strategy: Id
    feedback: Feedback
    note: Note = ""


def _parse_feedback(body: bytes) -> FeedbackRequest:
    """Parse the body of a feedback request.

    Raises
    ------
    HTTPException
        400 with the names of the fields, without any text of the request.
    """
    try:
        return FeedbackRequest.model_validate_json(body)
    except ValidationError:
        fields = ", ".join(FeedbackRequest.model_fields)
        accepted = f"Accepted is a JSON object of {fields} (at most {MAX_NOTE} characters)."
        raise HTTPException(400, accepted) from None


class FeedbackDesk:
    """Records feedback on claims of the kept runs of a home."""

    def __init__(self, settings: Settings) -> None:
        self._home, self._store = open_home(settings), OutcomeStore(open_store(settings))

    def take(self, request: FeedbackRequest) -> dict[str, str]:
        """Record feedback, and return outcome_id and standing: recorded or already_there.

        Raises
        ------
        HTTPException
            No such claim (404), a run without claims (409), or other writers won every retry (503).
        InputError
            The database, or the kept run, cannot be used.
        """
        claim = self._find_claim(request)
        until = time.monotonic() + TRY_SECONDS
        while time.monotonic() < until:
            outcome = _make_outcome(request, claim)
            last = self._last_outcome(outcome)
            if last is not None:
                opinion = (outcome.feedback, outcome.note, outcome.missed)
                if (last.feedback, last.note, last.missed) == opinion:
                    return {"outcome_id": last.outcome_id, "standing": "already_there"}
                outcome = new_outcome(**{**dict(outcome), "supersedes": last.outcome_id})
            if outcome.outcome_id in self._store.record([outcome]).added:
                return {"outcome_id": outcome.outcome_id, "standing": "recorded"}
            # The id exists, because another writer superseded the same outcome first.
        raise HTTPException(503, "Others judge this retrieval at the same time; try again.")

    def _last_outcome(self, outcome: RetrievalOutcome) -> RetrievalOutcome | None:
        frame = self._store.history(
            target=outcome.target, k=outcome.k, gold_source=SOURCE, claim_ids=[outcome.claim_id]
        )
        last = of_frame(frame[~frame["outcome_id"].isin(frame["supersedes"])])
        return last[0] if last else None

    def _find_claim(self, request: FeedbackRequest) -> Mapping[Hashable, Any]:
        artifact = find_run(self._home, request.run_id).artifact("miss_rate_claims")
        if artifact is None:
            raise HTTPException(409, _NO_CLAIMS)
        frame = pd.read_parquet(
            artifact.path("claims.parquet"),
            filters=[(name, "==", getattr(request, name)) for name in ("seed", "strategy")],
        )
        # Pages escape invisible characters of an id, and send the escaped id back.
        for name in ("query_id", "paraphrase_id"):
            frame = frame[frame[name].map(visible) == getattr(request, name)]
        if len(frame) != 1:
            raise HTTPException(404, "The run has no such retrieval.")
        return frame.to_dict("records")[0]


def _make_outcome(request: FeedbackRequest, claim: Mapping[Hashable, Any]) -> RetrievalOutcome:
    rate = claim["miss_rate"]
    return new_outcome(
        **{name: claim[name] for name in _CLAIM_FIELDS},
        missed=MISSED_BY_FEEDBACK[request.feedback],
        gold_source=SOURCE,
        gold_strategies=(request.strategy,),
        shown=Shown(
            value=None if math.isnan(rate) else rate,
            status=claim["status"],
            calibrator=claim["calibrator"] or None,
        ),
        feedback=request.feedback,
        note=mask_snippet(request.note, MAX_NOTE) if request.note.strip() else "",
        at=dt.datetime.now(dt.UTC),
    )


# ---- Kept runs and their parts.

PART: Final = re.compile(r"summary|questions-[0-9]{4,7}")


def find_run(home: Home, run_id: str) -> KeptRun:
    """Read a kept run.

    Raises
    ------
    HTTPException
        404: no run has this id.
    InputError
        The files of the run are damaged.
    """
    if not re.fullmatch(RUN_ID, run_id) or not home.has(run_name(run_id)):
        raise HTTPException(404, "There is no such run.")
    return read_run(home, run_id)


# ---- The application: its addresses and their answers

DEFAULT_PORT: Final = 7777
_OWN = Path(__file__).parent / "assets"
_REPORT = Path(__file__).parents[1] / "reporting" / "html" / "assets"
ASSETS: Final = {
    "viewer.css": (_OWN, "text/css"),
    "review.js": (_OWN, "text/javascript"),
    "explorer.css": (_REPORT, "text/css"),
    "explorer.js": (_REPORT, "text/javascript"),
}
"""Served files by name. A requested name never becomes a path."""


def _answer_asset(request: Request) -> Response:
    """Answer GET /assets/NAME with a file of `ASSETS`."""
    name = request.path_params["name"]
    if name not in ASSETS:
        raise HTTPException(404, "There is no such file.")
    folder, kind = ASSETS[name]
    return Response((folder / name).read_bytes(), media_type=kind)


class Viewer:
    """Handlers of the viewer's requests.

    `desk`: Records feedback; None in a read-only viewer.
    """

    def __init__(self, settings: Settings, desk: FeedbackDesk | None) -> None:
        self._home, self._desk = open_home(settings), desk
        self._page_token = "" if desk is None else secrets.token_urlsafe(32)
        # One thread for writing: writers wait for one another, and readers never wait for writers.
        self._writer = ThreadPoolExecutor(1, "feedback")

    @property
    def routes(self) -> list[Route]:
        """Addresses with their handlers. Starlette runs handlers that are not async in threads."""
        return [
            Route("/", self.list_runs),
            Route("/runs/{run_id}/", self.show_run),
            Route("/runs/{run_id}/report", self.show_report),
            Route("/runs/{run_id}/explorer/{part}.json", self.explorer_part),
            Route("/feedback", self.feedback, methods=["POST"]),
        ]

    def list_runs(self, _: Request) -> Response:
        """Answer GET / with the newest runs."""
        ids = [run_id for run_id in run_ids(self._home) if re.fullmatch(RUN_ID, run_id)]
        rows: list[tuple[str, KeptRun | None]] = []
        for run_id in ids[: -MAX_RUNS - 1 : -1]:
            try:
                rows.append((run_id, read_run(self._home, run_id)))
            except InputError:  # a damaged run is named, and hides no other
                rows.append((run_id, None))
        return render(
            "runs.html",
            rows=rows,
            n_runs=len(ids),
            token=self._page_token,
            read_only=self._desk is None,
        )

    def show_run(self, request: Request) -> Response:
        """Answer GET /runs/ID/ with the page of a run."""
        run = self._run(request)
        why = ""
        if self._desk is None:
            why = "This viewer is read-only: no feedback is taken."
        elif run.artifact("miss_rate_claims") is None:
            why = _NO_CLAIMS
        return render(
            "run.html",
            run=run,
            token=self._page_token,
            explorer=run.artifact("explorer") is not None,
            feedback=not why,
            why_no_feedback=why,
        )

    def show_report(self, request: Request) -> Response:
        """Answer GET /runs/ID/report with the report of the kept parts, in a sandbox."""
        from rag_eval.pipeline.report_pages import built_page

        run = self._run(request)
        return self._show_page(
            run, lambda: built_page(run.report().dump(), run.artifact("explorer")).html
        )

    def _show_page(self, run: KeptRun, build: Callable[[], str]) -> Response:
        try:
            page = build()
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

    async def feedback(self, request: Request) -> Response:
        """Answer POST /feedback after the feedback is recorded."""
        if self._desk is None:
            raise HTTPException(403, "This viewer is read-only.")
        sent = _parse_feedback(await read_change(request, self._page_token))
        loop = asyncio.get_running_loop()
        taken = await loop.run_in_executor(self._writer, self._desk.take, sent)
        return JSONResponse(taken, 201)

    def _run(self, request: Request) -> KeptRun:
        return find_run(self._home, request.path_params["run_id"])


def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refuse(request, error.status_code, error.detail)


def _answer_unusable(request: Request, error: Exception) -> Response:
    """Answer that a kept run or the database cannot be used; the log holds place and cause."""
    LOG.error("%s", quoted(str(error), 1000))
    if request.method == "POST":
        message = "The store of outcomes or the run cannot be used; nothing was recorded."
        return refuse(request, 503, message)
    message = "This kept run cannot be shown: it is damaged, or of another version of rag-eval."
    return refuse(request, 409, message)


def create_app(
    settings: Settings,
    *,
    read_only: bool = False,
    token: str | None = None,
    port: int = DEFAULT_PORT,
    allow_hosts: Iterable[str] = (),
    beyond_loopback: bool = False,
) -> Starlette:
    """Make the viewer of an installation.

    A `read_only` viewer takes no feedback and opens no database. `token` is None where no access
    token is needed. `port` names the cookie. `allow_hosts` are further accepted names in Host
    headers, besides the loopback names. With `beyond_loopback`, other machines can reach the
    viewer, so it needs a token and answers any host.

    Raises
    ------
    InputError
        The database, the token or a host name cannot be used.
    ValueError
        `beyond_loopback` without a token.
    """
    if beyond_loopback and token is None:
        raise ValueError("a viewer that other machines can reach needs an access token")
    hosts = list_hosts(allow_hosts, beyond_loopback=beyond_loopback)
    access = None if token is None else Access(token, port)
    viewer = Viewer(settings, None if read_only else FeedbackDesk(settings))
    return guard(viewer.routes, access, hosts)


def guard(routes: Iterable[Route], access: Access | None, hosts: Iterable[str]) -> Starlette:
    """Make an application of pages behind the `Guard`, with the assets and the check of health."""
    more = (
        Route("/assets/{name}", _answer_asset),
        Route("/healthz", lambda _: PlainTextResponse("ok\n")),
    )
    return Starlette(
        routes=[*routes, *more],
        middleware=[
            Middleware(Guard, access=access),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
        ],
        exception_handlers={HTTPException: _answer_http_error, InputError: _answer_unusable},
    )


# ---- The viewer as a server of this machine.

MAX_TOKEN_FILE: Final = 1000
CONNECTIONS: Final = 256
KEEP_ALIVE_S, STOP_S = 5, 5
HEAD_S: Final = 10.0
"""Seconds for a request head to arrive."""


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address; port 0 takes any free port.

    Raises
    ------
    InputError
        `cannot_listen`: this machine lacks the address, or the port is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InputError.of(
            "cannot_listen",
            f"the viewer cannot listen there: {reason}",
            field="--host, --port",
            found=f"{host} {port}",
            accepted="an address of this machine and a free port; --port 0 takes any",
        ) from None


def is_loopback(bound: socket.socket) -> bool:
    """Tell whether only this machine can reach a socket, by the address that it is bound to."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def choose_token(token: str | None, file: Path | None, *, needed: bool) -> tuple[str | None, bool]:
    """Return the access token, and whether it is new and must be shown to the user.

    The token comes from the file, else from the settings. If both are missing and a token is
    needed, the function makes a token.

    Raises
    ------
    InputError
        The file cannot be read.
    """
    if file is None:
        return (secrets.token_urlsafe(32), True) if needed and token is None else (token, False)
    try:
        with file.open(encoding="ascii") as stream:
            return stream.read(MAX_TOKEN_FILE).strip(), False
    except (OSError, ValueError):
        raise InputError.of(
            "bad_token",
            "the file of the access token cannot be read",
            file=file,
            accepted="a text file that holds the token and nothing else",
        ) from None


def address_of(bound: socket.socket) -> str:
    """Return the address to open in a browser; for a socket on all addresses, use the host name."""
    host, port = bound.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


class TimedProtocol(H11Protocol):
    """HTTP that drops a client who leaves a request unfinished for `seconds`.

    uvicorn bounds the time between two requests, and not the time that a request takes to arrive.
    The handler that reads a body bounds its time, so here a body counts only after the answer.
    """

    seconds: float = HEAD_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn
        """Start the time of the first head."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request; the time ends with the head, and starts with the next."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time."""
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def _watch(self) -> None:
        theirs, is_answered = self.conn.their_state, self.conn.our_state is h11.DONE
        is_late = theirs is h11.IDLE or (theirs is h11.SEND_BODY and is_answered)
        if is_late and self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds, self.transport.abort)
        elif not is_late and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def make_server(app: Starlette, protocol: type[TimedProtocol] = TimedProtocol) -> Server:
    """Make the server of a viewer, with its bounds on what a client may send."""
    return Server(
        Config(
            app,
            http=protocol,  # h11 bounds the size of a request head
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_level="warning",
            access_log=False,  # requested addresses are untrusted text
            server_header=False,
            proxy_headers=False,  # a client could forge the headers of a proxy
            h11_max_incomplete_event_size=MAX_HEAD,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_S,
        )
    )


def serve(bound: socket.socket, app: Starlette, ready: Callable[[], object]) -> None:
    """Serve until the process receives a signal to end; call `ready` just before serving."""
    server = make_server(app)
    ready()
    server.run(sockets=[bound])
