"""What was found, for people: the report, its page, how data drift."""
