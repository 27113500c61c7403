"""Names of other libraries, under which their scripts find what Terrace does."""
