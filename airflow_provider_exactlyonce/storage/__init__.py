"""Files of a pipeline's home, whatever file system it is on: one interface, and what each file system makes of it."""
