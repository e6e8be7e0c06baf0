"""From text to token ids, from token ids to packed batches."""
