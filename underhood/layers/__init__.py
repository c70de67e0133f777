"""Parts that architectures are made of: linear maps, convolution, norms, diagonal scans, matrix memories."""
