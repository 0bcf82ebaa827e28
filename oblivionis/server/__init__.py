"""The Flower ServerApp and the simulation around it."""
