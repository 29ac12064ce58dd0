"""Finished forms of a student. One file is one export; its name is the word that users type."""
