"""From columns to text, from text to chunks."""
