"""Operations on a machine become seconds, and what bounds them."""
