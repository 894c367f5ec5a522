"""How cpupool tells what it does."""
