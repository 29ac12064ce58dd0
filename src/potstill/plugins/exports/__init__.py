"""File formats of a finished student."""
