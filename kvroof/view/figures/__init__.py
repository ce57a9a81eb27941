"""One figure per question: records in, a plotly figure out. Nothing is computed but where a mark stands."""
