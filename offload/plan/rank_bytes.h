// RankBytes: what a rank receives and sends where the shares of a chunk come together on all ranks, and where
// gradients go to the owners of shares; and what of this crosses between hosts. Pure arithmetic: the sums of
// docs/ranks.md for the shares as they are.
#pragma once

#include <cstdint>

#include <terrace/base/data_type.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/offload/options/step_rounds.h>
#include <terrace/optimizer_cpu/quantization.h>

namespace terrace {

struct RankBytes {
  uint64_t in = 0;
  uint64_t out = 0;
  uint64_t between_in = 0;  // of these, from other hosts and to them
  uint64_t between_out = 0;

  RankBytes& operator+=(const RankBytes& more) {
    in += more.in, out += more.out;
    between_in += more.between_in, between_out += more.between_out;
    return *this;
  }
};

// The bits that parameters of the section are rounded to: trained ones of 16 bits are.
inline uint32_t bits_of(const Section& section, uint32_t parameter_bits) {
  return section.trainable && section.type != DataType::fp32 ? parameter_bits : 0;
}

// Of the parameters of a chunk that are gathered once, and cross between hosts in so many bits
// (OffloadOptions::parameter_bits). `crossing` are the ranks of this one's place among which shares cross: of
// all hosts, or of those whose shares are not kept.
RankBytes gather_bytes(const ChunkShards& shards, const HostLayout& hosts, ChunkId chunk,
                       uint32_t parameter_bits, const RankGroup& crossing);
// Of the gradients of a chunk in a step, all of which land at once in each round.
RankBytes exchange_bytes(const ChunkShards& shards, const StepRounds& rounds, ChunkId chunk,
                         DataType sum_type);
// What is added to the own share of a chunk in a step: gradients, and the sums of other hosts' groups.
uint64_t bytes_added(const ChunkShards& shards, const StepRounds& rounds, ChunkId chunk, DataType sum_type);

}  // namespace terrace
