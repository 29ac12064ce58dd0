"""The commands, grouped by what they act on."""
