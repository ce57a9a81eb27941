"""Records become text and figures. Nothing is computed here."""
