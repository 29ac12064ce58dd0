"""Quality, speed, size, significance, and `measurements.json` as a type."""
