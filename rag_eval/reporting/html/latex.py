"""Texts of the page for LaTeX, of any engine: ASCII wherever LaTeX has a command for a character without a further package.

Belongs here: characters. How a table is written is `tables`.
"""

import re
from typing import Final

_SPECIAL: Final = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
_TEXT: Final = {
    "‐": "-",
    "‑": "-",
    "‒": "--",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "\u00a0": "~",
    "\u2009": r"\,",
    "‘": "`",
    "’": "'",
    "‚": ",",
    "“": "``",
    "”": "''",
    "„": ",,",
    "§": r"\S{}",
    "¶": r"\P{}",
    "©": r"\copyright{}",
    "£": r"\pounds{}",
}
_MATH: Final = {
    "−": "-",
    "±": r"\pm",
    "×": r"\times",
    "÷": r"\div",
    "·": r"\cdot",
    "⋅": r"\cdot",
    "•": r"\bullet",
    "°": r"^{\circ}",
    "√": r"\surd",
    "∞": r"\infty",
    "¬": r"\neg",
    "≤": r"\leq",
    "≥": r"\geq",
    "≠": r"\neq",
    "≈": r"\approx",
    "≡": r"\equiv",
    "∼": r"\sim",
    "∝": r"\propto",
    "≪": r"\ll",
    "≫": r"\gg",
    "«": r"\ll",
    "»": r"\gg",
    "‹": "<",
    "›": ">",
    "←": r"\leftarrow",
    "→": r"\rightarrow",
    "↔": r"\leftrightarrow",
    "↑": r"\uparrow",
    "↓": r"\downarrow",
    "⇒": r"\Rightarrow",
    "⇔": r"\Leftrightarrow",
    "∈": r"\in",
    "∉": r"\notin",
    "∅": r"\emptyset",
    "∩": r"\cap",
    "∪": r"\cup",
    "⊂": r"\subset",
    "⊆": r"\subseteq",
    "∧": r"\wedge",
    "∨": r"\vee",
    "∑": r"\sum",
    "∏": r"\prod",
    "∂": r"\partial",
    "∇": r"\nabla",
    "∀": r"\forall",
    "∃": r"\exists",
    "⁺": "^{+}",
    "⁻": "^{-}",
    "ⁿ": "^{n}",
    "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    "µ": r"\mu",
    **{digit: f"^{{{value}}}" for value, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{digit: f"_{{{value}}}" for value, digit in enumerate("₀₁₂₃₄₅₆₇₈₉")},
    **dict(
        zip(
            "ΓΔΘΛΞΠΣΥΦΨΩ",
            (
                rf"\{name}"
                for name in "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split()
            ),
            strict=True,
        )
    ),
    **dict(
        zip(
            "αβγδεζηθικλμνξπρςστυφχψωϑϕϵ",
            (
                rf"\{name}"
                for name in "alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho varsigma sigma tau upsilon varphi chi psi omega vartheta phi epsilon".split()
            ),
            strict=True,
        )
    ),
}
_COMMANDS: Final = {
    **_SPECIAL,
    **_TEXT,
    **{character: rf"\ensuremath{{{command}}}" for character, command in _MATH.items()},
}
_PATTERN: Final = re.compile("|".join(map(re.escape, _COMMANDS)))


def tex(value: str) -> str:
    r"""Escape a text for LaTeX; characters that it has no command for stay, and need an engine and a font that have them.

    Examples
    --------
    >>> print(tex("R@10 & 50 % of $x_1$"), tex("σ² ≤ 1 − Δ…"))
    R@10 \& 50 \% of \$x\_1\$ \ensuremath{\sigma}\ensuremath{^{2}} \ensuremath{\leq} 1 \ensuremath{-} \ensuremath{\Delta}\ldots{}
    """
    return _PATTERN.sub(lambda match: _COMMANDS[match[0]], value)
