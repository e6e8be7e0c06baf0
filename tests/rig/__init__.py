"""A stand-in for a Qdrant server: its real engine, embedded, behind real gRPC and REST. It is not a real server."""
