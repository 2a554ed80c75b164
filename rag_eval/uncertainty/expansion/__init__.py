"""Seven ways of asking again: each makes other wordings of questions from what the corpus and the retrieved chunks say."""
