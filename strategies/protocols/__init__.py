"""How deletion requests are served: by the clients' own unlearning, or with what the server keeps."""
