"""The command ``exactlyonce doctor``: what is wrong with a pipeline, in plain words, and a repair of what is safe."""
