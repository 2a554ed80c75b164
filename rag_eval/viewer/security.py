"""Access control of the viewer: access token and cookie, page token, and requests of other sites.

`Guard` handles each request before the application. It also sets the headers of answers and hides
the details of errors.
"""

import asyncio
import logging
import re
import secrets
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from rag_eval.core.errors import InputError, quoted

LOG = logging.getLogger("rag_eval.viewer")

# ---- Hosts and tokens.

LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
ACCEPTED: Final = r"[A-Za-z0-9_.~-]{20,200}"
"""Pattern of an access token: safe in an address, and too long to guess."""
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\]")


def list_hosts(allowed: Iterable[str], *, beyond_loopback: bool) -> list[str]:
    """List the accepted names in Host headers; `*` stands for all names.

    A page of another site may point its own host name to this machine (DNS rebinding). If other
    machines can reach the viewer, the access token stops such a page. The cookie of the token is
    bound to our host name.

    Raises
    ------
    InputError
        `bad_host`: an allowed name is not a host name.
    """
    names = list(allowed)
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise InputError.of(
                "bad_host",
                "this is no host name",
                field="--allow-host",
                found=name,
                accepted="a name without a port, such as eval.example.org",
            )
    return ["*"] if beyond_loopback else [*LOOPBACK_NAMES, *names]


def is_same(left: str, right: str) -> bool:
    """Compare secrets in constant time."""
    return secrets.compare_digest(
        left.encode("utf-8", "surrogatepass"), right.encode("utf-8", "surrogatepass")
    )


class Access:
    """Sign-in: exchanges the access token for a cookie that is valid until this process ends.

    `token` matches `ACCEPTED`. `port` names the cookie, because all ports of a machine share
    cookies.

    Raises
    ------
    InputError
        `bad_token`: the token is too short or holds other characters.
    """

    def __init__(self, token: str, port: int) -> None:
        if not re.fullmatch(ACCEPTED, token):
            raise InputError.of(
                "bad_token",
                "the access token cannot be used",
                field="RAG_EVAL_VIEW_TOKEN or --token-file",
                found=f"{len(token)} characters",
                accepted="20 to 200 letters, digits, - _ . ~",
            )
        self._token = token
        # The cookie holds a random value, not the token, so it is invalid after the next start.
        self._session = secrets.token_urlsafe(32)
        self._cookie_name = f"rag_eval_view_{port}"

    def sign_in(self, request: Request) -> Response | None:
        """Answer a request without sign-in; return None if the request is signed in."""
        token = request.query_params.get("token")
        if request.method != "GET" or request.url.path != "/" or token is None:
            if is_same(request.cookies.get(self._cookie_name, ""), self._session):
                return None
        elif is_same(token, self._token):
            return self._welcome()
        return refuse(
            request,
            401,
            "An access token is needed: open the link that rag-eval view printed. "
            "If you are signed in and followed a link of another site, reload the page.",
        )

    def _welcome(self) -> Response:
        """Set the cookie and leave the address that holds the token.

        A page instead of a redirect goes on to `/`. After a link in a chat or a mail, browsers
        would not send a strict cookie with a redirect.
        """
        response = HTMLResponse(
            '<!DOCTYPE html><html lang="en"><meta charset="utf-8">'
            '<meta http-equiv="refresh" content="0;url=/"><title>Signed in</title>'
            '<p><a href="/">Signed in: go on</a>'
        )
        response.set_cookie(self._cookie_name, self._session, httponly=True, samesite="strict")
        return response


# ---- The guard before every page

MAX_BODY, MAX_HEAD = 16 * 1024, 16 * 1024
BODY_SECONDS: Final = 10.0
PAGE_HEADER: Final = "x-rag-eval-token"
HEALTH: Final = "/healthz"
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

The sandbox gives the report an opaque origin, so it can read no page and send no feedback."""
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_FOREIGN: Final = "Requests of other sites are not answered."


def refuse(request: Request, status: int, message: str) -> Response:
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
    """Middleware around the application: access control, headers of answers, and errors.

    `access`: The sign-in; None if no access token is needed.
    """

    def __init__(self, app: ASGIApp, access: Access | None) -> None:
        super().__init__(app)
        self._access = access

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Refuse a request, or pass it to the application."""
        try:
            answer = self._refuse(request) or await call_next(request)
        except ClientDisconnect:
            answer = refuse(request, 400, "The request ended early.")
        except Exception as error:  # noqa: BLE001 - the browser is told nothing, the log all of it
            frames = traceback.extract_tb(error.__traceback__)
            LOG.error(  # noqa: TRY400 - a traceback would hold untrusted text
                "a request failed: %s: %s at %s:%s",
                type(error).__name__,
                quoted(str(error), 500),
                Path(frames[-1].filename).name,
                frames[-1].lineno,
            )
            answer = refuse(request, 500, "This failed on the server; its log says why.")
        answer.headers.update(_HEADERS)
        answer.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        answer.headers.setdefault("Cache-Control", "no-store")
        if answer.headers["Content-Security-Policy"] != REPORT_POLICY:
            # Browsers refuse a page with this header and a sandbox, as the report has.
            answer.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        return answer

    def _refuse(self, request: Request) -> Response | None:
        if sum(len(name) + len(value) for name, value in request.headers.raw) > MAX_HEAD:
            return refuse(request, 431, "The head of this request is too large.")
        if _is_foreign(request.headers, request.method):
            return refuse(request, 403, _FOREIGN)
        if self._access is not None and request.url.path != HEALTH:
            return self._access.sign_in(request)
        return None


# ---- Requests that change something.


async def read_change(request: Request, page_token: str) -> bytes:
    """Read the body of a request that only a page of ours can send.

    Raises
    ------
    HTTPException
        The request is from another site or from a page of an earlier start, or its body is not
        JSON, too large or too slow.
    """
    headers, host = request.headers, request.headers.get("host", "").lower()
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    if site != "same-origin" or (
        origin is not None and origin.lower() not in {f"http://{host}", f"https://{host}"}
    ):
        raise HTTPException(403, _FOREIGN)
    if not is_same(headers.get(PAGE_HEADER, ""), page_token):
        raise HTTPException(403, "This page is from an earlier start of the viewer; reload it.")
    if headers.get("content-type", "").lower() != "application/json":
        raise HTTPException(415, "The content type must be application/json.")
    too_large = HTTPException(413, f"At most {MAX_BODY} bytes are accepted.")
    declared = headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > MAX_BODY:  # refuse before reading the body
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY:
                    raise too_large
    except TimeoutError:
        raise HTTPException(408, "The request did not arrive in time.") from None
    return bytes(body)
