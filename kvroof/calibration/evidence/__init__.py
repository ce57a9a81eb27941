"""What kvroof's answers were held against, class by class: `kvroof validate --report`."""
