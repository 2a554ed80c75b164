"""Definitions of the methods panel: every measure of the page, exactly as the code computes it, with formula and source.

Belongs here: words. Constants in them are held against the code by a test.
"""

from typing import Final, NamedTuple


class Definition(NamedTuple):
    """A term, what it is, its formula where it has one, and where it comes from."""

    term: str
    text: str
    formula: str = ""
    source: str = ""


RANKING: Final = (
    Definition(
        "Unit of inference",
        "The group: questions that share a gold document, or are wordings of one another, directly or through others. A measure is averaged inside each question over its wordings and seeds, then over questions; intervals and tests resample groups.",
    ),
    Definition(
        "Denominators",
        "attempted = scored + ineligible. A question without gold at the level is ineligible, neither hit nor miss. A failed retrieval scores 0 under every measure where more is better and 1 under delta_s, and is counted as failed.",
    ),
    Definition(
        "Levels",
        "Document and section: chunks of one document or section collapse to its best rank before anything is counted. Span: a gold span is found where a chunk overlaps it by at least half of the shorter of the two; a span that no chunk carries stays in the denominator.",
    ),
    Definition(
        "R@k",
        "Recall: the share of the relevant items that stand among the first k.",
        "R@k = relevant in the first k / relevant",
        "TREC; computed by ir-measures (MacAvaney, Macdonald & Ounis 2022)",
    ),
    Definition(
        "Success@k",
        "Whether any relevant item stands among the first k: the hit rate.",
        "Success@k = 1 if R@k > 0, else 0",
        "TREC; ir-measures",
    ),
    Definition(
        "RR, MRR",
        "One over the rank of the first relevant item in the whole list, 0 without one. MRR is its mean.",
        "RR = 1 / rank of the first relevant",
        "Kantor & Voorhees (2000); ir-measures",
    ),
    Definition(
        "nDCG@k",
        "Gain of the grades, discounted by rank, over that of the best possible order.",
        "nDCG@k = sum_{i<=k} g_i / log2(i + 1), divided by the same sum of the ideal order",
        "Järvelin & Kekäläinen (2002); ir-measures",
    ),
    Definition(
        "P@k",
        "The share of k places that hold a relevant item; k is the denominator of shorter lists too. What nobody judged counts as irrelevant; the upper bound counts it as relevant.",
        "P@k = relevant in the first k / k",
        "TREC; ir-measures",
    ),
    Definition(
        "Judged@k",
        "The share of what stands in the first k that somebody judged. Low values make precision and nDCG statements about the judging; recall of named targets stands.",
        "Judged@k = judged in the first k / retrieved in the first k",
        "ir-measures",
    ),
    Definition(
        "Overlap of strategies",
        "What the first ten of two strategies have in common, whatever its order, under the original wording and the first seed; mean over questions.",
        "overlap@10 = items in both first tens / items of the longer of the two",
    ),
    Definition(
        "Recall of approximate search",
        "What an approximate index finds of the first k of exact search over the same vectors.",
        "ann_recall@k = common items / items of exact search in the first k",
    ),
)

STABILITY: Final = (
    Definition(
        "delta_s",
        "Semantic distance between a question and what was retrieved: one minus the cosine between its vector and the mean vector of the first ten chunks, clipped to [0, 1]. Stable under 0.40, transitional under 0.60, else risk; target at most 0.45. Likewise for the gold evidence (anchor) and a decoy; two distances within 0.02 are equally close.",
        "delta_s = 1 - cos(q, mean of the chunks' vectors)",
    ),
    Definition(
        "lambda",
        "State of a question over its wordings and seeds, at hit@10 and the mean pairwise rank-biased overlap of its lists, in this order: chaotic when both seeds and wordings change the hit or the overlap is under 0.2; recursive when seeds change it under one wording; divergent when wordings change it or the overlap is under 0.5; else convergent. A question that is always missed can be convergent, so gates count convergent and hit. One run alone is undefined.",
    ),
    Definition(
        "Rank-biased overlap",
        "Agreement of two lists in which each deeper place weighs 0.9 of the one above; extrapolated beyond what was seen.",
        "RBO with p = 0.9",
        "Webber, Moffat & Zobel (2010), equation 32",
    ),
    Definition(
        "Variance shares",
        "Variance of R@10 of one run, split into question, wording inside the question and seed inside the wording, by analysis of variance for unbalanced data; a negative estimate counts as 0.",
        "",
        "Searle, Casella & McCulloch (1992)",
    ),
    Definition(
        "Flip matrix",
        "Share of questions that hit under one wording and miss under another, with the same seed.",
    ),
)

