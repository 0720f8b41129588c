"""Converters: configs of other systems become run files. One module a system, with `convert(path) -> Converted`."""
