// What a choice of other programs is here: "theirs=ours|...", for KeyLimits::instead.
#pragma once

#include <string_view>

namespace terrace {

// What there is here in the place of optimizers and schedulers of DeepSpeed, torch and Hugging Face. Without
// compressed communication, which one process does not need, 1-bit and 0/1 Adam are Adam.
inline constexpr std::string_view kOtherOptimizers =
    "OneBitAdam=Adam|ZeroOneAdam=Adam|OneBitLamb=AdamW|Lamb=AdamW|MuAdam=Adam|MuAdamW=AdamW|"
    "MuSGD=SGD|FusedAdam=Adam|DeepSpeedCPUAdam=Adam|CPUAdam=Adam|FusedLion=Lion|FusedLamb=AdamW|"
    "torch.optim.Adam=Adam|torch.optim.AdamW=AdamW|torch.optim.SGD=SGD|adamw_torch=AdamW|"
    "adamw_torch_fused=AdamW|adamw_hf=AdamW|Adam8bit=AdamW|AdamW8bit=AdamW|adamw_bnb_8bit=AdamW|"
    "Adafactor=AdamW|RAdam=AdamW|NAdam=AdamW|RMSprop=AdamW|LARS=SGD";
inline constexpr std::string_view kOtherSchedulers =
    "CosineAnnealingLR=WarmupCosineLR|cosine=WarmupCosineLR|cosine_with_restarts=WarmupCosineLR|"
    "CosineLR=WarmupCosineLR|LinearLR=WarmupDecayLR|polynomial=WarmupDecayLR|"
    "PolynomialLR=WarmupDecayLR|constant_with_warmup=WarmupLR|constant=WarmupLR|ConstantLR=WarmupLR|"
    "OneCycleLR=OneCycle|CyclicLR=OneCycle";

}  // namespace terrace
