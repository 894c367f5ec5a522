"""One module per thing that a user can name; they do not know each other."""
