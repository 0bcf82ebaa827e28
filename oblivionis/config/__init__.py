"""The configuration: YAML files and overrides in, one checked dataclass out."""
