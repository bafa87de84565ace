"""The upsert sink: rows replace those of their key through SQLAlchemy, once for each commit."""
