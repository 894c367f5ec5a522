"""The findings of `cpupool doctor`, from facts alone; other commands show some of them."""
