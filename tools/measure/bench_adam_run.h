// The measurements of `terrace bench adam` after its flags have been checked: an optimizer's kernel and
// simple in-place kernels in turn over the same memory. The code here must never print except to the given
// console.
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

  // Returns true if parameters are written over the gradients. Training does so if their sizes agree and
  // nothing else is to be read there.
  bool over_gradients() const;
  // Returns the bytes that the kernel reads and writes per parameter.
  double bytes_per_parameter() const;
  // Returns the memory of the whole measurement.
  uint64_t memory_bytes() const;
};

// Each simple kernel reads, changes and writes this many streams in place.
inline constexpr std::array<size_t, 3> kStreamCounts = {1, 3, 4};

// AdamThreads: the results of one number of threads, one value per round.
struct AdamThreads {
  uint64_t threads = 0;
  uint64_t bound = 0;  // threads that have a processor of their own
  std::array<std::vector<double>, kStreamCounts.size()> stream_bytes_per_second;
  std::vector<std::vector<double>> kernel_seconds;  // seconds of one pass, by instruction set and round
};

// Returns one entry for each number of threads. Every round measures everything once, so that all see the
// same machine. Throws any failure.
std::vector<AdamThreads> measure_adam(const AdamPlan& plan, Console& console);

}  // namespace terrace
