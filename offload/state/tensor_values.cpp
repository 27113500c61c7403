// The part of TrainingState that reads and writes values of single tensors where they lie: of every chunk
// only the blocks that hold them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <terrace/base/checksum.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/offload/state/gradient_values.h>
#include <terrace/offload/state/state_blocks.h>
#include <terrace/offload/state/step_boundary.h>
#include <terrace/offload/state/tensor_runs.h>
#include <terrace/offload/state/training_state.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/masters.h>
#include <terrace/optimizer_cpu/moment_codes.h>
#include <terrace/optimizer_cpu/quantization.h>

namespace terrace {
namespace {

// The part of a run that lies in one tile.
struct TilePart {
  std::byte* tile;         // the record
  uint64_t first_element;  // in the tile
  uint64_t count;
  uint64_t at;     // of the caller's values
  uint64_t place;  // of its first element, from the first own element
};

// Calls body(chunk) for each chunk in which `count` elements of the tensor from `first` on lie, in part.
template <typename Body>
void for_each_chunk(const FlatSpace& space, TensorId tensor, uint64_t first, uint64_t count, Body body) {
  const TensorPlace& place = space.place(tensor);
  for (uint32_t c = place.first_chunk; c < place.first_chunk + place.chunk_count; ++c) {
    const FlatSpace::Part part = space.part_of(tensor, ChunkId{c});
    if (part.first_in_tensor < first + count && first < part.first_in_tensor + part.elements)
      body(ChunkId{c});
  }
}

constexpr bool is_moment(ValueKind what) {
  return what == ValueKind::first_moment || what == ValueKind::second_moment;
}

constexpr uint32_t moment_of(ValueKind what) {
  return what == ValueKind::first_moment ? 0 : 1;
}

// Calls body(part) for each tile of records that `run` has elements in, a block of them in host memory at a
// time; with `changes` it goes back from there.
template <typename Body>
void for_each_tile(StateBlocks& blocks, const TensorRun& run, bool changes, Body body) {
  RecordStore& records = blocks.homes().records;
  const RingBlock bounce(blocks.ring());
  const uint64_t tile_bytes = blocks.run().plan.record_layout.tile_bytes();
  const uint64_t block_tiles = bounce.memory().size() / tile_bytes;
  const uint64_t chunk_tiles = blocks.run().shards.own(run.chunk).tile_count;
  const uint64_t last_tile = divide_up(run.first_element + run.count, kTileElements);
  uint64_t tile = run.first_element / kTileElements;
  while (tile < last_tile) {
    const uint64_t block = tile / block_tiles * block_tiles;
    const uint64_t block_end = std::min(block + block_tiles, chunk_tiles);
    const uint64_t end = std::min(block_end, last_tile);
    // A block on nvme moves as a whole.
    const bool whole = records.is_streamed(run.chunk);
    const uint64_t first = whole ? block : tile;
    const std::span<std::byte> memory =
        bounce.memory().first(((whole ? block_end : end) - first) * tile_bytes);
    records.read(run.chunk, first, memory);
    for (; tile < end; ++tile) {
      const uint64_t begin = std::max(run.first_element, tile * kTileElements);
      const uint64_t after = std::min(run.first_element + run.count, (tile + 1) * kTileElements);
      body(TilePart{memory.data() + (tile - first) * tile_bytes, begin - tile * kTileElements, after - begin,
                    run.at + begin - run.first_element, begin});
    }
    if (!changes) continue;
    BlockTransfer write;
    records.start_write(run.chunk, first, memory, write);
    write.finish(blocks.run().watch);
  }
}

uint64_t sum_of_write(TensorId tensor, ValueKind what, uint64_t first_element,
                      std::span<const float> values) {
  const std::array<uint64_t, 4> parts{index_of(tensor), static_cast<uint64_t>(what), first_element,
                                      checksum_of(std::as_bytes(values))};
  return checksum_of(std::as_bytes(std::span(parts)));
}

}  // namespace

std::string_view name_of(ValueKind kind) {
  constexpr std::array<std::string_view, 5> kNames = {"parameter", "master", "first moment", "second moment",
                                                      "gradient"};
  return kNames[static_cast<size_t>(kind)];
}

void TrainingState::require_values(std::string_view action, TensorId tensor, ValueKind what,
                                   uint64_t first_element, uint64_t count) const {
  const RunContext& run = blocks_.run();
  const auto refuse = [&](std::string subject, std::string reason, std::string advice) {
    throw Error(ErrorKind::misuse,
                {std::string(action), std::move(subject), std::move(reason), std::move(advice)});
  };
  if (index_of(tensor) >= run.space.tensor_count())
    refuse(fmt::format("tensor {}", index_of(tensor)), fmt::format("there are {}", run.space.tensor_count()),
           "name a tensor of the list that the Offloader was made with");
  const TensorSpec& spec = run.space.tensor(tensor);
  const uint64_t elements = run.space.place(tensor).elements;
  if (first_element > elements || count > elements - first_element)
    refuse(spec.name,
           fmt::format("it has {} elements, and {} from element {} on are not among them", elements, count,
                       first_element),
           "stay within the tensor");
  if (what != ValueKind::parameter && !spec.trainable)
    refuse(spec.name, fmt::format("it is frozen and has no {}", name_of(what)), "name its parameter");
  const RecordLayout& layout = run.plan.record_layout;
  if (is_moment(what) && moment_of(what) >= layout.moment_count)
    refuse(spec.name, fmt::format("the optimizer keeps {}", text_of(layout)),
           fmt::format("leave the {} out", name_of(what)));
}

namespace {

// The moments of the part, which are as many as `values`.
void read_moments(const RunContext& context, const TilePart& part, uint32_t moment, std::span<float> values) {
  const RecordLayout& layout = context.plan.record_layout;
  if (layout.has_codes()) return read_moment_codes(layout, part.tile, moment, part.first_element, values);
  convert_to_float(
      context.instruction_set,
      part.tile + layout.moment_offset(moment) + part.first_element * bytes_of(layout.moment_type),
      number_type_of(layout.moment_type), values.data(), values.size());
}

}  // namespace

void TrainingState::read_values(TensorId tensor, ValueKind what, uint64_t first_element,
                                std::span<float> values) {
  require_values("cannot read values of", tensor, what, first_element, values.size());
  if (what == ValueKind::gradient) {
    boundary_.require_whole_step("cannot read a gradient of");
    return GradientValues(blocks_.run(), blocks_.homes().gradients).read(tensor, first_element, values);
  }
  static_cast<void>(boundary_.whole("cannot read values of"));
  const RunContext& context = blocks_.run();
  if (context.options.dry) {
    std::ranges::fill(values, 0.0f);
    return;
  }
  const RecordLayout& layout = context.plan.record_layout;
  const DataType type = context.space.tensor(tensor).type;
  for_each_run(
      context.shards, context.shards.rank(), tensor, first_element, values.size(), [&](const TensorRun& run) {
        const std::byte* parameters = nullptr;
        if (what == ValueKind::parameter || (what == ValueKind::master && context.is_compact()))
          parameters = blocks_.parameters_around(run.chunk, run.first_element, run.count);
        if (what == ValueKind::parameter)
          return convert_to_float(context.instruction_set, parameters + run.first_element * bytes_of(type),
                                  type, values.data() + run.at, run.count);
        for_each_tile(blocks_, run, false, [&](const TilePart& part) {
          float* const to = values.data() + part.at;
          if (is_moment(what)) {
            read_moments(context, part, moment_of(what), {to, part.count});
          } else if (context.is_compact()) {
            join_masters(context.instruction_set, layout.master, parameters + part.place * bytes_of(type),
                         part.tile + part.first_element * master_bytes_of(layout.master),
                         reinterpret_cast<std::byte*>(to), part.count);
          } else {
            std::memcpy(to, part.tile + part.first_element * sizeof(float), part.count * sizeof(float));
          }
        });
      });
  share_elements(context, tensor, first_element, std::as_writable_bytes(values), sizeof(float));
}

void TrainingState::read_parameter(TensorId tensor, std::span<std::byte> destination) {
  static_cast<void>(boundary_.whole("cannot read a parameter of"));
  const FlatSpace& space = blocks_.run().space;
  const TensorPlace& place = space.place(tensor);
  const uint64_t element_bytes = bytes_of(space.tensor(tensor).type);
  if (destination.size() < place.elements * element_bytes)
    throw Error(ErrorKind::misuse, {"cannot read the parameter", space.tensor(tensor).name,
                                    fmt::format("it has {} bytes, and there is room for {}",
                                                place.elements * element_bytes, destination.size()),
                                    "give it room for all of its elements, in its own precision"});
  const RunContext& context = blocks_.run();
  for_each_run(context.shards, context.shards.rank(), tensor, 0, place.elements, [&](const TensorRun& run) {
    const std::byte* const parameters = blocks_.parameters_of(run.chunk);
    std::memcpy(destination.data() + run.at * element_bytes, parameters + run.first_element * element_bytes,
                run.count * element_bytes);
  });
  share_elements(context, tensor, 0, destination.first(place.elements * element_bytes), element_bytes);
}

// Of the frozen parameters that a commit holds the tier keeps both versions until the next one.
void TrainingState::require_room_beside_commit(TensorId tensor, uint64_t first_element,
                                               uint64_t count) const {
  const RunContext& context = blocks_.run();
  const FlatSpace& space = context.space;
  const BlockStore* const store = blocks_.tiers().frozen();
  if (store == nullptr || count == 0) return;
  const uint64_t element_bytes = bytes_of(space.tensor(tensor).type);
  uint64_t blocks = 0;
  for_each_run(context.shards, context.shards.rank(), tensor, first_element, count,
               [&](const TensorRun& run) {
                 const uint64_t block_bytes = store->block_bytes(run.chunk, 0);
                 const uint64_t first = run.first_element * element_bytes / block_bytes;
                 blocks += divide_up((run.first_element + run.count) * element_bytes, block_bytes) - first;
               });
  const uint64_t free = store->free_slot_count();
  if (blocks <= free) return;
  throw Error(ErrorKind::capacity,
              {"cannot write values of", space.tensor(tensor).name,
               fmt::format("they lie in {} blocks of the nvme tier, which has room for {} beside the last "
                           "commit",
                           blocks, free),
               "commit and wait for it, or write fewer at a time"});
}

void TrainingState::note_written(uint64_t sum) {
  const std::array<uint64_t, 2> chain{sum_of_written_, sum};
  sum_of_written_ = checksum_of(std::as_bytes(std::span(chain)));
}

void TrainingState::write_values(TensorId tensor, ValueKind what, uint64_t first_element,
                                 std::span<const float> values) {
  constexpr std::string_view kAction = "cannot write values of";
  require_values(kAction, tensor, what, first_element, values.size());
  if (what == ValueKind::gradient) {
    boundary_.require_whole_step("cannot write a gradient of");
    return GradientValues(blocks_.run(), blocks_.homes().gradients).write(tensor, first_element, values);
  }
  static_cast<void>(boundary_.whole(kAction));
  const RunContext& context = blocks_.run();
  const bool is_trained = context.space.tensor(tensor).trainable;
  if (!is_trained && hooks_.require_frozen_change("cannot write frozen parameters"))
    require_room_beside_commit(tensor, first_element, values.size());
  if (context.options.dry || values.empty()) return;
  context.watch.set_activity("writing values");
  if (context.options.ranks > 1) note_written(sum_of_write(tensor, what, first_element, values));
  if (!is_moment(what)) {
    blocks_.homes().params.begin_load();
    blocks_.forget_fresh();
  }
  StateCustody& custody = boundary_.custody();
  const auto begin = [&custody] {
    if (!custody.is_changing()) custody.begin_change("writing values");
  };
  if (!is_moment(what)) {
    for_each_chunk(context.space, tensor, first_element, values.size(),
                   [this](ChunkId chunk) { blocks_.drop_device_copy(chunk); });
  }
  for_each_run(context.shards, context.shards.rank(), tensor, first_element, values.size(),
               [&](const TensorRun& run) {
                 const std::span<const float> mine = values.subspan(run.at, run.count);
                 if (is_moment(what)) {
                   write_moments(run.chunk, run.first_element, mine, moment_of(what), begin);
                 } else {
                   write_weights(run.chunk, run.first_element, mine, begin);
                 }
               });
  if (!is_moment(what)) {
    for_each_chunk(context.space, tensor, first_element, values.size(),
                   [this](ChunkId chunk) { blocks_.gather_on_device(chunk); });
  }
  if (custody.is_changing()) custody.end_change();  // else all of it is other ranks'
  if (!is_moment(what)) blocks_.homes().params.end_load();
}

void TrainingState::write_moments(ChunkId chunk, uint64_t first_element, std::span<const float> values,
                                  uint32_t moment, FunctionRef<void()> begin) {
  const RunContext& context = blocks_.run();
  const RecordLayout& layout = context.plan.record_layout;
  blocks_.before_change(chunk);
  for_each_tile(blocks_, {chunk, first_element, values.size()}, true, [&](const TilePart& part) {
    begin();
    if (layout.has_codes())
      return write_moment_codes(layout, part.tile, moment, part.first_element,
                                values.subspan(part.at, part.count));
    convert_from_float(
        context.instruction_set, values.data() + part.at,
        part.tile + layout.moment_offset(moment) + part.first_element * bytes_of(layout.moment_type),
        number_type_of(layout.moment_type), part.count);
  });
}

// Of a frozen tensor there is the parameter alone. Parameters are made of their masters in whole blocks of
// quantization.h, because they may be rounded.
void TrainingState::write_weights(ChunkId chunk, uint64_t first_element, std::span<const float> values,
                                  FunctionRef<void()> begin) {
  const RunContext& context = blocks_.run();
  const DataType type = context.space.section_of(chunk).type;
  const uint64_t element_bytes = bytes_of(type);
  const MasterForm form = context.plan.record_layout.master;
  const uint64_t first = first_element / kQuantizedBlock * kQuantizedBlock;
  const uint64_t count = round_up(first_element + values.size(), kQuantizedBlock) - first;
  static_cast<void>(blocks_.parameters_around(chunk, first, count));
  std::byte* const parameters = blocks_.memory_for(chunk);
  blocks_.before_change(chunk);
  if (!context.is_trained(chunk)) {
    begin();
    convert_from_float(context.instruction_set, values.data(), parameters + first_element * element_bytes,
                       type, values.size());
  } else {
    for_each_tile(blocks_, {chunk, first_element, values.size()}, true, [&](const TilePart& part) {
      begin();
      const float* const masters = values.data() + part.at;
      std::byte* const to = parameters + part.place * element_bytes;
      if (context.is_compact()) {
        split_masters(context.instruction_set, form, reinterpret_cast<const std::byte*>(masters), to,
                      part.tile + part.first_element * master_bytes_of(form), part.count);
      } else {
        auto* const kept = reinterpret_cast<float*>(part.tile) + part.first_element;
        std::memcpy(kept, masters, part.count * sizeof(float));
        const uint64_t before = part.first_element % kQuantizedBlock;
        blocks_.make_parameters(kept - before, type, round_up(before + part.count, kQuantizedBlock),
                                to - before * element_bytes);
      }
    });
  }
  blocks_.publish_around(chunk, first, count);
}

}  // namespace terrace
