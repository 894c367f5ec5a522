"""`dynamic`: as `static`, and a container that runs can get more or fewer CPUs of its own."""
