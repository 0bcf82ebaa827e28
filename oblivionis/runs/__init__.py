"""What a run leaves on disk, and how it is followed, reused and resumed."""
