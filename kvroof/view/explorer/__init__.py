"""A page that answers while sliders move."""
