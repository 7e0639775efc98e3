"""Models whose configs are in tests/golden/hf_configs: bytes by hand and parameters as published, by file."""

import pytest


def about(parameters):
    return pytest.approx(parameters, rel=0.02)


# FP16 bytes that one token adds over all layers (windows not yet full), by hand:
# GQA: 2 (key and value) * layers * kv heads * head_dim * 2 B; MLA: layers * (latent + rope) * 2 B;
# and published counts: the number of weights of the released checkpoint, or the figure of the model's report, `about`
# where only a rounded size is published
COUNTED = {
    "llama-2-7b": (2 * 32 * 32 * 128 * 2, 6_738_415_616),  # 524,288
    "llama-2-70b": (2 * 80 * 8 * 128 * 2, 68_976_648_192),  # 327,680
    "llama-3-8b": (2 * 32 * 8 * 128 * 2, 8_030_261_248),  # 131,072
    "llama-3.1-8b": (2 * 32 * 8 * 128 * 2, 8_030_261_248),
    "llama-3.1-70b": (2 * 80 * 8 * 128 * 2, 70_553_706_496),
    "llama-3.1-405b": (2 * 126 * 8 * 128 * 2, 405_853_388_800),  # 516,096
    "llama-3.2-1b": (2 * 16 * 8 * 64 * 2, 1_235_814_400),  # 32,768
    "llava-1.5-7b": (2 * 32 * 32 * 128 * 2, None),
    "mistral-7b-v0.1": (2 * 32 * 8 * 128 * 2, 7_241_732_096),
    "mistral-7b-v0.3": (2 * 32 * 8 * 128 * 2, 7_248_023_552),
    "mistral-nemo-12b": (2 * 40 * 8 * 128 * 2, 12.2e9),  # 163,840: head_dim 128, not 5120 / 32 = 160
    "mixtral-8x7b": (2 * 32 * 8 * 128 * 2, 46_702_792_704),
    "qwen-7b": (2 * 32 * 32 * 128 * 2, 7_721_324_544),
    "qwen2.5-7b": (2 * 28 * 4 * 128 * 2, 7_615_616_512),  # 57,344
    "qwen1.5-moe-a2.7b": (2 * 24 * 16 * 128 * 2, 14.3e9),  # 196,608
    "qwen3-8b": (2 * 36 * 8 * 128 * 2, 8_190_735_360),  # 147,456
    "qwen3-30b-a3b": (2 * 48 * 4 * 128 * 2, 30_532_122_624),  # 98,304: head_dim 128, not 2048 / 32 = 64
    "gemma-7b": (2 * 28 * 16 * 256 * 2, 8_537_680_896),  # 458,752: head_dim 256, not 3072 / 16 = 192
    "gemma-2-9b": (2 * 42 * 8 * 256 * 2, 9_241_705_984),  # 344,064
    # 139,264; Gemma 3 report, table 1: embedding and the rest, vision encoder apart
    "gemma-3-4b": (2 * 34 * 4 * 256 * 2, 675e6 + 3_209e6),
    # 18,432 and 57,344: the last 20 and 18 layers store nothing; the cards' 5.1B and 8B less 0.45B of encoders
    "gemma-4-e2b": ((12 * 256 + 3 * 512) * 1 * 2 * 2, about(4.65e9)),
    "gemma-4-e4b": ((20 * 256 + 4 * 512) * 2 * 2 * 2, about(7.55e9)),
    "gemma-3n-e4b": (2 * (35 - 15) * 2 * 256 * 2, None),  # 40,960: the last 15 layers store nothing
    "deepseek-v2": (60 * (512 + 64) * 2, 236e9),  # 69,120
    "deepseek-v2-lite": (27 * (512 + 64) * 2, 15.7e9),  # 31,104
    "deepseek-v3": (61 * (512 + 64) * 2, 671e9),  # 70,272; report: 671B without the multi-token prediction module
    "kimi-k2": (61 * (512 + 64) * 2, 1_026_408_232_448),
    "falcon-7b": (2 * 32 * 1 * 64 * 2, 6_921_720_704),  # 8,192
    "falcon-40b": (2 * 60 * 8 * 64 * 2, 41_303_293_952),  # 122,880
    "starcoderbase": (2 * 40 * 1 * 128 * 2, 15_517_456_384),  # 20,480
    "starcoder2-7b": (2 * 32 * 4 * 128 * 2, 7_173_923_840),  # 65,536
    "opt-6.7b": (2 * 32 * 32 * 128 * 2, 6_658_473_984),
    "opt-350m": (2 * 24 * 16 * 64 * 2, 331_196_416),  # 98,304
    "gpt2": (2 * 12 * 12 * 64 * 2, 124_439_808),  # 36,864
    "gpt-neo-1.3b": (2 * 24 * 16 * 128 * 2, 1_315_575_808),  # 196,608
    "gpt-j-6b": (2 * 28 * 16 * 256 * 2, 6_053_381_344),  # 458,752; GPT-J model card
    "pythia-6.9b": (2 * 32 * 32 * 128 * 2, 6_857_302_016),  # Pythia suite table
    "bloom-7b1": (2 * 30 * 32 * 128 * 2, 7_069_016_064),  # 491,520; BLOOM model card
    "mpt-7b": (2 * 32 * 32 * 128 * 2, 6_649_286_656),
    "dbrx": (2 * 40 * 8 * 128 * 2, 131_596_523_520),  # 163,840
    "phi-2": (2 * 32 * 32 * 80 * 2, 2_779_683_840),  # 327,680
    "phi-3-mini-4k": (2 * 32 * 32 * 96 * 2, 3_821_079_552),  # 393,216
    "command-r": (2 * 40 * 64 * 128 * 2, 34_980_831_232),  # 1,310,720
    "command-r7b": (2 * 32 * 8 * 128 * 2, 8.03e9),
    "gpt-oss-20b": (2 * 24 * 8 * 64 * 2, 20.9e9),  # 49,152
    "chatglm3-6b": (2 * 28 * 2 * 128 * 2, 6_243_584_000),  # 28,672
    "yi-6b": (2 * 32 * 4 * 128 * 2, 6_061_035_520),  # 65,536
    "yi-34b": (2 * 60 * 8 * 128 * 2, 34.4e9),  # 245,760
    "llama-30b": (2 * 60 * 52 * 128 * 2, 32.5e9),  # 1,597,440; LLaMA, table 2
    "qwen1.5-72b": (2 * 80 * 64 * 128 * 2, 72.3e9),  # 2,621,440: multi-head
    "qwen2.5-0.5b": (2 * 24 * 2 * 64 * 2, 494_032_768),  # 12,288
    "falcon-180b": (2 * 80 * 8 * 64 * 2, 179_522_565_120),  # 163,840; with an output head of its own
    "openelm-270m": (2 * (5 * 3 + 7 * 4 + 4 * 5) * 64 * 2, 271_527_168),  # 16,128
    "codellama-34b": (2 * 48 * 8 * 128 * 2, about(34e9)),
    "command-r-plus": (2 * 64 * 8 * 128 * 2, 104e9),
    "gemma-2-27b": (2 * 46 * 16 * 128 * 2, 27.227e9),
    "gemma-2-2b": (2 * 26 * 4 * 256 * 2, 2.614e9),
    "gemma-3-12b": (2 * 48 * 8 * 256 * 2, 11.771e9),
    "gemma-3-1b": (2 * 26 * 1 * 256 * 2, 1e9),
    "gemma-3-27b": (2 * 62 * 16 * 128 * 2, 27.016e9),
    "glm-4.5": (2 * 92 * 8 * 128 * 2, about(355e9)),
    "glm-4.5-air": (2 * 46 * 8 * 128 * 2, about(106e9)),
    "glm-4.7": (2 * 92 * 8 * 128 * 2, about(355e9)),
    "granite-3.1-2b": (2 * 40 * 8 * 64 * 2, about(2.5e9)),
    "granite-3.1-8b": (2 * 40 * 8 * 128 * 2, about(8.1e9)),
    "llama-3.2-3b": (2 * 28 * 8 * 128 * 2, 3.21e9),
    "ministral-8b": (2 * 36 * 8 * 128 * 2, 8_019_808_256),
    "mistral-large-2411": (2 * 88 * 8 * 128 * 2, 123e9),
    "mistral-small-22b": (2 * 56 * 8 * 128 * 2, about(22e9)),
    "mistral-small-24b": (2 * 40 * 8 * 128 * 2, about(24e9)),
    "mistral-small-3.1-24b": (2 * 40 * 8 * 128 * 2, about(24e9)),
    "qwen3-next-80b-a3b": (2 * 12 * 2 * 256 * 2, about(80e9)),
    "kimi-linear-48b-a3b": (7 * (512 + 64) * 2, about(49e9)),
    "kimi-vl-a3b": (27 * (512 + 64) * 2, about(16e9)),
    "exaone-4.0-32b": (2 * 64 * 8 * 128 * 2, about(32e9)),
    "mimo-vl-7b": (2 * 36 * 8 * 128 * 2, about(7.6e9)),
    "granite-4.1-3b": (2 * 40 * 8 * 64 * 2, 3_402_833_920),
    "granite-4.1-8b": (2 * 40 * 8 * 128 * 2, 8_380_944_384),
    "granite-4.1-30b": (2 * 64 * 8 * 128 * 2, 28_865_658_880),
    "devstral-2-123b": (2 * 88 * 8 * 128 * 2, about(123e9)),
    # 8 full layers of one head of 512, 40 windows of 8 heads of 256: one product makes keys and values, both are stored
    "gemma-4-12b": (2 * 8 * 1 * 512 * 2 + 2 * 40 * 8 * 256 * 2, about(12e9)),
    "qwen2.5-vl-3b": (2 * 36 * 2 * 128 * 2, 3.09e9),
    "qwen2.5-vl-7b": (2 * 28 * 4 * 128 * 2, 7.61e9),
    "qwen2.5-vl-32b": (2 * 64 * 8 * 128 * 2, about(32.5e9)),
    "qwen2.5-vl-72b": (2 * 80 * 8 * 128 * 2, 72.7e9),
    "glm-4-9b": (2 * 40 * 2 * 128 * 2, 9_399_951_360),
    "glm-4-32b": (2 * 61 * 2 * 128 * 2, about(32e9)),
    "codellama-7b": (2 * 32 * 32 * 128 * 2, 6_738_546_688),
    "codellama-13b": (2 * 40 * 40 * 128 * 2, 13_016_028_160),
    "ernie-4.5-300b-a47b": (2 * 54 * 8 * 128 * 2, about(300e9)),
    "olmo-2-13b": (2 * 40 * 40 * 128 * 2, 13_716_198_400),
    "phi-3-medium-4k": (2 * 40 * 10 * 128 * 2, 14e9),
    "phi-4": (2 * 40 * 10 * 128 * 2, 14_659_507_200),
    "phi-4-mini": (2 * 32 * 8 * 128 * 2, 3_836_021_760),
    "qwen2.5-1.5b": (2 * 28 * 2 * 128 * 2, 1.54e9),
    "qwen2.5-14b": (2 * 48 * 8 * 128 * 2, 14.7e9),
    "qwen2.5-32b": (2 * 64 * 8 * 128 * 2, about(32.5e9)),
    "qwen2.5-3b": (2 * 36 * 2 * 128 * 2, 3.09e9),
    "qwen2.5-72b": (2 * 80 * 8 * 128 * 2, 72.7e9),
    "qwen3-14b": (2 * 40 * 8 * 128 * 2, 14.8e9),
    "qwen3-4b": (2 * 36 * 8 * 128 * 2, about(4e9)),
    "smollm2-1.7b": (2 * 24 * 32 * 64 * 2, about(1.7e9)),
    # by hand, vision encoder apart: per layer attention 2*5120*(5120+1024), 16 or 128 experts and a shared one of
    # 3*5120*8192, router, 2 norms; Maverick has 24 dense layers of 3*5120*16384 instead
    "llama-4-scout": (
        2 * 48 * 8 * 128 * 2,
        48 * (62_914_560 + 17 * 125_829_120 + 16 * 5120 + 10_240) + 2 * 202_048 * 5120 + 5120,
    ),
    "llama-4-maverick": (
        2 * 48 * 8 * 128 * 2,
        24 * (62_914_560 + 129 * 125_829_120 + 128 * 5120 + 10_240)
        + 24 * (62_914_560 + 251_658_240 + 10_240)
        + 2 * 202_048 * 5120
        + 5120,
    ),
    # by hand: embeddings, 32 layers of attention 4*4096^2, FFN 3*4096*11008, two norms, query and key norms
    "olmo-2-7b": (2 * 32 * 32 * 128 * 2, 2 * 100_352 * 4096 + 32 * (67_108_864 + 135_266_304 + 8192 + 8192) + 4096),
    "glm-4.7-flash": (47 * (512 + 64) * 2, about(30e9)),
    "mistral-small-4-119b": (36 * (256 + 64) * 2, about(119e9)),
    "ernie-4.5-21b-a3b": (2 * 28 * 4 * 128 * 2, about(21.8e9)),  # 2,560 / 20 = 128
    "hy3": (2 * 80 * 8 * 128 * 2, about(295e9)),
    "solar-open-100b": (2 * 48 * 8 * 128 * 2, about(102.6e9)),
    "a.x-k1": (61 * (512 + 64) * 2, about(519e9)),
    "ministral-3-3b": (2 * 26 * 8 * 128 * 2, about(3.4e9)),
    "ministral-3-8b": (2 * 34 * 8 * 128 * 2, about(8.4e9)),
    "ministral-3-14b": (2 * 40 * 8 * 128 * 2, about(13.5e9)),
    # 6 layers of attention among 16, 8 among 30, 6 among 24; published: elements of the checkpoints' BF16 tensors
    "lfm2-350m": (2 * 6 * 8 * 64 * 2, 354_483_968),
    "lfm2-700m": (2 * 6 * 8 * 64 * 2, 742_489_344),
    "lfm2-1.2b": (2 * 6 * 8 * 64 * 2, 1_170_340_608),
    "lfm2-2.6b": (2 * 8 * 8 * 64 * 2, 2_569_272_320),
    "lfm2-8b-a1b": (2 * 6 * 8 * 64 * 2, 8_339_929_856),
    "lfm3-1.7b": (2 * 11 * 4 * 128 * 2, 1.728e9),  # 11 of 24 layers have attention
    "ling-3.0-flash": (7 * (512 + 64) * 2, 124.41e9),  # each sixth of 42 layers
    "qwen3.5-4b": (2 * 8 * 4 * 256 * 2, 4.12e9),
    "qwen3.5-9b": (2 * 8 * 4 * 256 * 2, 8.82e9),  # each fourth of 32 layers
    "nemotron-nano-12b-v2": (2 * 6 * 8 * 128 * 2, about(12.31e9)),
    "seed-oss-36b": (2 * 64 * 8 * 128 * 2, about(36e9)),
    "granite-4.0-h-small": (2 * 4 * 8 * 128 * 2, about(32e9)),
    # 54 layers with a rotary part, 18 without; 9 of these read the latent of layer 35
    "mistral-large-4": ((54 * (512 + 64) + (18 - 9) * 512) * 2, about(1050e9)),
    "glm-5.3-flash": (11 * 512 * 2, 312.8e9),  # 34 of 45 layers have states; no rotary part
    "longcat-flash": (2 * 28 * (512 + 64) * 2, about(560e9)),  # two layers of attention in each of 28
    "muse-spark": (2 * 62 * 16 * 64 * 2, about(816e9)),
    "olmo-hybrid-7b": (2 * 8 * 30 * 128 * 2, 7.43e9),  # each fourth of 32 layers
    "llama-3.1-nemotron-ultra-253b": (2 * 64 * 8 * 128 * 2, about(253e9)),  # 64 of 162 layers have attention
    "tinyllama-1.1b": (2 * 22 * 4 * 64 * 2, about(1.1e9)),
}
