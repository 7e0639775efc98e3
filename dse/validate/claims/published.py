"""Tables of the papers that some claims start from: inputs, as printed. Nothing here is a result of ours."""

#: Oaken, Table 2: perplexity on WikiText-2 of Llama2-7B, 13B, 70B, OPT-6.7B, 13B, 30B, Mistral-7B, Mixtral-8x7B
OAKEN_PERPLEXITY = {
    "FP16": (5.47, 4.88, 3.32, 10.86, 10.13, 9.56, 5.25, 3.84),
    "Oaken": (5.53, 4.93, 3.34, 10.88, 10.16, 9.58, 5.35, 3.90),
}

#: Oaken, Table 2: zero-shot accuracy in percent; PIQA, WinoGrande, HellaSwag, each of Llama2-7B, 13B, 70B
OAKEN_ZERO_SHOT = {
    "FP16": (79.05, 80.52, 82.70, 69.13, 72.80, 80.20, 75.98, 79.38, 83.82),
    "KVQuant": (78.35, 79.33, 82.21, 67.80, 71.74, 77.98, 75.82, 79.25, 83.70),
    "KIVI": (78.07, 79.05, 78.07, 67.84, 70.96, 76.81, 75.57, 78.97, 83.47),
    "QServe": (77.37, 77.48, 81.77, 65.29, 66.80, 76.09, 74.41, 76.69, 83.24),
    "Oaken": (78.29, 79.71, 82.59, 67.64, 70.56, 76.64, 73.72, 78.24, 83.50),
}

#: NQKV, Table 4: (model, batch, prompt tokens) -> throughput in token/s and peak memory in GB of SmoothQuant without KV
#: cache, SmoothQuant with an INT8 KV cache, and NQKV; None: out of memory. 338 tokens are generated.
NQKV_TABLE_4: dict[tuple[str, int, int], tuple[tuple[float | None, ...], tuple[float | None, ...]]] = {
    ("opt-6.7b", 8, 128): ((45.55, 139.78, 118.69), (7.42, 8.28, 6.92)),
    ("opt-6.7b", 8, 512): ((18.17, 103.94, 91.38), (8.95, 9.84, 7.91)),
    ("opt-6.7b", 32, 128): ((57.65, 275.48, 258.13), (9.07, 11.96, 8.39)),
    ("opt-6.7b", 32, 512): ((19.63, 151.97, 131.86), (14.41, 18.28, 12.41)),
    ("opt-6.7b", 64, 128): ((58.53, 311.23, 289.31), (14.46, 21.39, 15.39)),
    ("opt-6.7b", 64, 512): ((20.61, 172.28, 153.64), (26.72, 33.73, 18.40)),
    ("opt-30b", 8, 128): ((14.07, 85.02, 70.84), (29.97, 33.43, 29.76)),
    ("opt-30b", 8, 512): ((5.55, 59.88, 51.68), (32.43, 37.36, 31.87)),
    ("opt-30b", 32, 128): ((19.66, 97.14, 93.26), (32.00, 42.19, 33.50)),
    ("opt-30b", 32, 512): ((6.21, 60.32, 54.27), (40.26, 58.23, 41.97)),
    ("opt-30b", 64, 128): ((18.36, 112.79, 98.91), (40.45, 67.50, 41.53)),
    ("opt-30b", 64, 512): ((5.71, None, 53.10), (60.12, None, 62.49)),
}
NQKV_OUTPUT_TOKENS = 338

#: NQKV, Table 3: OPT-30B under SmoothQuant without and with NQKV on PIQA, HellaSwag and ARC Challenge, in percent
NQKV_OPT_30B = ((77.53, 77.48), (54.04, 53.94), (34.39, 34.13))

#: SinkQ, Table 8: GSM8K 8-shot, 8-CoT, 0-CoT, BBH 3-shot, 3-CoT, 0-CoT, HumanEval pass@1, pass@10, in percent
SINKQ_TABLE_8 = {
    "FP16": (21.99, 21.3, 24.11, 33.34, 40.21, 35.00, 12.19, 17.07),
    "KIVI": (16.3, 17.51, 21.61, 32.48, 34, 33.30, 9.75, 12.19),
    "SinkQ": (19.86, 19.33, 22.52, 33.33, 34.43, 33.74, 11.58, 14.63),
    "ZipCache": (15.92, 17.74, 20.02, 32.85, 33.9, 32.35, 9.45, 15.24),
}
#: SinkQ, Table 1: its own row of the same model and benchmarks, in the order of Table 8
SINKQ_TABLE_1 = (21.38, 18.20, 22.59, 33.36, 35.17, 34.25, 11.58, 14.63)
#: SinkQ 4.3: compression at G = 128, as measured by its authors
SINKQ_COMPRESSION_G128 = 6.4
