"""Model contract, registry, arrays, errors, files, threads and memory: what every room stands on."""
