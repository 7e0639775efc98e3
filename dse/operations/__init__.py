"""Operations: frozen dataclasses from which commands, functions and printed texts are derived."""
