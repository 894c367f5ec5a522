"""The policy `dynamic`, under which CPUs follow a resize; and the words of pods about that."""
