"""The remains of 0.1's file sink: its names, which mean a Delta table now, and the conversion of its files to one.

``convert-files`` uses the conversion; everything else is in the room of the Delta sink.
"""

from airflow_provider_exactlyonce._moved import moved

__getattr__ = moved(__name__, "streaming")
