"""One pool or two: KV transfer, goodput, the best of either, the verdict, and where KV is kept."""
