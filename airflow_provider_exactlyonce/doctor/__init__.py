"""The command ``exactlyonce doctor``: what is wrong with a pipeline, in plain words, and a mending of what is safe."""
