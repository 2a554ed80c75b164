"""The viewer as a Starlette application: its addresses, and what each answers.

Belongs here: routes. What is refused before is `security`, what is read `runs`, what is recorded `feedback`, what is shown `pages`.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

import rag_eval.reporting.html
from rag_eval.records.problems import InputError, quoted
from rag_eval.settings import Settings
from rag_eval.viewer.access import Access, Hosts, allowed_hosts
from rag_eval.viewer.feedback import FeedbackDesk, Refused, open_outcomes, read_said
from rag_eval.viewer.pages import run_page, runs_page
from rag_eval.viewer.runs import CLAIMS, EXPLORER, RUN_ID, Kept, KeptRuns, unpacked
from rag_eval.viewer.security import REPORT_POLICY, Guard, Policy, refusal

LOG = logging.getLogger("rag_eval.viewer")
DEFAULT_PORT: Final = 7777
_OWN, _REPORT = (
    Path(__file__).parent / "assets",
    Path(rag_eval.reporting.html.__file__).parent / "assets",
)
ASSETS: Final = {
    "viewer.css": (_OWN, "text/css"),
    "explorer.css": (_REPORT, "text/css"),
    "explorer.js": (_REPORT, "text/javascript"),
}
"""All files that are served by name: no name that is asked for becomes a path."""


class _NoSuchRun(Exception):  # noqa: N818 - an answer
    """There is no run of the name asked for."""


class Viewer:
    """Answers of the viewer.

    Parameters
    ----------
    runs
        What is shown.
    desk
        Takes feedback; None where nothing is taken.
    page_token
        What pages send along with feedback.
    """

    def __init__(self, runs: KeptRuns, desk: FeedbackDesk | None, page_token: str) -> None:
        self._runs, self._desk, self._page_token = runs, desk, page_token
        self._writer = ThreadPoolExecutor(
            1, "feedback"
        )  # in line: whoever writes waits for no other of this process, and readers for none of them
        self._printer = ThreadPoolExecutor(
            1, "report"
        )  # pictures are drawn by one thread at a time

    @property
    def routes(self) -> list[Route]:
        """Addresses and who answers them; plain functions run in threads."""
        return [
            Route("/", self.list_runs),
            Route("/runs/{run_id}", self.without_slash),
            Route("/runs/{run_id}/", self.show_run),
            Route("/runs/{run_id}/report", self.show_report),
            Route("/runs/{run_id}/explorer/{part}.json", self.explorer_part),
            Route("/assets/{name}", self.asset),
            Route("/healthz", lambda _: PlainTextResponse("ok\n")),
            Route("/feedback", self.feedback, methods=["POST"]),
        ]

    def list_runs(self, request: Request) -> Response:
        """GET /, with ?before=RUN_ID for older ones."""
        before = request.query_params.get("before")
        if before is not None and not RUN_ID.fullmatch(before):
            return refusal(400, "before: accepted is the id of a run.", request.scope)
        return HTMLResponse(
            runs_page(self._runs.page(before), token=self._page_token, read_only=self._desk is None)
        )

    def without_slash(self, request: Request) -> Response:
        """GET /runs/ID: addresses on the page are relative to the one that ends with a slash."""
        return RedirectResponse(f"/runs/{self._run(request).run_id}/", 308)

    def show_run(self, request: Request) -> Response:
        """GET /runs/ID/."""
        run = self._run(request)
        claims = self._runs.artifact(run, CLAIMS) is not None
        why = (
            "This viewer is read-only: no feedback is taken."
            if self._desk is None
            else ""
            if claims
            else "This run keeps no claims, so feedback on it cannot be recorded."
        )
        explorer = self._runs.artifact(run, EXPLORER) is not None
        return HTMLResponse(
            run_page(
                run,
                token=self._page_token,
                explorer=explorer,
                feedback=not why,
                why_no_feedback=why,
            )
        )

    async def show_report(self, request: Request) -> Response:
        """GET /runs/ID/report: the report as it was written, or made of what is kept, in a sandbox."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._printer, lambda: self._runs.html(self._run(request))
        )
        return HTMLResponse(found, headers={"Content-Security-Policy": REPORT_POLICY})

    def explorer_part(self, request: Request) -> Response:
        """GET /runs/ID/explorer/PART.json, packed as it is stored where the client takes gzip."""
        found = self._runs.part(self._run(request), request.path_params["part"])
        if found is None:
            return refusal(404, "The run keeps no such part.", request.scope)
        if takes_gzip(request.headers.getlist("accept-encoding")):
            return Response(
                found,
                headers={"Content-Encoding": "gzip", "Vary": "Accept-Encoding"},
                media_type="application/json",
            )
        return Response(
            unpacked(found), headers={"Vary": "Accept-Encoding"}, media_type="application/json"
        )

    def asset(self, request: Request) -> Response:
        """GET /assets/NAME."""
        folder, kind = ASSETS.get(request.path_params["name"], (None, ""))
        path = None if folder is None else folder / request.path_params["name"]
        if path is None or not path.is_file():
            return refusal(404, "There is no such file.", request.scope)
        return Response(path.read_bytes(), media_type=kind)

    async def feedback(self, request: Request) -> Response:
        """POST /feedback: answers when it is recorded."""
        if self._desk is None:
            return refusal(403, "This viewer is read-only.", request.scope)
        said = read_said(await request.body())
        given = await asyncio.get_running_loop().run_in_executor(
            self._writer, self._desk.take, said
        )
        return Response(
            json.dumps({"outcome_id": given.outcome_id, "standing": given.standing}),
            201,
            media_type="application/json",
        )

    def _run(self, request: Request) -> Kept:
        found = self._runs.run(request.path_params["run_id"])
        if found is None:
            raise _NoSuchRun
        return found


