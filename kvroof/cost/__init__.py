"""Nouns become operations with FLOPs and bytes. No clock and no chip."""
