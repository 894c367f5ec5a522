"""Long-lived loops: their frame, threads, their supervisor, a pause after a refusal."""