ANSWERS: Final = (
    Definition(
        "Coverage",
        "Share of the tokens of the gold spans that the answer's citations hold, mean over answerable questions; 0 where the question was not answered.",
        "coverage = gold tokens cited / gold tokens",
    ),
    Definition(
        "Correct citation",
        "Its code is ok, and it overlaps a gold span of its question by at least half of the shorter of the two. A failed answer counts as one citation that is neither valid nor correct.",
    ),
    Definition(
        "Citation precision",
        "Over all citations of answers to judged questions; those to unanswerable ones cannot be correct.",
        "precision = correct / made",
    ),
    Definition(
        "Citation recall",
        "Over all gold spans of answerable questions.",
        "recall = gold spans matched by a correct citation / gold spans",
    ),
    Definition(
        "Citation match rate",
        "Due are the citations made, and one where none was made: what is missing, made up or invalid stays in the denominator.",
        "match rate = correct / due",
    ),
    Definition(
        "Citation validity",
        "Says that citations keep to the contract, nothing of their being right.",
        "validity = citations with code ok / made",
    ),
    Definition(
        "Groundedness",
        "Without a model. Of each answer sentence: the share of its content words, weighted by BM25 idf, that stand in the best window of three evidence sentences, times the share of its names found in that text (not under 0.25), halved where one of its numbers is missing. An answer's value is the mean over its sentences, 0 for a failed answer. A sentence is supported from 0.5. Words are compared, so a translated answer scores near 0.",
        "score = share of idf-weighted words x max(share of names, 0.25), x 0.5 where a number is missing",
    ),
    Definition(
        "Faithfulness",
        "Share of an answer's statements that a judging model finds supported by the evidence, on a sample of answers chosen by a hash of the question's id; off without FEATURE_RAGAS_EVAL. A reply that cannot be read is a counted failure.",
        "",
        "ragas (Es, James, Espinosa Anke & Schockaert 2024)",
    ),
    Definition(
        "Retrieval-to-answer gap (FK019)",
        "Something was retrieved, and the answer neither cites it, names its sources, says that nothing relevant was found, nor has a sentence with groundedness of 0.5 or more (a sentence of one or two content words must stand there whole). Retrieval that only sets the tone (purpose: context) is exempt. A warning, never repaired.",
    ),
    Definition(
        "Abstention",
        "Share of unanswerable questions that end NOT FOUND or INSUFFICIENT EVIDENCE; answered anyway is the share of them that were answered.",
    ),
    Definition(
        "Final and calibrated confidence",
        "Synthesis confidence is groundedness for deterministic answers, else what the answering system reported. The calibrated figure is absent until the miss rate is provisional or measured; where the share c0 of right answers over missed retrievals is measured (30 groups or more), it is added.",
        "final = c x (1 - m); calibrated = c x (1 - m), + c0 x m where c0 is measured",
    ),
)

MISS_RATES: Final = (
    Definition(
        "Targets",
        "Three different figures, never mixed, at a stated K and headline level.",
        "miss_any@K = no gold in the first K; miss_some@K = some gold below K; miss_frac@K = 1 - R@K",
    ),
    Definition(
        "Stated miss rate",
        "Ridge logistic regression on signals of the question and its list, standardised on the strategy's own questions, shrunk towards shipped prior coefficients while outcomes are few; a calibrator is switched on only where it lowers the log loss out of fold. Folds never split a group.",
    ),
    Definition(
        "Brier score and skill",
        "Mean squared difference of prediction and outcome. Skill compares it with predicting, for every group, the miss rate of all other groups: 0 is the base rate, 1 perfect, below 0 worse than the base rate.",
        "Brier = mean (p - y)^2; skill = 1 - Brier / Brier of the base rate",
        "Brier (1950)",
    ),
    Definition(
        "CORP",
        "The reliability curve by isotonic regression of outcomes on predictions, which also splits the Brier score: miscalibration MCB, discrimination DSC, uncertainty UNC. The band is where 95 of 100 curves of calibrated predictions lie, at each place by itself.",
        "Brier = MCB - DSC + UNC",
        "Dimitriadis, Gneiting & Jordan (2021)",
    ),
    Definition(
        "smECE",
        "Calibration error without bins: residuals smoothed by a Gaussian kernel reflected at 0 and 1, at the bandwidth that equals the error.",
        "smECE = s where integral |mean of (y - p) K_s(t, p)| dt = s",
        "Błasiok & Nakkiran (2023)",
    ),
    Definition(
        "ECE and its null",
        "Weighted mean over bins of equal mass (one for every 20 outcomes, at most 15) of the distance between miss rate and mean prediction. Never 0 by chance, so it is held against errors of simulated calibrated outcomes of the same predictions, with the correlation inside groups; inside is at most their 95th percentile, raised for the number of figures checked together.",
        "ECE = sum over bins of weight x |miss rate - mean p|; level of each of m checks = 0.95^(1/m)",
        "Šidák (1967) for the level",
    ),
    Definition(
        "Slope and intercept",
        "Logistic recalibration of outcomes on the log odds of the predictions; 1 and 0 when calibrated, a slope under 1 means predictions too extreme. Near 1 is 0.8 to 1.25.",
        "logit P(missed) = intercept + slope x logit(p)",
        "Cox (1958)",
    ),
    Definition("AUROC", "Probability that a miss is predicted higher than a hit, ties half."),
    Definition(
        "Conformal K and its coverage",
        "The smallest K such that the stated share of new questions, like these and of this fingerprint, has gold in the first K: split conformal on the rank of the first gold, with groups as the exchangeable unit and a new group put at infinity. Also for expected recall, with K scaled by predicted risk, and with a K for each third of risk. Coverage is estimated on repeated random splits that hold out a third of the groups; it is an average over questions and may be lower among the riskiest, whose coverage stands beside.",
        "K = smallest rank that holds the level of all weight, a new group's at infinity",
        "Papadopoulos et al. (2002); Vovk et al. (2003); Lei et al. (2018); Dunn, Wasserman & Ramdas (2023); Angelopoulos et al. (2024)",
    ),
    Definition(
        "Status ladder",
        "absent, without questions; uncalibrated, a guess; prior, shipped coefficients and at least 50 questions; provisional, outcomes in at least 25 groups, misses and hits in at least 5 each, gold not only of this strategy; measured, outcomes in at least 200 groups, misses and hits in at least 30 each, the low end of the skill's interval above 0, ECE and smECE inside their null, slope of 0.8 to 1.25. Stale is what was provisional or measured, after another fingerprint, a drift alarm, or outcomes too old. Only provisional and measured rates discount an answer.",
    ),
    Definition(
        "Drift watch",
        "Two one-sided betting processes over groups of outcomes, for more and for fewer misses than predicted, with a tolerance of 5 points; any alarm, ever, has probability of 2 % at most while predictions hold.",
        "alarm when an e-value reaches 2 / 0.02 = 100",
        "Waudby-Smith & Ramdas (2024); Ville (1939)",
    ),
)

