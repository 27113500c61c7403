// The other half of compare.py: passes of a model over one sequence, with everything in memory, on demand.
//
//   compute_step CONFIG_JSON TYPE THREADS SEQUENCE
//
// TYPE is that of parameters, gradients and the operands of products. For every line on stdin it runs one
// micro-batch forward and backward and prints a line: seconds, loss, and the peak of its work memory in
// bytes.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/reference/model/compute/counter_random.h>
#include <terrace/reference/model/compute/host_ops.h>
#include <terrace/reference/model/transformer/model.h>

#include "support/in_memory_parameters.h"
#include "support/work_memory.h"

namespace terrace {
namespace {

DataType type_of(const std::string& name) {
  for (const DataType type : {DataType::fp32, DataType::bf16}) {
    if (name == name_of(type)) return type;
  }
  throw Error(ErrorKind::config, {"no type of parameters", name, "it is not fp32 or bf16", ""});
}

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<int32_t> random_tokens(const ModelConfig& config, uint32_t count, uint64_t stream) {
  std::vector<int32_t> tokens;
  for (uint32_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(random_bits({.seed = 3, .stream = stream}, i) % config.vocabulary));
  return tokens;
}

void run(const std::vector<std::string>& arguments) {
  const auto sequence = static_cast<uint32_t>(std::stoul(arguments[3]));
  ModelConfig config = parse_model_config(text_of(arguments[0]), arguments[0]);
  config.context = sequence;
  ModelOptions options;
  options.type = type_of(arguments[1]);
  options.checkpoint_activations = false;
  const std::unique_ptr<Model> model = make_model(config, options);
  testing::InMemoryParameters parameters(
      model->tensors(),
      [&](TensorId id, uint64_t first, std::span<float> out) { model->initial_values(id, first, out); });
  const std::vector<int32_t> tokens = random_tokens(config, sequence, 0),
                             targets = random_tokens(config, sequence, 1);
  const MicroBatch batch{tokens, targets, 1, sequence};
  Workers workers(std::stoul(arguments[2]));
  const ProductType products = options.type == DataType::bf16 ? ProductType::bf16 : ProductType::fp32;
  const HostOps ops(workers, best_instruction_set(), products);
  StackArena dry = StackArena::dry_run();
  model->train_micro_batch(HostOps(workers, best_instruction_set(), products, true), parameters, dry, batch,
                           1.0f, "");
  testing::WorkMemory work(dry.peak_bytes());
  const SteadyClock clock;
  for (std::string line; std::getline(std::cin, line);) {
    parameters.begin_micro_batch();
    const uint64_t begin = clock.now_ns();
    const float loss = model->train_micro_batch(ops, parameters, work.arena(), batch, 1.0f, "");
    fmt::print("{} {} {}\n", static_cast<double>(clock.now_ns() - begin) * 1e-9, loss,
               work.arena().peak_bytes());
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "compute_step CONFIG_JSON TYPE THREADS SEQUENCE\n");
    return 2;
  }
  try {
    terrace::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
