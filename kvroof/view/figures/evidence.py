"""How right are the answers: the error of every case, class by class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plotly.graph_objects import Box, Figure

from kvroof.calibration.evidence.evidence import Case, Evidence
from kvroof.view.theme import BLUE, INK, Axis, frame, literal

SMALLEST = 1e-4
"""Error at which an axis of errors ends; what is equal or nearer is drawn there."""


def errors_by_class(classes: Sequence[Evidence]) -> Figure:
    """Return the absolute error of every case on a logarithmic axis, a row of dots for each class.

    The box holds the middle half of the cases; its line is the median.
    """
    exact = sum(one.equal for one in classes if one.exact)
    asked = sum(len(one.cases) for one in classes if one.exact)
    figure = frame(
        f"{exact:,} of {asked:,} counts are equal; kernels and served times have the errors shown",
        Axis("absolute error, % of what others counted, logged or measured", "log"),
        Axis("", "category"),
        [
            f"{sum(len(one.cases) for one in classes):,} cases, a dot each",
            "a dot of kernels is one machine, framework and dtype, its error the median over its points",
            f"cases that are off by {SMALLEST:.2%} or less stand at the left end",
        ],
        alt="Dots of absolute errors by class of evidence, on a logarithmic axis",
    )
    for one in reversed(classes):
        figure.add_trace(
            Box(
                name=literal(one.kind),
                orientation="h",
                x=[100 * max(abs(case.error), SMALLEST) for case in one.cases],
                y=[one.kind] * len(one.cases),
                text=list(_words(one.cases)),
                boxpoints="all",
                jitter=0.6,
                pointpos=0,
                marker={"color": BLUE, "size": 4, "opacity": 0.45},
                line={"color": INK, "width": 1.2},
                fillcolor="rgba(0,0,0,0)",
                hovertemplate="%{text}<extra></extra>",
                hoveron="points",
                showlegend=False,
            )
        )
    figure.update_xaxes(range=[-2.1, 3.2], dtick=1)
    figure.update_layout(height=200 + 46 * len(classes))
    return figure


def _words(cases: Sequence[Case]) -> Iterator[str]:
    for case in cases:
        yield literal(f"{case.name}: {case.predicted} for {case.known}, {case.error:+.1%}")
