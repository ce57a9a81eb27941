"""The command line: one module per verb, which parses, calls one public function and shows its record."""
