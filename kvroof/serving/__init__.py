"""Steps over time: what one request, and a batch of them, waits for."""
