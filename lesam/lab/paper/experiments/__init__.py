"""One module for each table or figure of the paper, named as on the command line."""
