"""Pages of HTML that need no network: one document in the report's style, and a figure in it."""

import html

from dse import __version__
from dse.plots import to_plotly
from dse.plots.chart import Chart

#: nothing is fetched from anywhere: the browser itself refuses
_POLICY = (
    "default-src 'none'; script-src {scripts}'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "font-src data:; base-uri 'none'; form-action 'none'"
)
_STYLE = """
:root { color-scheme: light dark; --text: #1c1c1c; --back: #fdfdfd; --soft: #5c5c5c; --line: #d4d4d4; --head: #efefef;
  --link: #0b5394; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --back: #16181a; --soft: #a8a8a8; --line: #3c4043;
  --head: #26292c; --link: #8ab8ff; } }
body { font: 16px/1.5 Arial, Helvetica, 'Liberation Sans', sans-serif; color: var(--text); background: var(--back);
  max-width: 1040px; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin-top: 2.4rem; }
a { color: var(--link); } .soft, figcaption { color: var(--soft); }
.scroll { overflow-x: auto; max-width: 100%; margin: 0.6rem 0 1.4rem; padding-bottom: 0.3rem;
  scrollbar-width: thin; scrollbar-color: var(--soft) var(--head); } figure { margin: 0 0 2rem; }
.paper { background: #fff; border: 1px solid var(--line); border-radius: 4px; width: max-content; }
table { border-collapse: collapse; font-size: 0.82rem; } caption { text-align: left; padding: 0.3rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: 0.22rem 0.6rem; text-align: left; vertical-align: top; }
th { background: var(--head); } td.n, th.n { text-align: right; } td.n { white-space: nowrap; }
th { vertical-align: bottom; }
.said td:last-child { min-width: 13rem; } td.name { white-space: nowrap; }
.tight th, .tight td { padding: 0.2rem 0.35rem; }
summary { cursor: pointer; padding: 0.3rem 0; font-weight: bold; }
code { overflow-wrap: anywhere; }
@media (max-width: 1060px) { .scroll:has(.paper, .said, .tight, .claims)::before {
  content: "scrolls sideways \\2192"; color: var(--soft);
  font-size: 0.75rem; position: sticky; left: 0; } }
@media print { .scroll { overflow: visible; } body { max-width: none; } figure { break-inside: avoid; } }
"""


def plotly_js() -> str:
    """The source of plotly.js from the installed package."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def fragment(chart: Chart, div_id: str) -> str:
    """The part of a page that draws a chart, without plotly.js itself."""
    import plotly.io as pio

    return str(
        pio.to_html(to_plotly.figure(chart), config=to_plotly.CONFIG, include_plotlyjs=False, full_html=False,
                    div_id=div_id, include_mathjax=False)
    )  # fmt: skip


def document(title: str, head: str, body: str, scripts: str = "") -> str:
    """A whole HTML document in the report's style, which the browser lets fetch nothing."""
    policy = _POLICY.format(scripts=scripts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n{head}</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def made_by_line(made_by: str) -> str:
    """The line beneath a figure or page that says what made it."""
    return f'<p class="soft">Made by <code>{html.escape(made_by)}</code>, dse {html.escape(__version__)}.</p>'


def figure_page(chart: Chart, made_by: str, question: str = "", is_beside: bool = False) -> str:
    """A page with one figure and what made it; plotly.js inside it, or in plotly.min.js beside it."""
    asked = f"<p>{html.escape(question)}</p>\n" if question else ""
    drawing = fragment(chart, "figure")
    body = f'{asked}<div class="scroll"><div class="paper">{drawing}</div></div>\n{made_by_line(made_by)}'
    script = '<script src="plotly.min.js"></script>' if is_beside else f"<script>{plotly_js()}</script>"
    head = (
        f'<meta name="generator" content="dse {html.escape(__version__)}">\n'
        f'<meta name="description" content="Made by {html.escape(made_by)}">\n{script}\n'
    )
    return document(chart.title, head, body, scripts="'self' file: " if is_beside else "")
