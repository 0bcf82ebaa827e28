"""Corpora, their partitioning over clients, and their tokenisation."""