INFERENCE: Final = (
    Definition(
        "Intervals",
        "95 %. With 100 groups or more and a mean from 0.1 to 0.9, and for figures that are no rates: percentile bootstrap over groups, 10,000 resamples, seeded, its distances from the mean widened by t / z x sqrt(G / (G - 1)). Else the Wilson interval on the effective number of groups, which holds its coverage near 0 and 1 and with few groups. One group gives no interval.",
        "n effective = (v (1 - v) + 0.5 / K) / (variance + 0.5 / K^2), K = Kish's number of equal groups",
        "Wilson (1927); Dean & Pagano (2015)",
    ),
    Definition(
        "Intervals of calibration figures",
        "Bootstrap over groups, 2,000 resamples, of predictions for groups that were not fitted; not stated where more than 5 % of the resamples leave the figure undefined.",
    ),
    Definition(
        "Paired differences",
        "Mean over the questions that both were scored on. The test flips the sign of each group's summed difference at random, 10,000 times; better, worse and tied count questions. Where fewer than 10 groups differ, the interval adds one pseudo-group won and one lost.",
        "p = (1 + flips at least as extreme) / (1 + flips)",
        "Bonett & Price (2012) for the idea of the pseudo-groups",
    ),
    Definition(
        "Holm",
        "p values are adjusted over all comparisons shown, so that the chance of any false finding among them stays at 5 %.",
        "p_(i) x (m - i + 1), made rising, at most 1",
        "Holm (1979)",
    ),
    Definition(
        "Smallest detectable difference",
        "The true difference that this gold set would find with 80 % power at a two-sided 5 %. None where no question differs.",
        "(t_0.975 + t_0.8) x standard error of the difference",
    ),
    Definition(
        "Gates",
        "A floor must be reached by the low end of the interval, a ceiling kept by the high end; a figure without an interval is compared as it is. Too few groups, a missing figure and, for precision and nDCG, Judged@k under 0.5 are insufficient evidence, which a required gate does not pass.",
    ),
)

TRUST: Final = (
    Definition(
        "Trust",
        "Of a source, 0 to 1. A made-up domain or a signature that does not hold makes it 0. Freshness falls from 1 to 0.7 over a year of 365 days; dates that are missing or lie ahead give 0.7.",
        "trust = freshness x (0.4 allowed domain + 0.3 valid signature + 0.3 known author); freshness = max(0.7, 1 - 0.3 x age / 365)",
    ),
    Definition(
        "Average trust",
        "Mean trust of the first ten chunks of a list, mean over wordings and seeds inside the question, then over questions.",
    ),
    Definition(
        "Poisoning guard",
        "Rules over documents before indexing, and over pairs of question and chunk at retrieval: blocked, warned or clean, each with a reason code. Quarantine leaves blocked chunks out of the index and of every list.",
    ),
    Definition(
        "Latency",
        "Single queries for ten chunks, one at a time, spread evenly over the wordings, after one call that pays for loading; percentiles by linear interpolation. No interval.",
    ),
    Definition(
        "Cost of a thousand",
        "Mean tokens of a question at the configured price of embedding, and what a model was paid to answer. Local models and BM25 cost nothing.",
    ),
    Definition(
        "Cache hit rate",
        "Share of the texts that needed a vector and had one already.",
        "1 - embedded now / needed",
    ),
)

PARTS: Final = (
    ("Ranking", RANKING),
    ("Stability", STABILITY),
    ("Answers and citations", ANSWERS),
    ("Miss rates and their calibration", MISS_RATES),
    ("Intervals, tests and gates", INFERENCE),
    ("Trust, cost and latency", TRUST),
)
