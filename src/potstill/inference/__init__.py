"""Asking a finished model: predictions over a data set, predict, translate, export."""
