#include <terrace/offload/plan/update_side.h>

#include <algorithm>

#include <terrace/offload/plan/memory_plan.h>

namespace terrace {
namespace {

// Calls body(chunk, elements, section) for every chunk that is trained.
template <typename Body>
void for_each_trainable(const SpaceLayout& space, Body body) {
  for (const Section& section : space.sections()) {
    if (!section.trainable || section.home == TensorHome::caller) continue;
    for (uint32_t i = 0; i < section.chunk_count; ++i)
      body(section.first_chunk + i, space.elements_of_chunk(section, i), section);
  }
}

// ChunkSeconds: how long the update of a chunk occupies each resource, in seconds.
struct ChunkSeconds {
  double processor = 0;
  double up = 0;
  double down = 0;
  double drives = 0;
};

class Costs {
 public:
  Costs(const OffloadOptions& options, const UpdateRates& rates)
      : options_(options),
        rates_(rates),
        record_bytes_(static_cast<double>(options.record_layout.tile_bytes()) / kTileElements) {
    if (options.states == Placement::nvme && rates.nvme_bytes > 0) drive_bytes_ = 2 * record_bytes_;
  }

  // The copies are those that DeviceLanes makes.
  ChunkSeconds of(double elements, const Section& section) const {
    const double parameter = bytes_of(section.type);
    const double gradient = bytes_of(held_gradient_type(section, options_));
    const bool made_there = options_.parameters == Placement::none;
    const bool has_old = options_.record_layout.master == MasterForm::remainder;
    const double up_bytes = record_bytes_ + gradient + (has_old && !made_there ? parameter : 0);
    const double down_bytes = record_bytes_ + (made_there ? 0 : parameter);
    return {.processor = elements / rates_.processor_elements,
            .up = elements * up_bytes / rates_.link_bytes,
            .down = elements * down_bytes / rates_.link_bytes,
            .drives = drive_bytes_ > 0 ? elements * drive_bytes_ / rates_.nvme_bytes : 0};
  }

 private:
  const OffloadOptions& options_;
  const UpdateRates& rates_;
  const double record_bytes_;  // per element
  double drive_bytes_ = 0;     // per element
};

// Sides: the times at which each resource is done with the chunks given so far.
class Sides {
 public:
  // Returns true if the chunk goes to the device.
  bool give(const ChunkSeconds& chunk) {
    const double begun = drives_;
    drives_ += chunk.drives;
    // An update begins no sooner than the drives begin with the chunk, and ends no sooner than they end.
    const auto done = [&](double before, double seconds) {
      return std::max(std::max(before, begun) + seconds, drives_);
    };
    const double here = done(processor_, chunk.processor);
    const double up = done(up_, chunk.up);
    const double down = done(down_, chunk.down);
    const bool to_device = std::max(up, down) < here;
    if (to_device) {
      up_ = up;
      down_ = down;
    } else {
      processor_ = here;
    }
    return to_device;
  }

 private:
  double drives_ = 0;
  double processor_ = 0;
  double up_ = 0;
  double down_ = 0;
};

std::vector<bool> divide_by_rates(const SpaceLayout& space, const OffloadOptions& options,
                                  const UpdateRates& rates) {
  std::vector<bool> on_device(space.chunk_count(), false);
  const Costs costs(options, rates);
  Sides sides;
  for_each_trainable(space, [&](uint32_t chunk, uint64_t elements, const Section& section) {
    on_device[chunk] = sides.give(costs.of(static_cast<double>(elements), section));
  });
  return on_device;
}

std::vector<bool> divide_by_share(const SpaceLayout& space, double processor_share) {
  std::vector<bool> on_device(space.chunk_count(), false);
  double all = 0;   // elements so far
  double here = 0;  // elements so far that the processor updates
  for_each_trainable(space, [&](uint32_t chunk, uint64_t chunk_elements, const Section&) {
    const auto elements = static_cast<double>(chunk_elements);
    all += elements;
    on_device[chunk] = processor_share * all - here < elements / 2;
    if (!on_device[chunk]) here += elements;
  });
  return on_device;
}

}  // namespace

std::vector<bool> updated_on_device(const SpaceLayout& space, const OffloadOptions& options) {
  if (options.states == Placement::none || (!options.update_rates && options.processor_share >= 1))
    return std::vector<bool>(space.chunk_count(), false);
  if (options.update_rates) return divide_by_rates(space, options, *options.update_rates);
  return divide_by_share(space, options.processor_share);
}

double share_of_processor(const SpaceLayout& space, const std::vector<bool>& on_device) {
  uint64_t all = 0;
  uint64_t here = 0;
  for_each_trainable(space, [&](uint32_t chunk, uint64_t elements, const Section&) {
    all += elements;
    if (!on_device[chunk]) here += elements;
  });
  return all == 0 ? 1 : static_cast<double>(here) / static_cast<double>(all);
}

}  // namespace terrace
