// GradientStore: the gradients of a run between backward and update. A gradient comes from its device slot or
// from memory of the program, over GradientStaging, where RankSum adds what other ranks have; and it rests in
// the GradientPlace of its chunk. The three know nothing of each other. Where ranks pull, PulledGradients
// take the place of the first two.
//
// The step thread uses it; the thread of the update uses the functions of GradientSource.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <terrace/offload/gradients/gradient_place.h>
#include <terrace/offload/gradients/pulled_gradients.h>
#include <terrace/offload/landing/gradient_arithmetic.h>
#include <terrace/offload/landing/gradient_staging.h>
#include <terrace/offload/plan/rank_bytes.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {

// How a rank ends its step.
enum class StepEnd : uint8_t { update, give_up };

class GradientStore final : public GradientSource {
 public:
  // Places are made with the arithmetic; a chunk is in the last one that has it. `landing_slots` are free
  // between finish_micro_batch() and the next step.
  struct Parts {
    std::unique_ptr<GradientArithmetic> arithmetic;
    std::vector<std::unique_ptr<GradientPlace>> places;
    std::unique_ptr<GradientStaging> staging;  // null where ranks pull
    std::vector<std::byte*> landing_slots;
  };
  GradientStore(const FlatSpace& space, Parts parts);
  // What adds beside the step thread, where ranks pull.
  struct Adding {
    std::unique_ptr<StepWatch> watch;
    std::unique_ptr<Workers> workers;
    PulledGradients::Parts parts;
  };
  GradientStore(const FlatSpace& space, Parts parts, Adding adding);

  // Where ranks pull, as PulledGradients. agree() says on every rank which tensors have a gradient on any of
  // them, and that all end the step alike; all of it has been added, and its norm is not known yet.
  void begin_step() {
    if (pulled_ != nullptr) pulled_->begin_step();
  }
  void allow_step() {
    if (pulled_ != nullptr) pulled_->allow_step();
  }
  void agree(StepEnd end, GradientRuns& runs, const RunContext& run);

  // Starts a landing on its way; it is complete in the chunk's device slot, which is unpinned and given up.
  void land(const GradientLanding& landing);
  // Notes that the chunk has no gradient in the step and is not updated.
  void leave_out(ChunkId chunk) {
    if (pulled_ != nullptr) return;  // another rank may have one: agree()
    sums().set_zero(chunk);
    sums().forget(chunk);  // a step that was given up may have left it complete
  }
  // Lands zeros for a chunk without a slot, when its micro-batch has ended.
  void land_zero(const GradientLanding& landing);
  // Lands a part that was handed over (GradientPlace::take).
  void land_from(const GradientLanding& landing, const HandedPart& part, const EvictionContext& now);
  // Finishes the landings whose copies are over, while their bytes are still in a cache; never waits.
  void poll();
  // As RankSum, before this rank waits for others.
  void ask() {
    if (pulled_ == nullptr) parts_.staging->ask();
  }
  // Ends the open micro-batches (GradientPlace::finish, give_up).
  void finish_micro_batch(bool ends_step);
  void give_up(bool ends_step);

  // True if a gradient of the last micro-batch has landed and its sums are known.
  bool is_complete(ChunkId chunk) const { return place_of(chunk).is_complete(chunk); }
  // True if every element of the chunk's complete gradient is finite.
  bool is_finite(ChunkId chunk) const { return parts_.arithmetic->sums().is_finite(chunk); }
  // The norm over the whole flat space, in an order that depends on the flat space alone. All micro-batches
  // must be over.
  GradientNorm norm() const { return parts_.arithmetic->sums().norm(); }

  // Takes the sums of the blocks that hold these own elements of a complete gradient, which lies there.
  void take_sums(ChunkId chunk, uint64_t first_element, uint64_t count, const std::byte* gradient,
                 InstructionSet set);

  // True if the chunk's gradient of this step has displaced its parameters, and nothing has replaced them
  // yet.
  bool is_displaced(ChunkId chunk) const { return place_of(chunk).is_displaced(chunk); }
  // Says that every displaced chunk is getting new parameters or has its old ones again.
  void end_displacement();

  DataType type(ChunkId chunk) const override { return place_of(chunk).type(chunk); }
  std::byte* gradient(ChunkId chunk) override { return place_of(chunk).gradient(chunk); }
  const std::byte* tile(ChunkId chunk, uint64_t tile, std::byte* scratch) override {
    return place_of(chunk).tile(chunk, tile, scratch);
  }
  void open(ChunkId chunk) override { place_of(chunk).open(chunk); }
  void close(ChunkId chunk) override { place_of(chunk).close(chunk); }
  bool is_held(ChunkId chunk) const override { return place_of(chunk).is_held(chunk); }
  bool start_open(ChunkId chunk, io::Engine& engine) override {
    return place_of(chunk).start_open(chunk, engine);
  }
  bool is_open(ChunkId chunk) const override { return place_of(chunk).is_open(chunk); }
  void release(ChunkId chunk) override { place_of(chunk).release(chunk); }
  void put_back(ChunkId chunk) override { place_of(chunk).put_back(chunk); }
  std::optional<WaitSubject> opening_subject() const override;

  // Bytes copied to the device and from it so far, counted when requested.
  uint64_t h2d_bytes() const { return total(&GradientPlace::h2d_bytes); }
  uint64_t d2h_bytes() const {
    return pulled_ != nullptr ? pulled_->d2h_bytes() : parts_.staging->d2h_bytes();
  }
  // Of gradients, from other ranks and to them.
  RankBytes moved() const { return pulled_ != nullptr ? pulled_->moved() : parts_.staging->moved(); }
  // Bytes between nvme and the landing slots of spilled gradients.
  uint64_t landing_read_bytes() const { return total(&GradientPlace::landing_read_bytes); }
  uint64_t landing_write_bytes() const { return total(&GradientPlace::landing_write_bytes); }
  // Bytes read for updates so far; ask only while no update runs.
  uint64_t opening_read_bytes() const { return total(&GradientPlace::opening_read_bytes); }

  // A host slot that is free between finish_micro_batch() and the next step. It serves parameters on their
  // way out when gradients have another precision.
  std::byte* landing_slot(uint32_t index) const { return parts_.landing_slots[index]; }
  // A host slot for the parameters of a chunk without a slot of its own, between steps.
  std::byte* spare_slot(ChunkId chunk) const {
    return parts_.landing_slots.empty() ? place_of(chunk).spare_slot(chunk) : parts_.landing_slots[0];
  }

 private:
  GradientStore(const FlatSpace& space, Parts parts, std::unique_ptr<StepWatch> watch,
                std::unique_ptr<Workers> workers);
  GradientSums& sums() { return parts_.arithmetic->sums(); }
  GradientPlace& place_of(ChunkId chunk) const { return *place_of_[index_of(chunk)]; }
  uint64_t total(uint64_t (GradientPlace::*bytes)() const) const;
  auto adding() {
    return [this](const GradientLanding& own, const std::byte* gradient, bool is_last) {
      place_of(own.chunk).add(own, gradient, is_last);
    };
  }
  auto finishing() {
    return [this](ChunkId chunk) { parts_.staging->finish(chunk, adding()); };
  }

  const Parts parts_;
  std::vector<GradientPlace*> place_of_;  // by chunk
  const std::unique_ptr<StepWatch> adding_watch_;
  const std::unique_ptr<Workers> adding_workers_;
  std::unique_ptr<PulledGradients> pulled_;  // goes first, since it adds to the places
};

}  // namespace terrace
