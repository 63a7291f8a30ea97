"""Where a request's sampling lies in the tensors sampling.ints and sampling.floats: for whoever writes them, for every kernel that
reads them, and for scripted devices. docs/plan.md and docs/sampling.md say what the numbers mean.
"""

SEED_LOW, SEED_HIGH, TOP_K, PROMPT_LEN, MIN_LEN, NUM_STOPS, FLAGS, NUM_BANNED = range(8)  # elements of ints
FIRST_STOP, MAX_STOPS = 16, 32  # the first element of stop ids; how many fit
INVERSE_T, TOP_P, MIN_P, REPETITION, FREQUENCY, PRESENCE = range(6)  # elements of floats
NOISE, BIAS, MASK, PENALTIES, BANNED, BLOCK_RULE = 1, 2, 4, 8, 16, 32  # bits of element FLAGS
BAN = -3e38  # a bias that leaves no chance, and what a dropped id's value is
LEAST = -1e30  # a logit that is brought below this cannot be chosen
