"""Tables and figures from run folders."""
