"""What has been committed, by whom, and what died."""
