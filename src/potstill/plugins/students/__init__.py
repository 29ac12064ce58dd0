"""Ways to make or reshape a network."""
