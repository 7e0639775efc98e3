"""Papers' observations on keys and values, and their experiments, repeated on a language model (`dse study`)."""
