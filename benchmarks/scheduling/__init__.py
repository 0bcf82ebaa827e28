"""Runs, several at a time: what is to be done, where it is done, and in which order it begins."""
