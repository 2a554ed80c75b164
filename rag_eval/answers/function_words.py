"""English words that a question is built with and that say nothing about its subject.

Belongs here: the list. The analyzer's own stop words are fewer: in an index "how" and "want" are harmless, while in a question they would
count as rare words that no passage covers.
"""

_WORDS = """
a about above after again against all also although always am among an and any anybody anyone anything are aren as ask at away be because
become been before behind being below besides between both but by came can cannot come comes could couldn did didn do does doesn doing don
done down during each either else enough etc even ever every everybody everyone everything far few for from further gave get gets getting
give given gives giving go goes going gone got had hadn has hasn have haven having he hence her here hers herself him himself his how however
i ie if in indeed instead into is isn it its itself just keep kept know known knows least less let lets like likely look looks lot made make
makes making many may maybe me mean means might mine more moreover most mostly much must my myself need needed needs neither never no nobody
none nor not nothing now of off often ok on once one ones only onto or other others otherwise ought our ours ourselves out over own per
perhaps please possible possibly put puts quite rather re really s said same say says see seem seems seen shall she should shouldn show shows
since so some somebody someone something sometimes somewhere still such sure t take taken takes tell than that the their theirs them
themselves then there therefore these they thing things think this those though through throughout thus till to together too took toward
towards tried tries try trying under unless until up upon us use used uses using usually ve very via want wanted wants was wasn way ways we
went were weren what whatever when whenever where whereas wherever whether which whichever while who whoever whole whom whose why will wish
with within without won would wouldn yes yet you your yours yourself yourselves
"""
FUNCTION_WORDS: tuple[str, ...] = tuple(sorted(set(_WORDS.split())))
