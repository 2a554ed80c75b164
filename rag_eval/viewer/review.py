"""The page of `rag-eval view --drafts`: a person accepts, edits or drops drafts."""

import secrets
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rag_eval.core.types import Id
from rag_eval.gold.loading import read_gold
from rag_eval.gold.scaffold import Draft, StaleDraftError, decide, list_drafts
from rag_eval.pipeline.corpus import CorpusSnapshot
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.stages import open_runner
from rag_eval.viewer.app import guard, render

MAX_QUESTION: Final = 2000
"""Largest number of characters of a question."""


class _Decision(BaseModel):
    """Decision of a person on one draft."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    query_id: Id
    version: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    decision: Literal["accept", "drop"]
    text: Annotated[str, Field(max_length=MAX_QUESTION)]


MAX_BODY: Final = 16 * 1024


async def _read_change(request: Request, page_token: str) -> bytes:
    """Read the body of a request that only a page of ours can send.

    Raises
    ------
    HTTPException
        The request is from another site or from a page of an earlier start, or its body is not
        JSON or too large.
    """
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

    @property
    def routes(self) -> list[Route]:
        """Addresses with their handlers."""
        return [Route("/", self.show), Route("/decide", self.decide, methods=["POST"])]

    def drafts(self) -> list[Draft]:
        """Read the drafts as they are now."""
        gold = read_gold(self._evaluation.base, self._evaluation.config)
        return list_drafts(gold, self._corpus.documents, self._corpus.sections)

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
            await run_in_threadpool(decide, *place, text)
        except StaleDraftError:
            message = "This draft was changed or decided elsewhere; reload the page."
            raise HTTPException(409, message) from None
        return JSONResponse({"decision": change.decision})


def create_review(desk: ReviewDesk) -> Starlette:
    """Make the application of the review page."""
    return guard(desk.routes)
