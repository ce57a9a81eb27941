"""Who runs in the next step, and with how many tokens: decisions without a clock and without arrays."""
