// GradientsOnNvme: gradients for which the host budget has no room. They are added up in a landing slot of
// SpilledGradients, into which the sum of earlier micro-batches was read back, and leave from there. Where
// all micro-batches of a step are open together (OffloadOptions::layer_major), a gradient stays in its
// landing slot from one micro-batch to the next, until the slot is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <terrace/memory/space/chunk_shards.h>
#include <terrace/offload/gradients/gradient_place.h>
#include <terrace/offload/gradients/spilled_gradients.h>
#include <terrace/offload/landing/gradient_arithmetic.h>

namespace terrace {

class GradientsOnNvme final : public GradientPlace {
 public:
  // All references outlive this.
  GradientsOnNvme(const ChunkShards& shards, GradientArithmetic& arithmetic, const AccumulationRules& rules,
                  SpilledGradients& spilled)
      : shards_(shards), arithmetic_(arithmetic), rules_(rules), spilled_(spilled) {}

  bool has(ChunkId chunk) const override { return spilled_.is_spilled(chunk); }
  void make_room(const GradientLanding& landing, Finish finish) override;
  std::byte* place_of_whole(ChunkId chunk) override { return rules_.accumulates ? nullptr : filled(chunk); }
  bool can_add(ChunkId chunk) const override { return spilled_.has_old(chunk); }
  void add(const GradientLanding& own, const std::byte* gradient, bool is_last) override;
  void add_zeros(const GradientLanding& landing, const GradientLanding& own, Finish finish) override;
  bool take(const GradientLanding& landing, const HandedPart& part, const EvictionContext& now,
            Finish finish) override;
  void finish(bool ends_step) override;
  bool is_complete(ChunkId chunk) const override { return spilled_.is_written(chunk); }
  std::byte* spare_slot(ChunkId) const override { return spilled_.spare_slot(); }

  DataType type(ChunkId chunk) const override { return rules_.type_in(shards_.space().section_of(chunk)); }
  std::byte* gradient(ChunkId chunk) override { return spilled_.opened(chunk); }
  bool is_held(ChunkId) const override { return false; }
  bool start_open(ChunkId chunk, io::Engine& engine) override { return spilled_.start_open(chunk, engine); }
  bool is_open(ChunkId chunk) const override { return spilled_.is_open(chunk); }
  void release(ChunkId chunk) override;
  std::optional<WaitSubject> opening_subject() const override { return spilled_.opening_subject(); }

  uint64_t landing_read_bytes() const override { return spilled_.landing_read_bytes(); }
  uint64_t landing_write_bytes() const override { return spilled_.landing_write_bytes(); }
  uint64_t opening_read_bytes() const override { return spilled_.opening_read_bytes(); }

 private:
  // The chunk's landing slot, with the sum of the earlier landings.
  std::byte* filled(ChunkId chunk);
  void sum_up(const GradientLanding& own, const std::byte* gradient, bool is_last);

  const ChunkShards& shards_;
  GradientArithmetic& arithmetic_;
  const AccumulationRules rules_;
  SpilledGradients& spilled_;
};

}  // namespace terrace
