#include "flags/flag_synonyms.h"

#include <algorithm>
#include <iterator>

namespace terrace {
namespace {

struct Synonym {
  std::string_view flag;
  std::string_view meant;
};

// The flags are those of transformers, DeepSpeed, torchtune, axolotl, nanoGPT and llm.c.
constexpr Synonym kSynonyms[] = {
    {"--learning-rate", "--lr"},
    {"--output-dir", "--save"},
    {"--out-dir", "--save"},
    {"--checkpoint-dir", "--save"},
    {"--max-steps", "--steps"},
    {"--max-iters", "--steps"},
    {"--num-steps", "--steps"},
    {"--num-train-epochs", "--epochs"},
    {"--num-epochs", "--epochs"},
    {"--batch-size", "--micro-batch"},
    {"--micro-batch-size", "--micro-batch"},
    {"--train-batch-size", "--micro-batch"},
    {"--per-device-train-batch-size", "--micro-batch"},
    {"--gradient-accumulation-steps", "--accumulation"},
    {"--grad-accum", "--accumulation"},
    {"--max-seq-length", "--context"},
    {"--max-seq-len", "--context"},
    {"--seq-length", "--context"},
    {"--seq-len", "--context"},
    {"--sequence-length", "--context"},
    {"--block-size", "--context"},
    {"--model-max-length", "--context"},
    {"--gpu-compute", "--compute"},
    {"--deepspeed", "--config"},
    {"--deepspeed-config", "--config"},
    {"--ds-config", "--config"},
    {"--resume-from-checkpoint", "--resume"},
    {"--resume-from", "--resume"},
    {"--dataset", "--data"},
    {"--dataset-name", "--data"},
    {"--train-file", "--data"},
    {"--train-data", "--data"},
    {"--data-path", "--data"},
    {"--model-name-or-path", "--model"},
    {"--model-name", "--model"},
    {"--pretrained", "--model"},
    {"--tokenizer-name", "--tokenizer"},
    {"--save-steps", "--save-every"},
    {"--save-interval", "--save-every"},
    {"--save-total-limit", "--keep-last"},
    {"--eval-steps", "--eval-every"},
    {"--eval-interval", "--eval-every"},
    {"--optim", "--optimizer"},
    {"--num-threads", "--threads"},
    {"--gpu-memory", "--device-memory"},
    {"--cpu-memory", "--host-memory"},
    {"--offload-params", "--offload-param"},
    {"--offload-opt", "--offload-optimizer"},
    {"--offload-folder", "--nvme-path"},
    {"--nvme-dir", "--nvme-path"},
    {"--debug", "--verbose"},
    {"-v", "--verbose"},
    {"--workers", "--threads"},
    {"--num-workers", "--threads"},
    {"--wandb",
     "tensorboard or csv_monitor in the file of --config, or --log FILE; wandb works in Python only"},
    {"--wandb-project",
     "tensorboard or csv_monitor in the file of --config, or --log FILE; wandb works in Python only"},
    {"--report-to", "tensorboard or csv_monitor in the file of --config, or --log FILE"},
    {"--gpus", "terrace launch -n N -- train ..., a rank for each GPU"},
    {"--num-gpus", "terrace launch -n N -- train ..., a rank for each GPU"},
    {"--nproc-per-node", "terrace launch -n N -- train ..."},
    {"--local-rank", "what the launcher says in its environment: mpirun, torchrun and terrace launch do"},
    {"--bf16", "bf16.enabled in the file of --config, {\"bf16\": {\"enabled\": true}}"},
    {"--fp16", "fp16.enabled in the file of --config, {\"fp16\": {\"enabled\": true}}"},
    {"--dtype", "bf16.enabled or fp16.enabled in the file of --config"},
    {"--weight-decay", "optimizer.params.weight_decay in the file of --config"},
    {"--max-grad-norm", "gradient_clipping in the file of --config"},
    {"--grad-clip", "gradient_clipping in the file of --config"},
    {"--warmup", "scheduler in the file of --config"},
    {"--warmup-steps", "scheduler in the file of --config"},
    {"--warmup-ratio", "scheduler in the file of --config"},
    {"--warmup-iters", "scheduler in the file of --config"},
    {"--lr-scheduler", "scheduler in the file of --config"},
    {"--lr-scheduler-type", "scheduler in the file of --config"},
    {"--lora", "terrace.lora in the file of --config, {\"terrace\": {\"lora\": {\"rank\": 8}}}"},
    {"--lora-r", "terrace.lora in the file of --config, {\"terrace\": {\"lora\": {\"rank\": 8}}}"},
    {"--gradient-checkpointing", "activation_checkpointing in the file of --config"},
    {"--dry-run", "terrace plan, which takes the same flags"},
    {"--quiet", "2>/dev/null: the result goes to stdout, everything else to stderr"},
};

}  // namespace

std::string_view synonym_of(std::string_view flag) {
  const auto found = std::find_if(std::begin(kSynonyms), std::end(kSynonyms),
                                  [&](const Synonym& synonym) { return synonym.flag == flag; });
  return found == std::end(kSynonyms) ? std::string_view() : found->meant;
}

}  // namespace terrace
