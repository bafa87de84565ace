"""Files of a pipeline's home, whatever file system it is on: one interface, and an implementation per file system.

``store`` has the interface and its contract. The rooms above read and write every file of a home with it, and know
the contents; files outside of homes are written by the plain module ``files``.
"""
