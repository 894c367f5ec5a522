"""What long-lived loops need: threads, their supervisor, a pause after a refusal."""
