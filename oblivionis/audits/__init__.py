"""Thorough measurements of finished runs, and what is asked for because of them."""
