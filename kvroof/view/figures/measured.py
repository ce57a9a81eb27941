"""How right are the predictions: predicted against measured times, with the error."""

from __future__ import annotations

from collections.abc import Sequence

from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots

from kvroof.calibration.validate import Errors, Predicted, Validation
from kvroof.view.theme import GREY, INK, Axis, frame, literal, look_of, style
from kvroof.view.words import layout_words

BAND = 0.3
"""Share of the measured time on either side of the shaded band."""
MOST_BARS = 150
"""Points up to which each has its own interval drawn."""
TIMES = (("tpot_s", "TPOT"), ("ttft_s", "TTFT"))


def predicted_against_measured(answer: Validation) -> Figure:
    """Return predicted against measured TPOT and TTFT in ms, all axes logarithmic.

    The full diagonal is exact, the band is 30 % to either side, bars are one sigma. A colour and a mark stand
    for a model on a machine.
    """
    few = len(answer.predictions) <= MOST_BARS
    head = frame(
        _answer(answer),
        Axis("measured TPOT, ms", "log"),
        Axis("predicted TPOT, ms", "log"),
        [
            f"{answer.predicted:,} of {answer.points:,} measured points; nothing is fitted to them",
            f"shaded: within {BAND:.0%} of the measured time" + ("; bars: one sigma" if few else ""),
            f"calibration: {answer.calibration}",
            *answer.sources,
        ],
        alt="Scatter of predicted against measured TPOT and TTFT, log-log",
    )
    figure = make_subplots(cols=2, horizontal_spacing=0.14, figure=head)
    for number, name in enumerate(sorted({_group(p) for p in answer.predictions})):
        members = [p for p in answer.predictions if _group(p) == name]
        for column, (field, _) in enumerate(TIMES, start=1):
            _dots(
                figure,
                name,
                [p for p in members if getattr(p, field) is not None],
                field,
                number,
                column,
                few,
            )
    for column, (field, title) in enumerate(TIMES, start=1):
        measured = [
            getattr(p.point, field) * 1e3 for p in answer.predictions if getattr(p, field) is not None
        ]
        low, high = (min(measured) * 0.8, max(measured) * 1.25) if measured else (1.0, 10.0)
        _guides(figure, column, low, high)
        ticks = {"dtick": "D2" if high > 10 * low else "D1", "tickformat": ","}
        figure.update_xaxes(
            look_of(head.layout.xaxis) | ticks | {"title_text": f"measured {title}, ms"}, col=column
        )
        figure.update_yaxes(
            look_of(head.layout.yaxis) | ticks | {"title_text": f"predicted {title}, ms"}, col=column
        )
    return figure


def _group(one: Predicted) -> str:
    return f"{one.point.model} on {one.point.hardware}"


def _answer(answer: Validation) -> str:
    said = [
        f"{name} is off by {errors.mape:.0%} on average, {errors.median:.0%} in the median"
        for name, errors in (("TPOT", answer.overall.tpot), ("TTFT", answer.overall.ttft))
        if isinstance(errors, Errors)
    ]
    return ", ".join(said)


def _dots(
    figure: Figure, name: str, members: Sequence[Predicted], field: str, number: int, column: int, few: bool
) -> None:
    look, band = style(number), field.replace("_s", "_interval")
    ends = [(getattr(p, band), getattr(p, field)) for p in members]
    figure.add_trace(
        Scatter(
            x=[getattr(p.point, field) * 1e3 for p in members],
            y=[getattr(p, field) * 1e3 for p in members],
            text=[literal(_conditions(p)) for p in members],
            mode="markers",
            name=literal(name),
            legendgroup=name,
            showlegend=column == 1,
            marker={"symbol": look.marker, "size": 7, "opacity": 0.7, "color": look.colour},
            error_y={
                "type": "data",
                "array": [(high - held) * 1e3 for (_, high), held in ends],
                "arrayminus": [(held - low) * 1e3 for (low, _), held in ends],
                "thickness": 1,
                "width": 0,
                "color": look.colour,
            }
            if few
            else None,
            hovertemplate="%{text}<br>measured %{x:,.3g} ms, predicted %{y:,.3g} ms"
            "<extra>%{fullData.name}</extra>",
        ),
        row=1,
        col=column,
    )


def _conditions(one: Predicted) -> str:
    p = one.point
    return (
        f"{p.framework} {p.version}, {layout_words(p)}, {p.isl:,} in {p.osl:,} out, {p.concurrency:,} at once"
    )


def _guides(figure: Figure, column: int, low: float, high: float) -> None:
    """Draw the diagonal and the band around it."""
    figure.add_trace(
        Scatter(
            x=[low, high, high, low],
            y=[low * (1 - BAND), high * (1 - BAND), high * (1 + BAND), low * (1 + BAND)],
            mode="lines",
            fill="toself",
            fillcolor="rgba(118,118,118,0.15)",
            line={"color": GREY, "width": 0},
            name=f"within {BAND:.0%}",
            showlegend=column == 1,
            legendgroup="band",
            hoverinfo="skip",
        ),
        row=1,
        col=column,
    )
    figure.add_trace(
        Scatter(
            x=[low, high],
            y=[low, high],
            mode="lines",
            line={"color": INK, "width": 1},
            name="exact",
            showlegend=column == 1,
            legendgroup="exact",
            hoverinfo="skip",
        ),
        row=1,
        col=column,
    )
