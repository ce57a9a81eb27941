"""Shapes and dtypes written in the annotations of the attention modules are checked while these tests run."""

from jaxtyping import install_import_hook

CHECKED = ("blockwise", "dense_attention", "pages", "paged_attention", "rows", "sharded_attention", "visible")

install_import_hook([f"kvroof.engine.{name}" for name in CHECKED], "beartype.beartype")
