"""The viewer: kept runs in a browser on this machine. It reads, and changes nothing."""

import datetime as dt
import functools
import logging
import re
import socket
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn import Config, Server

from rag_eval.core.errors import InputError, quoted
from rag_eval.core.records import Estimate
from rag_eval.core.settings import Settings
from rag_eval.pipeline.history import RUN_ID, KeptRun, read_run, run_ids, run_name
from rag_eval.reporting.tables import visible
from rag_eval.storage.home import Home, open_home

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
    """Render a page of this folder's templates."""
    return HTMLResponse(_environment().get_template(template).render(**context))


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
    """Handlers of the viewer's requests."""

    def __init__(self, settings: Settings) -> None:
        self._home = open_home(settings)

    @property
    def routes(self) -> list[Route]:
        """Addresses with their handlers. Starlette runs handlers that are not async in threads."""
        return [
            Route("/", self.list_runs),
            Route("/runs/{run_id}/", self.show_run),
            Route("/runs/{run_id}/report", self.show_report),
            Route("/runs/{run_id}/explorer/{part}.json", self.explorer_part),
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
        return find_run(self._home, request.path_params["run_id"])


def create_app(settings: Settings) -> Starlette:
    """Make the viewer of an installation."""
    return guard(Viewer(settings).routes)


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


class Guard(BaseHTTPMiddleware):
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
            frames = traceback.extract_tb(error.__traceback__)
            LOG.error(  # noqa: TRY400 - a traceback would hold untrusted text
                "a request failed: %s: %s at %s:%s",
                type(error).__name__,
                quoted(str(error), 500),
                Path(frames[-1].filename).name,
                frames[-1].lineno,
            )
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


def guard(routes: Iterable[Route]) -> Starlette:
    """Make an application of pages behind the `Guard`, with the assets."""
    return Starlette(
        routes=[*routes, Route("/assets/{name}", _answer_asset)],
        middleware=[
            Middleware(Guard),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS), www_redirect=False),
        ],
        exception_handlers={HTTPException: _answer_http_error, InputError: _answer_unusable},
    )


# ---- The viewer as a server of this machine.


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
        raise InputError.of(
            "cannot_listen",
            f"the viewer cannot listen there: {error.strerror}",
            field="--port",
            found=str(port),
            accepted="a free port; --port 0 takes any",
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
