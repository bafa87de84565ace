"""The checks, by subject: each takes the facts and yields findings; nothing is looked at here any more."""
