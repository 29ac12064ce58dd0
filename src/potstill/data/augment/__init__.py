"""Copies of texts with masked and replaced words."""
