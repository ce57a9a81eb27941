"""What the best operating point is, and what changing one thing is worth."""
