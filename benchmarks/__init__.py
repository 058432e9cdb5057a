"""Speed as ratios measured in one run: absolute times drift on shared machines, ratios much less."""
