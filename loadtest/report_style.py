"""How the page of a result looks: on paper and in the dark, on a desk and in a hand. Decides."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --card: #f6f7f9; --ink: #1b1f24; --soft: #5b6470;
  --rule: #dfe3e8; --a: #0b63ce; --b: #c2410c; --c: #6d28d9; --good: #177a3a; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --card: #1d2126; --ink: #e6e8ea;
  --soft: #9aa3ad; --rule: #33393f; --a: #6cb1ff; --b: #ff9d66; --c: #b79cff; --good: #5fd08a;
  --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  max-width: 1000px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { margin: .4rem 0; } .soft { color: var(--soft); }
.verdict { display: inline-block; padding: .1rem .6rem; border-radius: .3rem; font-weight: 600;
  color: var(--paper); margin: .6rem 0 .2rem; }
.verdict.good { background: var(--good); } .verdict.bad { background: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .6rem;
  margin: 1rem 0; }
.tile { background: var(--card); border-radius: .4rem; padding: .5rem .7rem; }
.tile strong { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--rule); text-align: right;
  white-space: nowrap; vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child, .words td { text-align: left; }
td small { display: block; color: var(--soft); font-size: 11px; }
figure { margin: 1rem 0; } figcaption { font-weight: 600; font-size: 14px; }
.key { font-weight: 400; color: var(--soft); margin-left: .8rem; white-space: nowrap; }
.key::before { content: ""; display: inline-block; width: .7em; height: .7em; margin-right: .35em;
  border-radius: 2px; background: var(--a); }
.key.b::before { background: var(--b); } .key.c::before { background: var(--c); }
details { margin: .5rem 0; } summary { cursor: pointer; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px; background: var(--card);
  padding: .7rem; border-radius: .4rem; }
svg { display: block; width: 100%; min-width: 34rem; height: auto;
  font: 12px system-ui, sans-serif; }
svg text { fill: var(--soft); } svg text.ink { fill: var(--ink); }
.grid { stroke: var(--rule); } .mark { stroke: var(--bad); stroke-dasharray: 4 3; }
.span { stroke: var(--a); stroke-width: 3; opacity: .45; }
.line { fill: none; stroke-width: 1.6; }
.line.a { stroke: var(--a); } .line.b { stroke: var(--b); } .line.c { stroke: var(--c); }
.fill.a { fill: var(--a); } .fill.b { fill: var(--b); } .fill.c { fill: var(--c); }
@media print { body { margin: 0; } figure, table { break-inside: avoid; } }
"""
