"""Constants, quantities, numbers and errors: what every other floor stands on."""
