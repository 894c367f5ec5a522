"""gRPC over unix sockets, with bounds: calls, servers, HTTP/2."""
