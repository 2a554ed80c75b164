"""Rerankers as a user could write them."""

from collections.abc import Sequence


class ShortestFirst:
    """Prefers short texts."""

    name = "shortest_first"

    def scores(
        self, queries: Sequence[str], texts: Sequence[Sequence[str]]
    ) -> list[Sequence[float]]:  # noqa: ARG002 - the protocol's signature
        """Score by length."""
        return [[-float(len(text)) for text in row] for row in texts]


READY = ShortestFirst()
