"""From files to batches: formats, columns, rows, examples on disk, tokens, batches."""
