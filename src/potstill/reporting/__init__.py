"""What a person reads: page, tables, figures, model card, terminal output. No torch."""
