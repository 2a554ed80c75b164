"""Rerankers as a user could write them."""

from collections.abc import Sequence


class ShortestFirst:
    """Prefers short texts."""

    name = "shortest_first"

    def scores(
        self,
        queries: Sequence[str],  # noqa: ARG002 - the protocol's signature
        texts: Sequence[Sequence[str]],
    ) -> list[Sequence[float]]:
        """Return one score for each text; a shorter text gets a higher score."""
        return [[-float(len(text)) for text in row] for row in texts]


READY = ShortestFirst()
