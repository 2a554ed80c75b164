"""Equal requests at the same time go out once.

Belongs here: waiting for each other, and the cache that ends the waiting. Not here: sending.
"""

import concurrent.futures
import threading
from collections.abc import Callable

from rag_eval.answers.chat_cache import ChatCache, StoredReply
from rag_eval.answers.chat_totals import Tally
from rag_eval.records.answers import ChatError, Reply


class SharedRequests:
    """Requests under way by their key, in front of a cache.

    Parameters
    ----------
    cache
        Where replies are kept; errors are not.
    tally
        Counts the replies that cost nothing.
    """

    def __init__(self, cache: ChatCache, tally: Tally) -> None:
        self._cache = cache
        self._tally = tally
        self._lock = threading.Lock()
        self._under_way: dict[str, concurrent.futures.Future[StoredReply]] = {}

    def ask(self, key: str, send: Callable[[], tuple[Reply, StoredReply]]) -> Reply:
        """The reply from the cache, from an equal request under way, or from `send`.

        Raises
        ------
        ChatError
            As `send` does; those who waited for it get its code and message without its retries.
        """
        while True:
            with self._lock:
                theirs = self._under_way.get(key)
                if theirs is None:
                    mine = self._under_way[key] = concurrent.futures.Future()
            if theirs is None:
                return self._lead(key, send, mine)
            try:
                stored = theirs.result()
            except concurrent.futures.CancelledError:
                continue  # whoever sent it was interrupted, which is no reason to fail here
            except ChatError as error:
                raise ChatError(error.code, str(error)) from None
            self._tally.cached(stored)
            return stored.free()

    def _lead(
        self,
        key: str,
        send: Callable[[], tuple[Reply, StoredReply]],
        mine: concurrent.futures.Future[StoredReply],
    ) -> Reply:
        try:
            stored = self._cache.read(key)
            if stored is not None:
                self._tally.cached(stored)
                reply = stored.free()
            else:
                reply, stored = send()
                self._cache.write(key, stored)
            mine.set_result(stored)
        except ChatError as error:
            mine.set_exception(error)
            raise
        finally:
            mine.cancel()  # does nothing to one that ended above
            with self._lock:
                del self._under_way[key]
        return reply
