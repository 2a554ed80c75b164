"""One evaluation, stage by stage: what the Dagster assets and `rag-eval run` both call.

Belongs here: which inputs a stage reads, under which key its result is kept, in which order stages run. Not here: what a stage computes.
"""
