# SPDX-License-Identifier: Apache-2.0
"""Documents as HTML, with SVG curves inline; no script, no request, every string escaped."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from html import escape

from neutracer.render.document import (
    DARK,
    LIGHT,
    Block,
    Cell,
    Copyable,
    Document,
    Entry,
    Figure,
    Findings,
    Heading,
    KeyValues,
    Note,
    Palette,
    Paragraph,
    Place,
    Table,
    clean,
    sentence,
    shorten_left,
)
from neutracer.units import format_count

# ---- Html --------------------------------------------------------------------------------

# Every string is escaped; nothing is loaded or run, and a page's content security policy says so.

# A fragment stays small whatever the names in a file are.
_MOST_NAME = 120


def _variables(palette: Palette) -> str:
    return (
        f"--nt-page:{palette.page};--nt-ink:{palette.ink};--nt-grey:{palette.grey};"
        f"--nt-line:{palette.line};--nt-free:{palette.sand_ink};--nt-red:{palette.red};"
        f"--nt-blue:{palette.allocated[2]}"
    )


def theme_rules(selector: str, dark: str) -> str:
    """CSS with the declarations `dark` of a selector for dark themes of notebooks, documentation
    sites (by attributes of the page) and browsers."""
    return (
        "@media (prefers-color-scheme:dark){"
        "body:not([data-jp-theme-light]):not(.vscode-light):not([data-theme=light]) "
        f"{selector}{{{dark}}}}}"
        f"[data-jp-theme-light=false] {selector},.vscode-dark {selector},"
        f".vscode-high-contrast:not(.vscode-high-contrast-light) {selector},"
        f"[data-theme=dark] {selector}{{{dark}}}"
    )


# The notebooks' own rules for tables name two classes: `.neutracer` three times over takes
# precedence.
_STYLE = (
    f".neutracer{{{_variables(LIGHT)};color:var(--nt-ink);background:var(--nt-page);"
    "font:13px/1.45 system-ui,sans-serif;padding:.6em .8em;overflow-x:auto}"
    ".neutracer p,.neutracer article{max-width:64em}"
    f"{theme_rules('.neutracer', _variables(DARK))}"
    ".neutracer h2{font-size:1.15em;margin:0 .8em 0 0;display:inline}"
    ".neutracer h3,.neutracer caption{font-size:1em;font-weight:600;text-align:left;"
    "margin:1em 0 .2em;caption-side:top}"
    ".neutracer .nt-muted,.neutracer th{color:var(--nt-grey);font-weight:400}"
    ".neutracer table{border-collapse:collapse;margin:1em 0 0;background:none;font-size:1em}"
    ".neutracer.neutracer.neutracer tr{background:none}"
    ".neutracer.neutracer.neutracer td,.neutracer.neutracer.neutracer th"
    "{padding:.1em .8em .1em 0;text-align:left;vertical-align:top;"
    "unicode-bidi:isolate;overflow-wrap:break-word;word-break:normal}"
    ".neutracer.neutracer.neutracer th{overflow-wrap:normal;word-break:normal}"
    ".neutracer.neutracer.neutracer .nt-figure{text-align:right;white-space:nowrap;"
    "font-variant-numeric:tabular-nums}"
    ".neutracer.neutracer.neutracer code{padding:0;font:12px/1.4 ui-monospace,monospace;"
    "unicode-bidi:isolate;"
    "overflow-wrap:anywhere;color:inherit;background:none}"
    ".neutracer article{border-left:3px solid var(--nt-grey);padding:0 0 0 .8em;margin:1em 0}"
    ".neutracer article p{margin:.15em 0}"
    ".neutracer .nt-word{font-variant:all-small-caps;letter-spacing:.05em;margin-right:.7em}"
    ".neutracer .nt-severe,.neutracer .nt-serious{border-color:var(--nt-red)}"
    ".neutracer .nt-severe .nt-word,.neutracer .nt-serious .nt-word{color:var(--nt-red)}"
    ".neutracer .nt-moderate{border-color:var(--nt-free)}"
    ".neutracer .nt-moderate .nt-word{color:var(--nt-free)}"
    ".neutracer .nt-info{border-color:var(--nt-blue)}"
)

# The page around a fragment takes the fragment's background, so that it has no frame.
_PAGE_STYLE = (
    f"body{{margin:0;background:{LIGHT.page}}}"
    f"@media (prefers-color-scheme:dark){{body{{background:{DARK.page}}}}}"
)


def render_html(document: Document, picture: str = "") -> str:
    """Write a document as an HTML fragment with its own style.

    The fragment is one `<div class="neutracer">`; its style touches nothing outside.
    """
    return f'<div class="neutracer"><style>{_STYLE}</style>{_body(document, picture)}</div>'


def render_page(document: Document, picture: str = "") -> str:
    """Write a document as a self-contained HTML page; arguments as for `render_html`."""
    body = f'<div class="neutracer">{_body(document, picture)}</div>'
    return page_shell(document.title, body, _PAGE_STYLE + _STYLE)


def page_shell(
    title: str,
    body: str,
    style: str,
    script: str = "",
    *,
    has_core: bool = False,
    dark: bool | None = None,
) -> str:
    """The page around a body, under a policy that allows its own parts and nothing else.

    Args:
        title: The title, as data; it is escaped here.
        body: HTML that is safe already; attributes of style in it would not apply.
        style: The style sheet. The policy names its hash.
        script: A program that runs once the body is there; none where it is empty. The
            policy names its hash.
        has_core: The program compiles the page's own WebAssembly, and starts workers that it
            makes itself.
        dark: Whether it is dark; None is as the browser, or the notebook around it, has it.
    """
    if "</" in style or "</" in script or "<!--" in script:
        raise ValueError("a style sheet or a script can't hold '</'")
    runs = f"script-src {_digest(script)}; " if script else ""
    if has_core:
        runs = f"script-src {_digest(script)} 'wasm-unsafe-eval'; worker-src blob: data:; "
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; {runs}base-uri 'none'; form-action 'none'"
    )
    program = f"<script>{script}</script>" if script else ""
    theme = "" if dark is None else f' data-theme="{"dark" if dark else "light"}"'
    return (
        f'<!DOCTYPE html>\n<html lang="en"{theme}><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{_text(title)}</title><style>{style}</style></head>\n"
        f"<body>{body}{program}</body></html>\n"
    )


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def _text(text: str) -> str:
    return escape(sentence(text))


def _body(document: Document, picture: str = "") -> str:
    answer, page = document.arranged()
    facts = " · ".join(_text(fact) for fact in page.facts)
    head = f'<h2>{_text(page.title)}</h2><span class="nt-muted">{facts}</span>'
    first = "" if answer is None else _block(answer)
    return head + first + picture + "".join(_block(block) for block in page.blocks)


def _block(block: Block) -> str:
    if isinstance(block, Findings):
        return "".join(_entry(entry) for entry in block.entries)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, KeyValues):
        return _table(Table(block.title, block.pairs))
    if isinstance(block, Heading):
        return f"<h3>{_text(block.text)}</h3>"
    return f"<p>{_text(block.text)}</p>"


def _entry(entry: Entry) -> str:
    severity = entry.severity.value
    when = f' <span class="nt-muted">{_text(entry.when)}</span>' if entry.when else ""
    return (
        f'<article class="nt-{severity}"><p><span class="nt-word">{severity}</span>'
        f"<strong>{_text(entry.headline)}</strong>{when}</p>"
        + "".join(_note(note) for note in entry.notes + entry.advice)
        + "</article>"
    )


def _note(note: Note) -> str:
    ending = _place(note.place) if note.place else _cell_text(note.detail)
    return f"<p>{_text(note.opening)} {ending}".rstrip() + "</p>"


def _place(place: Place) -> str:
    function = sentence(place.function, _MOST_NAME)
    location = shorten_left(clean(place.location), _MOST_NAME)
    return f"<code>{escape(function)}</code> <code>{escape(location)}</code>"


def _table(table: Table) -> str:
    caption = f"<caption>{_text(table.title)}</caption>" if table.title else ""
    figures = [
        any(isinstance(cell, Figure) for cell in column) for column in zip(*table.rows, strict=True)
    ]
    figures = figures or [False] * len(table.columns)
    heads = "".join(
        f"<th{_figure_class(is_figure)}>{_text(heading)}</th>"
        for heading, is_figure in zip(table.columns, figures, strict=bool(table.columns))
    )
    rows = "".join("<tr>" + "".join(map(_cell, row, figures)) + "</tr>" for row in table.rows)
    notes = "".join(f"<p>{_text(note)}</p>" for note in table.notes)
    head = f"<thead><tr>{heads}</tr></thead>" if heads else ""
    return f"<table>{caption}{head}<tbody>{rows}</tbody></table>{notes}"


def _cell(cell: Cell, is_figure: bool) -> str:
    content = _place(cell) if isinstance(cell, Place) else _cell_text(cell)
    return f"<td{_figure_class(is_figure)}>{content}</td>"


def _cell_text(cell: str | Figure) -> str:
    if isinstance(cell, Copyable) and cell:
        return f"<code>{escape(clean(cell))}</code>"
    return _text(str(cell))


def _figure_class(is_figure: bool) -> str:
    return ' class="nt-figure"' if is_figure else ""


# ---- Inline ------------------------------------------------------------------------------

#: The most bytes that one output of a notebook takes.
MOST_INLINE = 1_000_000

# Rows of each table, and blocks, that are tried in turn.
_TRIED = (1_000, 100, 10)


def inline_html(document: Document, picture: str = "", whole: str = "print(...)") -> str:
    """A document as an HTML fragment of at most 1 MB; says so where it was cut.

    Args:
        picture: What goes between the title and the rest: HTML that is safe already.
        whole: What has all of it, for the note.
    """
    page = render_html(document, picture)
    if _fits(page):
        return page
    size = f"{len(page.encode('utf-8', 'replace')) / 1e6:,.1f} MB"
    for most in _TRIED:
        note = (
            f"Cut for the notebook, which keeps at most 1 MB of it: {format_count(most)} rows of "
            f"each table are shown. All of it would be {size}: {whole} has it."
        )
        blocks = tuple(_cut(block, most) for block in document.blocks[:most])
        page = render_html(replace(document, blocks=(*blocks, Paragraph(note))))
        if _fits(page):
            return page
    return render_html(Document(document.title, blocks=(Paragraph(f"{size}: see {whole}."),)))


def _fits(page: str) -> bool:
    return len(page.encode("utf-8", "replace")) <= MOST_INLINE


def _cut(block: Block, most: int) -> Block:
    if isinstance(block, Table):
        return replace(block, rows=block.rows[:most])
    if isinstance(block, KeyValues):
        return replace(block, pairs=block.pairs[:most])
    if isinstance(block, Findings):
        return Findings(
            tuple(
                replace(entry, notes=entry.notes[:most], advice=entry.advice[:most])
                for entry in block.entries[:most]
            )
        )
    return block
