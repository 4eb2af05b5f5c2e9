"""The parent of the workers: forking, reload, handing over, the end."""
