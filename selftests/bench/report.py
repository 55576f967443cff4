# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""The figures as text, and as a plot. All are thousands of instructions per operation."""

from xml.sax.saxutils import escape

SIDES = {"rust": "ours", "rust-2": "ours, version 2", "c": "C"}
# The sides that are compared.
RATIOS = (("rust", "c"), ("rust-2", "rust"))
PARTS = ("whole", "host", "transport", "self")
# The width of a column.
WIDTH = 44
# Samples have no better resolution than that.
LEAST_CALLS = 0.005


def both(values, form="{:.2f}"):
    """Return the sides and their ratios, as far as they were measured; `values` by side."""
    text = " / ".join(form.format(values[side]) for side in SIDES if side in values)
    ratios = [f"{values[one] / values[other]:.2f}" if values[other] else "-"
              for one, other in RATIOS if one in values and other in values]
    return text + (f" ({', '.join(ratios)})" if ratios else "")


def heading(results):
    """Return the heading of a table."""
    names = " / ".join(SIDES[side] for side in SIDES if side in results)
    ratios = [f"{SIDES[one]} : {SIDES[other]}" for one, other in RATIOS
              if one in results and other in results]
    return names + (f" ({'; '.join(ratios)})" if ratios else "")


def costs(jobs, results):
    """Return the table of jobs and parts; `results` by side and job."""
    lines = [f"Thousands of instructions per operation: {heading(results)}", "",
             f"{'job':28}" + "".join(f"{part:>{WIDTH}}" for part in PARTS)]
    for job in jobs:
        row = f"{job.title:28}"
        for part in PARTS:
            values = {side: of[job.name]["parts"][part] for side, of in results.items()}
            row += f"{both(values):>{WIDTH}}"
        lines.append(row)
    return lines


def counts(jobs, results):
    """Return the counts per operation, by job."""
    lines = []
    for job in jobs:
        lines += ["", f"{job.title}: per operation, both sides together: {heading(results)}"]
        names = dict.fromkeys(name for of in results.values() for name in of[job.name]["counts"])
        for name in names:
            values = {side: of[job.name]["counts"][name] for side, of in results.items()
                      if name in of[job.name]["counts"]}
            lines.append(f"  {name:22}{both(values):>{WIDTH}}")
    return lines


def functions(jobs, results, top):
    """Return the functions that cost most, and the callers that allocate."""
    lines = []
    for job in jobs:
        for side, of in results.items():
            one = of[job.name]
            lines += ["", f"{job.title}, {SIDES[side]}: {one['samples']} samples; " + ", ".join(
                f"{part} {value:.2f}" for part, value in one["parts"].items())]
            for part, found in one["functions"].items():
                lines += [f"  {part:10}{value:9.3f}  {name}" for value, name in found[:top]]
            for event, found in one["callers"].items():
                lines += [f"  {event:16}{value:9.3f}  {name}" for value, name in found[:top]
                          if value >= LEAST_CALLS]
    return lines


def memory(results):
    """Return KiB per connection; `results` by side of the comparison."""
    lines = ["", f"Memory of a connection, KiB: {heading(results)}"]
    first = next(iter(results.values()))
    for place, states in first.items():
        for state in states:
            values = {side: of[place][state] for side, of in results.items()}
            lines.append(f"  {place + ', ' + state:22}{both(values, '{:.0f}'):>28}")
    return lines


def plot(jobs, results, title):
    """Return an SVG: the ratio of ours to C for each job and part; empty unless both were measured."""
    if not {"rust", "c"} <= set(results):
        return ""
    left, top, bar, width = 230, 60, 14, 460
    rows, y = [], top
    scale = width / 3
    for job in jobs:
        rows.append(f'<text x="{left - 10}" y="{y + 2 * bar}" text-anchor="end">'
                    f"{escape(job.title)}</text>")
        for number, part in enumerate(PARTS):
            ours, theirs = (results[side][job.name]["parts"][part] for side in ("rust", "c"))
            ratio = ours / theirs if theirs else 0
            at = y + number * bar
            rows.append(f'<rect x="{left}" y="{at}" width="{min(ratio, 3) * scale:.1f}" '
                        f'height="{bar - 2}" fill="{COLOURS[number]}"/>')
            rows.append(f'<text x="{left + min(ratio, 3) * scale + 6:.1f}" y="{at + bar - 4}" '
                        f'class="small">{part} {ours:.1f} / {theirs:.1f} = {ratio:.2f}</text>')
        y += (len(PARTS) + 1) * bar
    one = left + scale
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 220}" height="{y + 30}">',
        "<style>text { font: 13px sans-serif } .small { font-size: 10px }</style>",
        f'<rect width="100%" height="100%" fill="white"/><text x="10" y="24">{escape(title)}</text>',
        *rows,
        f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{top - 12}" y2="{y}" stroke="black"/>',
        f'<text x="{one:.1f}" y="{top - 16}" text-anchor="middle" class="small">as much as C</text>',
        "</svg>", ""])


COLOURS = ("#999999", "#4477aa", "#228833", "#ee6677")
