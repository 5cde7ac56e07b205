"""The page of a validation as a Jinja template, with its style. A module, so that DVC sees when it changes.

What stands in an attribute goes through the filter `attribute`; all else is made visible as `visible` does it.
"""

STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#16191d;--soft:#5b6470;--line:#dfe3e8;--bar:#3b76d6;
--bar2:#8fb3ea;--bar3:#c3cad3;--good:#1a7f45;--good-bg:#e3f5ea;--look:#8f5b00;--look-bg:#fff2d6;--bad:#b42318;
--bad-bg:#fde8e6;--code:#f0f2f5;--mark:#7a1fa2;--mark-bg:#f3e5f9}
@media screen and (prefers-color-scheme:dark){
:root{--page:#111418;--card:#191d23;--ink:#e8ebef;--soft:#9aa4b1;--line:#2c333c;
--bar:#6ea3f5;--bar2:#3f62a0;--bar3:#48515d;--good:#62d592;--good-bg:#12301f;--look:#f2bb5c;--look-bg:#33270f;
--bad:#ff8a7d;--bad-bg:#3b1714;--code:#222831;--mark:#e0a6f7;--mark-bg:#38204a}}
*{box-sizing:border-box}
html{scroll-behavior:smooth;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1140px;margin:0 auto;padding:24px 20px 64px}
h1{font-size:22px;margin:0 0 2px}h2{font-size:17px;margin:0 0 4px}h3{font-size:14px;margin:0 0 6px}
h3.kind{margin-top:14px}h3.next{margin:10px 0 0}
p{margin:0 0 10px;max-width:80ch}p.small{max-width:115ch}
a{color:var(--bar)}
nav{display:flex;flex-wrap:wrap;gap:4px 16px;margin:14px 0 18px;font-size:14px}nav a{text-decoration:none}
nav a:hover{text-decoration:underline}
.soft{color:var(--soft)}.small{font-size:13px}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin:0 0 16px}
.verdict{display:grid;grid-template-columns:auto 1fr;gap:4px 16px;border-left-width:6px}
.verdict .sign{grid-row:span 2;width:44px;height:44px;border-radius:50%;display:grid;place-items:center;font-size:23px;
font-weight:700}
.verdict h2{font-size:24px;line-height:1.3}
.verdict ul{margin:4px 0 0;padding-left:18px}.verdict li{margin:2px 0;overflow-wrap:anywhere}
.good{border-left-color:var(--good)}.look{border-left-color:var(--look)}.bad{border-left-color:var(--bad)}
.good .sign,.badge.fine,.badge.repaired{background:var(--good-bg);color:var(--good)}
.look .sign,.badge.look,.badge.warning{background:var(--look-bg);color:var(--look)}
.bad .sign,.badge.alarm,.badge.error{background:var(--bad-bg);color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;margin:0 0 16px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 16px}
.tile b{display:block;font-size:24px;line-height:1.25;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto;margin:8px 0 0}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
tr:last-child>td{border-bottom:0}
th{font-weight:600;color:var(--soft);font-size:13px;white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.text{overflow-wrap:anywhere;min-width:180px}
td.name{overflow-wrap:anywhere;min-width:195px}
.badge{display:inline-block;border-radius:99px;padding:0 9px;font-size:12.5px;font-weight:600;white-space:nowrap}
.share{display:flex;height:10px;margin-top:7px;min-width:120px;border-radius:5px;overflow:hidden;background:var(--code)}
.share i{display:block;background:var(--bar)}.share i.b{background:var(--bar2)}.share i.c{background:var(--bar3)}
.share i.x{background:var(--bad)}
.key{display:inline-block;width:10px;height:10px;border-radius:3px;margin:0 5px 0 12px;background:var(--bar)}
.key.b{background:var(--bar2)}.key.c{background:var(--bar3)}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(300px,1fr));gap:18px 26px;margin:12px 0 0}
p.fact{margin:6px 0}
figure{margin:0;min-width:0}figcaption{font-size:13px;color:var(--soft);overflow-wrap:anywhere}
svg{display:block;width:100%;height:auto;margin:4px 0;overflow:visible}
svg rect{fill:var(--bar)}svg rect:hover{fill:var(--ink)}svg line{stroke:var(--line)}
svg text{fill:var(--soft);font-size:10.5px;font-family:inherit}
details{border-top:1px solid var(--line);padding:8px 0}
details:first-of-type{margin-top:10px}
summary{cursor:pointer;overflow-wrap:anywhere}
summary b{font-weight:600}
ol.rows{list-style:none;margin:8px 0 4px;padding:0}
ol.rows li{padding:8px 0 8px 14px;border-left:3px solid var(--line);margin:0 0 6px;overflow-wrap:anywhere}
.data{display:block;overflow:clip;background:var(--code);border-radius:6px;padding:5px 9px;margin:4px 0 0;
font:13px/1.6 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre-wrap;overflow-wrap:anywhere;
unicode-bidi:isolate}
bdi{overflow-wrap:anywhere}
.mark{font:600 11px/1.3 ui-monospace,Menlo,Consolas,monospace;background:var(--mark-bg);color:var(--mark);
border-radius:3px;padding:0 3px;margin:0 1px;unicode-bidi:isolate;direction:ltr}
footer{color:var(--soft);font-size:13px}
@media (max-width:640px){main{padding:14px 10px 40px}section{padding:14px 13px}.verdict .sign{width:34px;height:34px;
font-size:18px}.verdict h2{font-size:20px}.tile b{font-size:20px}.tiles{grid-template-columns:repeat(3,1fr);gap:8px}
.stack tr{display:block;padding:7px 0;border-bottom:1px solid var(--line)}.stack tr:first-child{display:none}
.stack td{display:inline;border:0;padding:0 8px 0 0}.times::after{content:" ×"}.stack td.files{display:none}
.stack td.text{display:block;padding-top:2px}}
@media print{:root{--page:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb;--code:#f2f2f2}nav{display:none}
main{max-width:none;padding:0;zoom:.8}section,figure,li,tr{break-inside:avoid}section{border-radius:0}
#findings{break-inside:auto}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""

TEMPLATE = """
{%- macro badge(level, word=none) %}<span class="badge {{ level|attribute }}">{{ word or level }}</span>{% endmacro %}
{%- macro picture(chart) %}
<svg viewBox="0 -2 {{ size[0] }} {{ size[1] + 2 }}" role="img" aria-label="{{ chart.summary|attribute }}">
{% for bar in chart.bars if bar.height %}
<rect x="{{ bar.x }}" y="{{ bar.y }}" width="{{ bar.width }}" height="{{ bar.height }}">
<title>{{ bar.title }}</title></rect>
{% endfor %}
<line x1="0" x2="{{ size[0] }}" y1="{{ size[1] - 17.5 }}" y2="{{ size[1] - 17.5 }}"/>
{% for x, text in chart.labels %}
<text x="{{ x }}" y="{{ size[1] - 4 }}" text-anchor="{{ 'start' if loop.first else 'middle' }}">{{ text }}</text>
{% endfor %}
</svg>
{%- endmacro %}
{%- macro stacked(parts) %}
<span class="share">{% for name, share, style in parts if share %}
<i class="{{ style }}" style="width:{{ '%.3f' % (100 * share) }}%"
title="{{ name|attribute }}: {{ share|percent }}"></i>
{% endfor %}</span>
{%- endmacro %}
{%- macro bullets(lines) %}
<ul>{% for line in lines %}<li><bdi>{{ line }}</bdi></li>{% endfor %}</ul>
{%- endmacro -%}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ title|attribute }}: {{ verdict.headline }}</title>
<style>{{ style }}</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
<nav>
<a href="#rows">Rows</a><a href="#findings">Findings</a><a href="#lengths">Lengths</a>
{% if pairs %}<a href="#pairs">Pairs</a>{% endif %}
<a href="#repetition">Repetition and scripts</a><a href="#leaks">Leaks</a><a href="#drift">Drift</a>
</nav>

<section class="verdict {{ verdict.level }}">
<div class="sign" aria-hidden="true">{{ {"good": "✓", "look": "!", "bad": "✕"}[verdict.level] }}</div>
<h2>{{ verdict.headline }}</h2>
<div>
{{ bullets(verdict.reasons) }}
{% if verdict.steps %}<h3 class="next">What to do next</h3>{{ bullets(verdict.steps) }}{% endif %}
</div>
</section>

<div class="tiles">
{% for name, value in tiles %}
<div class="tile"><b>{{ value|number }}</b><span class="soft small">{{ name }}</span></div>
{% endfor %}
</div>

<section id="rows">
<h2>Rows</h2>
{% if has_splits %}
<p class="soft small">Splits are made by prompt: rows with the same prompt or group are in one split.
<span class="key"></span>train<span class="key b"></span>validation<span class="key c"></span>held out</p>
{% endif %}
<div class="wide"><table>
<tr><th>Kind</th><th class="n">Rows</th><th class="n">Usable</th><th class="n">Dropped</th><th class="n">Repaired</th>
<th class="n">Different prompts</th>
{% if has_splits %}<th class="n">Train</th><th class="n">Validation</th><th class="n">Held out</th><th></th>{% endif %}
</tr>
{% for kind in kinds %}
<tr><td>{{ kind.name }}</td><td class="n">{{ kind.rows|number }}</td><td class="n">{{ kind.kept|number }}</td>
<td class="n">{{ kind.dropped|number }}</td><td class="n">{{ kind.repaired|number }}</td>
<td class="n">{{ kind.prompts|number }}</td>
{% if has_splits %}
{% for split in ("train", "validation", "held_out") %}<td class="n">{{ kind.splits.get(split)|number }}</td>{% endfor %}
<td>{{ stacked(kind.shares) }}</td>
{% endif %}
</tr>
{% endfor %}
</table></div>
<details{% if files.shown|length <= 12 %} open{% endif %}>
<summary><b>Files</b> <span class="soft">({{ files.total|number }})</span></summary>
<div class="wide"><table>
<tr><th>File</th><th>Kind</th><th>Format</th><th>Encoding</th><th class="n">Rows</th><th class="n">Usable</th>
<th class="n">Dropped</th><th class="n">Repaired</th></tr>
{% for file in files.shown %}
<tr><td class="name"><bdi>{{ file.file }}</bdi></td><td>{{ file.kind }}</td><td>{{ file.format }}</td>
<td>{{ file.encoding }}</td><td class="n">{{ file.rows|number }}</td><td class="n">{{ file.valid|number }}</td>
<td class="n">{{ file.dropped|number }}</td><td class="n">{{ file.repaired|number }}</td></tr>
{% endfor %}
</table></div>
{% if files.total > files.shown|length %}
<p class="soft small">{{ (files.total - files.shown|length)|number }} files more are in validation.json.</p>
{% endif %}
</details>
</section>

<section id="findings">
<h2>Findings</h2>
{% if not rules %}<p>No rule was broken.</p>{% else %}
<p class="soft small">error: the row is not usable (policy drop: it goes to quarantine; policy error: the stage fails).
repaired: the row is used as mended. warning: the row is used as it is.</p>
<div class="wide"><table class="stack">
<tr><th>Rule</th><th></th><th>Policy</th><th class="n">Times</th><th class="n">Files</th>
<th>Meaning, and what to do</th></tr>
{% for rule in rules %}
<tr><td class="name"><a href="#rule-{{ loop.index }}">{{ rule.rule }}</a></td>
<td>{{ badge(rule.severity) }}</td><td>{{ rule.policy }}</td><td class="n times">{{ rule.count|number }}</td>
<td class="n files">{{ rule.files|length|number }}</td>
<td class="text"><bdi>{{ rule.message }}</bdi></td></tr>
{% endfor %}
</table></div>
{% for rule in rules %}
<details id="rule-{{ loop.index }}"{% if rules|length == 1 %} open{% endif %}><summary><b>{{ rule.rule }}</b>
<span class="soft">{{ rule.count|number }} found{{ ", the first %d here" % rule.examples|length
if rule.count > rule.examples|length }}</span></summary>
{% if rule.files|length > 1 %}<p class="soft small fact">
{% for name, count in rule.files[:most_files] %}
<bdi>{{ name }}</bdi>: {{ count|number }}{{ "," if not loop.last }}
{% endfor %}
{% if rule.files|length > most_files %}and {{ (rule.files|length - most_files)|number }} files more{% endif %}
</p>{% endif %}
<ol class="rows">
{% for row in rule.examples %}
<li><b><bdi>{{ row.file }}</bdi>:{{ row.line }}</b>
<span class="soft small">row {{ row.row|number }}{% if row.field %}, {{ row.field }}{% endif %}</span>
{% if row.message %}<br><bdi>{{ row.message }}</bdi>{% endif %}
{% if row.excerpt %}<bdi class="data" dir="auto">{{ row.excerpt }}</bdi>{% endif %}</li>
{% endfor %}
</ol></details>
{% endfor %}{% endif %}
</section>

<section id="lengths">
<h2>Lengths</h2>
<p class="soft small">{{ unit_sentence }} Usable rows only.</p>
{% for kind, charts in lengths if charts %}
<h3 class="kind">{{ kind }}</h3>
<div class="grid">
{% for chart in charts %}
<figure><figcaption><b>{{ chart.column }}</b>, in {{ chart.unit }}</figcaption>{{ picture(chart.picture) }}
<figcaption>mean {{ chart.mean|number }} · median {{ chart.p50|number }} · p95 {{ chart.p95|number }}
· max {{ chart.max|number }}</figcaption></figure>
{% endfor %}
</div>
{% else %}<p>No usable row.</p>
{% endfor %}
</section>

{% if pairs %}
<section id="pairs">
<h2>Preference pairs</h2>
<div class="grid">
{% if pairs.longer is not none %}
<figure><figcaption><b>Length bias of the labels</b></figcaption>
<p class="fact">The chosen answer is the longer one in <b>{{ pairs.longer|percent }}</b> of the pairs
(equal lengths count half).</p>
{{ stacked([("chosen is longer", pairs.longer, ""), ("rejected is longer", 1 - pairs.longer, "c")]) }}
<figcaption>{{ pairs.bias }}</figcaption></figure>
{% endif %}
{% if pairs.similarity %}
<figure><figcaption><b>How alike chosen and rejected are</b>, shared words (1: the same words)</figcaption>
{{ picture(pairs.similarity) }}
<figcaption>Pairs that are nearly equal say little.</figcaption></figure>
{% endif %}
<figure><figcaption><b>Agreement and objectives</b></figcaption>
<p class="fact">{{ pairs.agreement }}</p>
<p class="fact"><bdi>{{ pairs.objectives }}</bdi></p>
</figure>
</div>
</section>
{% endif %}

<section id="repetition">
<h2>Repetition and scripts</h2>
<div class="wide"><table>
<tr><th>Kind</th><th class="n">Equal rows</th><th class="n">Equal but for case and blanks</th>
<th class="n">Nearly equal</th>
<th class="n">Contradictions</th><th>Scripts</th></tr>
{% for row in repetition %}
<tr><td>{{ row.kind }}</td><td class="n">{{ row.exact|number }}</td><td class="n">{{ row.normalised|number }}</td>
<td class="n">{{ "not searched" if row.near is none else row.near|number }}</td>
<td class="n">{{ row.contradictions|number }}</td>
<td class="text">
{% for name, share in row.scripts %}{{ name }} {{ share|percent }}{{ ", " if not loop.last }}{% endfor %}
</td></tr>
{% endfor %}
</table></div>
</section>

<section id="leaks">
<h2>Leaks between splits</h2>
{% for sentence in leaks.sentences %}<p>{{ sentence }}</p>{% endfor %}
{% if leaks.shown %}
<details{% if leaks.shown|length <= 3 %} open{% endif %}>
<summary><b>Prompts that stand in two splits</b> <span class="soft">(first {{ leaks.shown|length }})</span></summary>
<ol class="rows">
{% for leak in leaks.shown %}<li>{{ leak.match }}: <bdi>{{ leak.message }}</bdi></li>{% endfor %}
</ol></details>
{% endif %}
</section>

<section id="drift">
<h2>Drift</h2>
{% if drift is string %}<p>{{ drift }}</p>{% else %}
<p class="soft small">How these data differ from {{ compared_with }}. look: worth a look; alarm: these may be
other data than you think; fine: neither, or chance may have made it. Lengths are in characters, so that another
tokenizer changes nothing.</p>
<div class="wide"><table class="stack">
<tr><th></th><th>What</th><th>Found</th></tr>
{% for shift in drift %}
<tr><td>{{ badge(shift.level) }}</td><td>{{ shift.measure }}</td>
<td class="text"><bdi>{{ shift.sentence }}</bdi></td></tr>
{% else %}<tr><td colspan="3">Nothing to compare: one of the two has no rows.</td></tr>
{% endfor %}
</table></div>{% endif %}
</section>

<footer>Every number is from validation.json, where all listed rows are (the first {{ listed }} of each rule and file).
Texts are shown as they are; <b class="mark">U+200B</b> stands for a character that is not seen.</footer>
</main>
</body>
</html>
"""
