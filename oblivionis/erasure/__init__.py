"""Deletion requests: who asks for what, the ledgers, and the folders of the nodes."""
