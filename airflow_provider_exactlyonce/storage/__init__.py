"""Files of a pipeline's home, whatever file system it is on: one interface, and what each file system makes of it.

``store`` has the interface and its contract. What the files say is for the rooms above, which call it for every file
of a home; files outside of homes are written by the plain module ``files``.
"""
