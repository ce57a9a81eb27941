"""Nouns: what a model, a machine, a deployment and a demand are. Geometry only."""
