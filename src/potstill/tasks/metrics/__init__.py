"""Metrics of labels and of texts."""
