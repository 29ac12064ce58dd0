"""The teacher, live or from memory, and the texts it generates."""
