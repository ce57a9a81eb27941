"""Edges: config files and hardware profiles become spec records here, and are checked here."""
