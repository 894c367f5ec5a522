"""What the admin writes: pool files and settings, decoded with line and column."""
