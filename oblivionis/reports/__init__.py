"""What people read of a run: tables, pages, warnings, certificates."""
