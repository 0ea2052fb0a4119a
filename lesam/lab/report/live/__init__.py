"""The page of a folder while its runs train: kept up to date, and served to browsers of this machine."""
