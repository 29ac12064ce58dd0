"""One file is one word that a recipe can use. Nobody imports these files: they are found by name."""
