"""The real thing, small, in JAX: paged attention and what runs on it, as `memory` and `schedule` decide."""
