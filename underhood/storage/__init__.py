"""Files: written whole or not at all, safetensors with a JSON header; docs/format.md tells other programs how."""
