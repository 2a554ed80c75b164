"""A validator by a foreign author that knows only the entry-point group of rag_eval."""


def max_words(options):
    limit = options.get("limit")
    if not isinstance(limit, int) or set(options) != {"limit"}:
        raise ValueError(f"max_words takes limit, a whole number; found {options}")

    def check(candidate):
        if "crash" in candidate.text:
            raise RuntimeError("house_style is broken")
        count = len(candidate.text.split())
        return (
            None
            if count <= limit
            else f"the answer has {count} words, and at most {limit} are allowed."
        )

    return check
