"""What is asked of a deployment: lengths, averages, requests one by one, sessions, and traces."""
