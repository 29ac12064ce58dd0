"""What is predicted: one file for each task word that the user types, with its metrics."""
