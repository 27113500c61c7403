// What `terrace bench adam` does once its flags have been checked: an optimizer's kernel and simple in-place
// kernels in turn over the same memory. It must never print but to the console it is given.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/base/record_layout.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/optimizer.h>

#include "console.h"

namespace terrace {

struct AdamPlan {
  uint64_t elements = 0;  // whole tiles
  std::string optimizer;  // as it was given
  OptimizerSettings settings;
  RecordLayout layout;
  DataType gradient_type = DataType::bf16;
  DataType parameter_type = DataType::bf16;
  std::vector<uint64_t> threads;
  std::vector<InstructionSet> sets;
  uint64_t rounds = 0;

  // Parameters are written over the gradients, as training does it where their sizes agree and nothing else
  // is to be read there.
  bool over_gradients() const;
  // Read and written by the kernel, per parameter.
  double bytes_per_parameter() const;
  // Of memory, for all of it.
  uint64_t memory_bytes() const;
};

// The simple kernels: so many streams are read, changed and written in place.
inline constexpr std::array<size_t, 3> kStreamCounts = {1, 3, 4};

// Of one number of threads: one value per round.
struct AdamThreads {
  uint64_t threads = 0;
  uint64_t bound = 0;  // threads that have a processor of their own
  std::array<std::vector<double>, kStreamCounts.size()> stream_bytes_per_second;
  std::vector<std::vector<double>> kernel_seconds;  // of one pass, by instruction set
};

// One entry for each number of threads. In every round everything is measured once, so that all of it sees
// the same machine. Throws what goes wrong.
std::vector<AdamThreads> measure_adam(const AdamPlan& plan, Console& console);

}  // namespace terrace
