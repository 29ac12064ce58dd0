"""Ways to make examples."""
