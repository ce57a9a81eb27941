"""What each serving engine sets aside, by its own rules, and the figures its log will print."""
