"""Reads a Wikidata JSON dump into subjects and values for WikiMem."""
