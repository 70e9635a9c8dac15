"""The daemon's socket: who may ask for what, and how it is answered."""
