"""Pallas kernels for accelerators: decode and the verification of drafts over paged keys and values."""
