"""What a chat client did and what it cost.

Belongs here: counting. Tokens of cached replies are counted apart, as saved.
"""

import collections
import dataclasses
import threading

from rag_eval.answers.chat_cache import StoredReply
from rag_eval.answers.chat_reply import ReadReply


@dataclasses.dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a client's life.

    Parameters
    ----------
    asked
        Calls of `ask`: `asked = cached + answered + sum(failed.values())`.
    answered
        Replies that came from the endpoint.
    cached
        Replies that cost nothing: read from the cache, or shared with an equal request under way.
    failed
        ChatError code -> calls that ended with it.
    requests
        HTTP requests sent, retries included.
    retries
        Requests beyond the first of a call.
    tokens_in, tokens_out
        As charged by the endpoint, those of unusable replies included.
    usage_missing
        Replies of status 200 without a usable count of tokens, or with one of the two counts only; with any, tokens and cost are lower bounds.
    saved_tokens_in, saved_tokens_out
        What the cached replies cost when they were made.
    cost, saved_cost
        In the currency of the endpoint's prices.
    """

    asked: int
    answered: int
    cached: int
    failed: dict[str, int]
    requests: int
    retries: int
    tokens_in: int
    tokens_out: int
    usage_missing: int
    saved_tokens_in: int
    saved_tokens_out: int
    cost: float
    saved_cost: float

    def cost_per_1k(self, questions: int) -> float | None:
        """Cost of a thousand questions at the rate of these; None without any question."""
        return self.cost / questions * 1000 if questions > 0 else None


class Tally:
    """Counts from several threads.

    Parameters
    ----------
    price_in, price_out
        Of 1000 tokens.
    """

    def __init__(self, price_in: float, price_out: float) -> None:
        self._prices = (price_in, price_out)
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()
        self._failed: collections.Counter[str] = collections.Counter()

    def sent(self, *, retry: bool) -> None:
        """One HTTP request goes out."""
        with self._lock:
            self._counts.update(requests=1, retries=int(retry))

    def charged(self, reply: ReadReply) -> None:
        """A reply of status 200 came."""
        with self._lock:
            self._counts.update(
                tokens_in=reply.tokens_in,
                tokens_out=reply.tokens_out,
                usage_missing=int(reply.usage_missing),
            )

    def answered(self) -> None:
        """A call ended with a reply from the endpoint."""
        with self._lock:
            self._counts.update(asked=1, answered=1)

    def cached(self, reply: StoredReply) -> None:
        """A call ended with a reply that cost nothing."""
        with self._lock:
            self._counts.update(
                asked=1,
                cached=1,
                saved_tokens_in=reply.tokens_in,
                saved_tokens_out=reply.tokens_out,
            )

    def failed(self, code: str) -> None:
        """A call ended with an error."""
        with self._lock:
            self._counts.update(asked=1)
            self._failed.update([code])

    def totals(self) -> Totals:
        """The sums so far."""
        with self._lock:
            counts, failed = self._counts.copy(), dict(sorted(self._failed.items()))
        names = [
            field.name
            for field in dataclasses.fields(Totals)
            if field.name not in {"failed", "cost", "saved_cost"}
        ]
        return Totals(
            **{name: counts[name] for name in names},
            failed=failed,
            cost=self._cost(counts["tokens_in"], counts["tokens_out"]),
            saved_cost=self._cost(counts["saved_tokens_in"], counts["saved_tokens_out"]),
        )

    def _cost(self, tokens_in: int, tokens_out: int) -> float:
        return (tokens_in * self._prices[0] + tokens_out * self._prices[1]) / 1000
