"""What reads a destination back."""
