"""What is shed when there is too much to do."""
