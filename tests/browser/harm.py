"""Find forbidden elements, attributes and characters in an open page.

This file looks at the document. `visits` watches the behaviour of a page.
"""

import re
from typing import Any

HIDDEN = (
    r"[\u0000-\u0008\u000b\u000e-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5"
    r"\u180b-\u180f\u200b-\u200f\u2028-\u202f\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb]"
    r"|[\u{e0000}-\u{e0fff}]"
    r"|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]"
)
"""Regular expression of characters that a reader would not see."""

SCAN = r"""
() => {
  const found = [];
  const hidden = /HIDDEN/u;
  const say = (what, element) =>
    found.length < 20 && found.push(what + ": " + element.outerHTML.slice(0, 160));
  const data = new Set(["application/octet-stream+base64", "application/json", "text/plain"]);
  for (const element of document.querySelectorAll("*")) {
    const name = element.localName;
    if (["iframe", "frame", "object", "embed", "base", "applet", "portal", "audio", "video",
         "marquee", "foreignObject", "animate", "set"].includes(name))
      say("element " + name, element);
    if (name === "meta" && element.httpEquiv
        && element.httpEquiv.toLowerCase() !== "content-security-policy")
      say("meta", element);
    if (name === "form" && element.getAttribute("action") !== null)
      say("form that leads somewhere", element);
    if (name === "script" && element.type && element.type !== "module" && !data.has(element.type))
      say("script of another type", element);
    for (const attribute of element.attributes) {
      const key = attribute.name.toLowerCase(), value = attribute.value;
      if (key.startsWith("on")) say("handler", element);
      if (key === "style") say("inline style", element);
      if (["srcset", "srcdoc", "formaction", "ping", "background", "poster"].includes(key))
        say("attribute " + key, element);
      if (hidden.test(value) && name !== "script") say("invisible character in " + key, element);
      if (key === "src" && !(value.startsWith("data:image/") || value.startsWith("/assets/")))
        say("source", element);
      if ((key === "href" || key === "xlink:href") && name !== "link") {
        if (/^https?:\/\//i.test(value)) {
          if (name !== "a") say("far reference", element);
          else if (!/noreferrer/.test(element.rel)) say("link without noreferrer", element);
        } else if (
          !/^(#[\w.:?&=%*+~!'()-]*|blob:.*|(?!\/\/)[\w.\/-]+(#[\w-]*)?)$/.test(value)
        ) say("link", element);
      }
      if (key === "href" && name === "link"
          && !value.startsWith("/assets/") && !value.startsWith("data:"))
        say("linked file", element);
    }
  }
  const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (hidden.test(node.data))
      found.length < 20
        && found.push("invisible character: " + JSON.stringify(node.data.slice(0, 120)));
  }
  for (const name of ["explorer", "body", "attributes", "head", "forms"]) {
    if (document.querySelectorAll("#" + name).length > 1
        || document.getElementsByName(name).length)
      found.push("clobbered: " + name);
  }
  if (getComputedStyle(document.body).visibility !== "visible") found.push("the page is hidden");
  return found;
}
""".replace("HIDDEN", HIDDEN)
"""Script that finds elements and attributes that our templates never write.

It also finds links that lead elsewhere than to http(s) or into the page, and characters that a
reader would not see.
"""


def harm(page: Any) -> list[str]:
    """List the parts of an open page that only outside text could have added."""
    return page.evaluate(SCAN)


def overflow(page: Any) -> list[str]:
    """List the elements that make a page wider than its window.

    The list is empty where the page has no horizontal scroll.
    """
    return page.evaluate(
        """() => {
          const wide = document.documentElement.clientWidth;
          if (document.documentElement.scrollWidth <= wide) return [];
          return [...document.querySelectorAll("body *")]
            .filter((e) => e.getBoundingClientRect().right > wide + 1)
            .map((e) => e.tagName + "." + e.getAttribute("class") + " " + e.id + " "
              + Math.round(e.getBoundingClientRect().right))
            .slice(0, 12);
        }"""
    )


def accessibility(seen: Any, axe: str, within: str = "html") -> list[str]:
    """List the serious and critical findings of axe-core: one line per rule, with the first places.

    The test evaluates the engine, and the page's policy does not apply there. Open the page
    `unguarded`, because the engine loads further parts itself.
    """
    seen.page.evaluate(axe)
    found = seen.page.evaluate(
        "async (within) => (await axe.run(document.querySelector(within), {resultTypes: "
        "['violations']})).violations.filter((v) => ['serious', "
        "'critical'].includes(v.impact))",
        within,
    )
    return [
        f"{rule['impact']} {rule['id']}: {rule['help']} ({len(rule['nodes'])}): "
        + "; ".join(str(node["target"]) + " " + node["html"][:100] for node in rule["nodes"][:3])
        for rule in found
    ]


def plain(text: str) -> str:
    """Return text with single blanks and a question mark for each escaped invisible character."""
    return " ".join(
        re.sub(
            r"\[U\+[0-9A-F]{4,6}\]|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}|\\x[0-9a-f]{2}", "?", text
        ).split()
    )
