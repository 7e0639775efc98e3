"""What is published and measured beside what this tool computes."""
