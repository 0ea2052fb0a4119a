"""One self-contained page about run folders: what was found, in words, tables and figures."""
