"""The engine's place."""
