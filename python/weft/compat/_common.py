"""What the compatible signatures share."""


def refuse(**options):
    """Raises for each option that is not at one of the values at which it asks for nothing."""
    for name, (value, *harmless) in options.items():
        if not any(value is ok or (type(value) is type(ok) and value == ok) for ok in harmless):
            expected = " or ".join(repr(ok) for ok in harmless)
            raise NotImplementedError(
                f"{name} is {value!r}, expected {expected}: weft has no such option"
            )