def takes_gzip(headers: Iterable[str]) -> bool:
    """Whether Accept-Encoding headers accept gzip.

    Examples
    --------
    >>> takes_gzip(["br, gzip;q=0.5"]), takes_gzip(["gzip;q=0"]), takes_gzip([])
    (True, False, False)
    """
    for item in ",".join(headers).split(","):
        name, _, weight = item.strip().lower().partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "").rstrip("0") not in {"q=", "q=0.", "q=."}
    return False


def _no_such_run(request: Request, _: Exception) -> Response:
    return refusal(404, "There is no such run.", request.scope)


def _refused(request: Request, error: Exception) -> Response:
    return (
        refusal(error.status, error.message, request.scope)
        if isinstance(error, Refused)
        else refusal(500, "", request.scope)
    )


def _unusable(request: Request, error: Exception) -> Response:
    """Answer for a kept run or a database that cannot be used; where it is and why is for the log."""
    LOG.error("%s", quoted(str(error), 1000))
    if request.method == "POST":
        return refusal(
            503,
            "The store of outcomes or the kept run cannot be used; nothing was recorded. The server's log says why.",
            request.scope,
        )
    return refusal(
        409,
        "This kept run cannot be shown: it is damaged, or its report is of another version of rag-eval. The server's log says more; the other runs are not affected.",
        request.scope,
    )


def create_app(
    settings: Settings,
    *,
    read_only: bool = False,
    token: str | None = None,
    port: int = DEFAULT_PORT,
    names: Iterable[str] = (),
    allow_hosts: Iterable[str] = (),
    beyond_loopback: bool = False,
) -> Starlette:
    """Make the viewer of an installation.

    Parameters
    ----------
    settings
        Names the home and the database.
    read_only
        Whether no feedback is taken; the database is not opened then.
    token
        The access token; None where none is needed.
    port
        Where it is reached; Host headers name it.
    names
        Names of this machine that are answered beside those of the loopback.
    allow_hosts
        Further hosts that a person allows, `name` or `name:port`.
    beyond_loopback
        Whether other machines can reach it: then any address of numbers is answered, and a token is needed.

    Raises
    ------
    InputError
        The database cannot be used, or the token or a host cannot be what it is to be.
    ValueError
        Beyond the loopback without a token.
    """
    if beyond_loopback and token is None:
        raise ValueError("a viewer that other machines can reach needs an access token")
    hosts = Hosts(
        port,
        frozenset(name.lower() for name in names),
        allowed_hosts(allow_hosts),
        addresses=beyond_loopback,
    )
    policy = Policy(
        hosts, secrets.token_urlsafe(32), None if token is None else Access(token, port), read_only
    )
    runs = KeptRuns(settings.home)
    viewer = Viewer(
        runs,
        None if read_only else FeedbackDesk(runs, open_outcomes(settings)),
        "" if read_only else policy.page_token,
    )
    handlers = {_NoSuchRun: _no_such_run, Refused: _refused, InputError: _unusable}
    app = Starlette(
        routes=viewer.routes,
        middleware=[Middleware(Guard, policy=policy)],
        exception_handlers=handlers,
    )
    app.router.redirect_slashes = False
    return app
