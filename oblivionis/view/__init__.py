"""The window: a web page on this machine that shows all runs of a folder, live."""
