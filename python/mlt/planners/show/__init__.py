"""A plan as text and as a picture."""
