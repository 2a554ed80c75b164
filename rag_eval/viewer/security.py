"""What stands before every page: requests that are refused, bodies that are bounded, headers that every answer carries, errors that tell nothing.

Belongs here: the ASGI middleware. It knows no page; who may ask is decided by `access`.
"""

import asyncio
import dataclasses
import json
import logging
import re
import traceback
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rag_eval.records.problems import quoted
from rag_eval.viewer.access import WINDOW_S, Access, Hosts, network_of, same

LOG = logging.getLogger("rag_eval.viewer")
MAX_BODY, MAX_HEAD = 16 * 1024, 16 * 1024
BODY_SECONDS: Final = 10.0
PAGE_HEADER: Final = "x-rag-eval-token"
HEALTH, LOGIN = "/healthz", "/"
CONTENT_SECURITY_POLICY: Final = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
REPORT_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "sandbox allow-scripts allow-downloads allow-popups allow-popups-to-escape-sandbox"
)
"""For a stored report: its own policy in it names its scripts by hash, both hold. In the sandbox its origin is nobody's, so that it can read no page and give no feedback."""
_GIVEN: Final = re.compile(rb"token=([A-Za-z0-9_.~-]{1,200})")
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclasses.dataclass(frozen=True)
class Policy:
    """What the guard holds requests to.

    Parameters
    ----------
    hosts
        Whose Host headers are answered.
    page_token
        What our own pages send along with whatever changes something.
    access
        The access token; None where none is needed.
    read_only
        Whether nothing may be changed.
    """

    hosts: Hosts
    page_token: str
    access: Access | None = None
    read_only: bool = False


def refusal(
    status: int, message: str, scope: Scope, headers: dict[str, str] | None = None
) -> Response:
    """Answer in a sentence that holds nothing of what was asked: JSON where something was to be recorded, else plain text."""
    if scope["method"] == "POST":
        return Response(json.dumps({"error": message}), status, headers, "application/json")
    return PlainTextResponse(f"{message}\n", status, headers)


class Guard:
    """Middleware in front of everything, errors of the application included."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _add_headers(message)
            await send(message)

        try:
            await self._answer(scope, receive, sending)
        except Exception as error:  # noqa: BLE001 - whatever it is: the browser is told nothing of it, the log everything on one line
            LOG.error(
                "a request failed: %s: %s at %s",
                type(error).__name__,
                quoted(str(error), 500),
                _place(error),
            )  # noqa: TRY400 - a traceback would hold untrusted text
            if not started:
                await refusal(500, "This failed on the server; its log says why.", scope)(
                    scope, receive, sending
                )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(scope)
        if refused is None and scope["method"] == "POST":
            body = await _body(receive)
            if body is None:
                return
            if isinstance(body, bytes):
                receive = _replayed(body, receive)
            else:
                refused = refusal(*body, scope)
        await (self._app if refused is None else refused)(scope, receive, send)

    def _refused(self, scope: Scope) -> Response | None:
        headers, method = Headers(scope=scope), scope["method"]
        if method not in {"GET", "HEAD", "POST"}:
            return refusal(
                405, "Only GET, HEAD and POST are answered.", scope, {"Allow": "GET, HEAD, POST"}
            )
        if (
            len(scope["path"])
            + len(scope["query_string"])
            + sum(len(name) + len(value) for name, value in scope["headers"])
            > MAX_HEAD
        ):
            return refusal(431, f"At most {MAX_HEAD} bytes of headers are read.", scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._policy.hosts.accepts(hosts[0]):
            return refusal(
                403,
                "This host name is not one of this server; rag-eval view --allow-host allows another.",
                scope,
            )
        if _foreign(headers, method):
            return refusal(403, "Requests of other sites are not answered.", scope)
        if self._policy.access is not None and scope["path"] != HEALTH:
            asked = self._sign_in(self._policy.access, scope, headers)
            if asked is not None:
                return asked
        return self._change_refused(scope, headers) if method == "POST" else None

    def _sign_in(self, access: Access, scope: Scope, headers: Headers) -> Response | None:
        given = (
            _GIVEN.fullmatch(scope["query_string"])
            if scope["method"] == "GET" and scope["path"] == LOGIN
            else None
        )
        if given is not None:
            client = scope.get("client")
            verdict = access.judge(given[1].decode(), network_of(client[0]) if client else "")
            if verdict == "right":
                return _signed_in(headers, access.cookie)
            if verdict == "wait":
                return refusal(
                    429,
                    "Too many wrong access tokens; wait a minute.",
                    scope,
                    {"Retry-After": str(int(WINDOW_S))},
                )
        elif access.signed_in(headers.getlist("cookie")):
            return None
        return refusal(
            401,
            "An access token is needed: open the link that rag-eval view printed. Who came by a link of another site and is signed in: press Enter in the address bar.",
            scope,
        )

    def _change_refused(self, scope: Scope, headers: Headers) -> Response | None:
        if self._policy.read_only:
            return refusal(403, "This viewer is read-only.", scope)
        origin, site, host = (
            headers.get("origin"),
            headers.get("sec-fetch-site"),
            headers["host"].lower(),
        )
        if (origin is not None and origin.lower() not in {f"http://{host}", f"https://{host}"}) or (
            site is not None and site != "same-origin"
        ):
            return refusal(403, "Requests of other sites are not answered.", scope)
        if not same(headers.get(PAGE_HEADER, ""), self._policy.page_token):
            return refusal(
                403, "This page is from an earlier start of the viewer; reload it.", scope
            )
        if headers.get("content-type", "").lower().replace(" ", "") not in {
            "application/json",
            "application/json;charset=utf-8",
        }:
            return refusal(415, "The content type must be application/json.", scope)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 9 or int(length) > MAX_BODY:  # noqa: PLR2004 - digits of a number worth reading
            return refusal(413, f"At most {MAX_BODY} bytes are accepted.", scope)
        return None


def _signed_in(headers: Headers, cookie: str) -> Response:
    """Set the cookie and lead away from the address that holds the token.

    After a link in another site's page (a chat, a mail) browsers would not send a strict cookie along with a redirect: there our own page goes on.
    """
    if headers.get("sec-fetch-site") in {None, "none", "same-origin"}:
        return RedirectResponse(LOGIN, 303, {"Set-Cookie": cookie})
    onward = f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={LOGIN}"><title>Signed in</title><p><a href="{LOGIN}">Signed in: go on</a>'
    return HTMLResponse(onward, headers={"Set-Cookie": cookie})


def _foreign(headers: Headers, method: str) -> bool:
    """Whether a page of another site asks, other than by a link that leads here (what such a page embeds could be measured, if not read)."""
    if headers.get("sec-fetch-site") in {None, "none", "same-origin"}:
        return False
    return not (
        method == "GET"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


async def _body(receive: Receive) -> bytes | tuple[int, str] | None:
    """Read a body, however it is sent; status and sentence where it is too large or too slow, None where the client left."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if len(body) > MAX_BODY:
                    return 413, f"At most {MAX_BODY} bytes are accepted."
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        return 408, "The request did not arrive in time."


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def receiving() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


def _add_headers(message: Message) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in _HEADERS.items():
        headers[name] = value
    headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
    headers.setdefault("Cache-Control", "no-store")
    if headers["Content-Security-Policy"] != REPORT_POLICY:
        headers["Cross-Origin-Opener-Policy"] = (
            "same-origin"  # browsers refuse to open a page that has this and a sandbox
        )


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
