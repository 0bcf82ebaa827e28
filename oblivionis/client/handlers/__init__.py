"""What a client does for each kind of message, a file each: `handle(message)` makes the reply."""
