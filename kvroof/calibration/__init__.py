"""Measured seconds become an efficiency: readers of tables, the fit, and the profiles it writes."""
