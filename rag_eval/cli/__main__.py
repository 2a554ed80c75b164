"""`python -m rag_eval.cli`."""

from rag_eval.cli import main

main()
