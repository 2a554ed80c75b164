"""rag_eval: how often does this retriever miss what the answer needed, and how sure are we?"""

__version__ = "0.1.0"
