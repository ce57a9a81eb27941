"""Closed forms: what requests wait for in a pool that runs for long, or in a loop that is always full."""
