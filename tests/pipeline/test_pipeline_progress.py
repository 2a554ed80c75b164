"""Long steps say how far they are and how long they will take."""

from rag_eval.pipeline import evaluation
from rag_eval.pipeline.evaluation import LINE_EVERY_S, Lines


def test_lines_say_the_time_left(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(evaluation.time, "monotonic", lambda: clock[0])
    lines = []
    with Lines(lines.append).step("Embedding", 40, "chunks") as advance:
        for count in (1, 9, 10, 10, 10):  # a single unit says nothing about the others
            clock[0] += 0 if count == 9 else LINE_EVERY_S + 1
            advance(count)
    each = LINE_EVERY_S + 1
    assert lines == [
        "Embedding (40 chunks) ...",
        "  Embedding: 1 of 40 chunks",
        f"  Embedding: 20 of 40 chunks, about {2 * each:.0f} s left",
        f"  Embedding: 30 of 40 chunks, about {each:.0f} s left",
        f"  Embedding: done in {4 * each:.1f} s",
    ]
