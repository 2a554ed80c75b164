"""Open a page in a real browser and record all that it does.

This file opens and watches. The tests state the expected behaviour.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
HARMLESS = ("blob:", "data:")
"""URL schemes of data that a page made itself; such data needs no host."""
WATCH = """
window.__written = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.__written.push(event.violatedDirective + " " + event.blockedURI));
"""


class Visit:
    """A page in its own browser context.

    Parameters
    ----------
    address
        A file on disk or an address.
    dark, narrow, javascript
        Colour scheme, width and scripting of the browser.
    unguarded
        Leave the Content-Security-Policy out of force, so that escaping alone has to hold.
    before
        Script that runs before the scripts of the page.
    """

    def __init__(
        self,
        browser: Any,
        address: str | Path,
        *,
        dark: bool = False,
        narrow: bool = False,
        javascript: bool = True,
        unguarded: bool = False,
        before: str = "",
        **options: Any,
    ) -> None:
        self.address = address.as_uri() if isinstance(address, Path) else address
        self.narrow, self.dark, self.javascript = narrow, dark, javascript
        self.requests: list[str] = []
        self.messages: list[str] = []
        self.dialogs: list[str] = []
        self.context = browser.new_context(
            viewport=NARROW if narrow else WIDE,
            color_scheme="dark" if dark else "light",
            java_script_enabled=javascript,
            bypass_csp=unguarded,
            has_touch=narrow,
            reduced_motion="reduce",
            **options,
        )
        self.context.on("page", self._watch)
        self.page = self.context.new_page()
        if javascript:
            self.page.add_init_script(WATCH + before)
        self.response = self.page.goto(self.address)

    def _watch(self, page: Any) -> None:
        """Record all acts of a page of this context, also of a page that another page opened."""
        page.on("request", lambda request: self.requests.append(request.url))
        page.on(
            "console",
            lambda message: (
                self.messages.append(f"{message.type}: {message.text}")
                if message.type in {"error", "warning", "assert"}
                else None
            ),
        )
        page.on("pageerror", lambda error: self.messages.append(f"pageerror: {error}"))
        page.on("crash", lambda _: self.messages.append("the page crashed"))
        page.on("dialog", self._dialog)

    def _dialog(self, dialog: Any) -> None:
        self.dialogs.append(f"{dialog.type}: {dialog.message}")
        dialog.dismiss()

    def elsewhere(self) -> list[str]:
        """List the requests that a page may not make.

        A file may request only itself. A served page may request only its own host.
        """
        own = urlsplit(self.address)
        asked = [(url, urlsplit(url)) for url in self.requests if not url.startswith(HARMLESS)]
        if own.scheme == "file":
            return [
                url
                for url, parts in asked
                if (parts.scheme, parts.path, parts.query) != (own.scheme, own.path, own.query)
            ]
        return [
            url for url, parts in asked if (parts.scheme, parts.netloc) != (own.scheme, own.netloc)
        ]

    def check_quiet(self) -> None:
        """Check that the page logged nothing, asked no other host and ran only its own code."""
        assert self.messages == []
        assert self.elsewhere() == []
        assert self.dialogs == []
        assert len(self.context.pages) == 1
        if self.javascript:
            found = self.page.evaluate(
                "({pwned: window.__pwned === undefined ? null : String(window.__pwned), "
                "polluted: ({}).polluted === undefined, refused: window.__written})"
            )
            assert found == {"pwned": None, "polluted": True, "refused": []}

    def close(self) -> None:
        self.context.close()
