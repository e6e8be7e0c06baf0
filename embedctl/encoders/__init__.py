"""From packed batches to vectors."""
