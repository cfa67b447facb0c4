"""The frame of the HTML report: its style sheet, light and dark, and the script that lets the figures follow."""

from __future__ import annotations

from string import Template

from .colors import GRID_LINE, MEASURED, NEUTRAL, PREDICTED
from .figures import FONT

DARK_TEXT, LIGHT_TEXT = "#1C2127", "#E6E9ED"
STYLE = f"""
:root {{ color-scheme: light dark; --text: {DARK_TEXT}; --soft: #5E6873; --page: #FFFFFF; --card: #F4F6F8; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --text: {LIGHT_TEXT}; --soft: #A2ABB5; --page: #13161B; --card: #1D2229; }}
}}
body {{ font: 15px/1.5 {FONT}; color: var(--text); background: var(--page); margin: 0 auto; padding: 28px 32px 64px;
  max-width: 1320px; }}
header {{ display: flex; align-items: center; gap: 10px; color: var(--soft); }}
header svg {{ width: 26px; height: 26px; }}
h1 {{ font-size: 24px; line-height: 1.3; margin: 18px 0 6px; max-width: 62ch; }}
h2 {{ font-size: 19px; margin: 40px 0 10px; }}
h3 {{ font-size: 15px; margin: 22px 0 4px; }}
p {{ max-width: 90ch; margin: 6px 0; }}
code, pre {{ font-family: "JetBrains Mono", "SFMono-Regular", Consolas, monospace; font-size: 0.92em; }}
pre {{ background: var(--card); border-radius: 8px; padding: 12px 16px; white-space: pre-wrap; }}
.soft {{ color: var(--soft); font-size: 13.5px; }}
.cards, .facts {{ display: grid; gap: 10px; margin: 16px 0; }}
.cards {{ grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }}
.cards > div {{ background: var(--card); border-radius: 8px; padding: 10px 14px; }}
.cards b {{ display: block; font-size: 21px; }}
.facts {{ grid-template-columns: repeat(auto-fit, minmax(290px, 1fr)); gap: 10px 28px; }}
.facts dt, .cards span {{ color: var(--soft); font-size: 13px; }}
.facts dd {{ margin: 0; overflow-wrap: anywhere; }}
.row {{ display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 12px; align-items: center; }}
.row.two {{ grid-template-columns: repeat(2, minmax(0, 1fr)); }}
.note {{ background: var(--card); border-left: 4px solid {NEUTRAL}; border-radius: 4px; padding: 12px 16px; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; margin: 8px 0; }}
th, td {{ padding: 5px 12px; text-align: right; border-bottom: 1px solid {GRID_LINE}; white-space: nowrap; }}
th {{ color: var(--soft); font-weight: 600; }}
th:first-child, td:first-child {{ text-align: left; }}
.predicted {{ color: {PREDICTED}; }} .measured {{ color: {MEASURED}; }}
@media (max-width: 900px) {{ .row, .row.two {{ grid-template-columns: minmax(0, 1fr); }} }}
@media print {{ section {{ break-inside: avoid; }} }}
"""
SCRIPT = f"""
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function follow() {{
  const color = dark.matches ? "{LIGHT_TEXT}" : "{DARK_TEXT}";
  document.querySelectorAll(".plotly-graph-div").forEach(figure => Plotly.relayout(figure, {{"font.color": color}}));
}}
dark.addEventListener("change", follow);
window.addEventListener("load", follow);
"""
PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
<script>$plotly</script>
</head>
<body>
<header>$icon <span>BatchTwin · $name</span></header>
$body
<script>$script</script>
</body>
</html>
""")
