"""Jinja2 as the page and the viewer use it: everything is escaped, what is invisible is written out, and a bare number is an error."""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from rag_eval.reporting.html import figures
from rag_eval.reporting.html.untrusted import visible

if TYPE_CHECKING:
    from jinja2 import Environment


def finalized(value: object) -> object:
    """What a template may write: markup, and texts, which are made visible and then escaped. A figure comes from `rag_eval.reporting.html.figures`.

    Raises
    ------
    TypeError
        A number, a null or anything else stands where a text belongs.
    """
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return visible(value)
    raise TypeError(f"a template writes a bare {type(value).__name__}")


@functools.cache
def environment(
    package: str = "rag_eval.reporting.html", folder: str = "templates"
) -> "Environment":
    """Templates of a package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader(package, folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        {
            name: getattr(figures, name)
            for name in ("number", "interval", "estimate", "denominator", "text", "texts", "absent")
        }
    )
    return made


def render(template: str, context: Mapping[str, Any]) -> Markup:
    """Render a template of the report."""
    return Markup(environment().get_template(template).render(**context))  # noqa: S704 - the template's output is escaped by the environment
