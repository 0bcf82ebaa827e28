"""Speed and memory measurements: each script compares us with the plain library way in one run."""
