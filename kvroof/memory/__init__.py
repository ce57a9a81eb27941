"""Exact bytes: what sequences hold, what an allocator reserves for them, and what a budget leaves."""
