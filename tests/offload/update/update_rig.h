// What the parts of an update are tested on, each alone: three chunks of two tiles, trained by SGD, with
// parameters and records on the host, and gradients that a test says everything about.
#pragma once

#include <gtest/gtest.h>

#include <terrace/aio/ring_buffer.h>
#include <terrace/offload/landing/gradient_source.h>
#include <terrace/offload/parameters/param_home.h>
#include <terrace/offload/records/record_store.h>
#include <terrace/offload/update/tile_update.h>
#include <terrace/offload/update/update_progress.h>

#include "offload/homes_rig.h"

namespace terrace {

// In host memory, every element the same; complete where the test says so.
class PlayedGradients final : public GradientSource {
 public:
  explicit PlayedGradients(DataType type) : type_(type) {}
  DataType type(ChunkId) const override { return type_; }
  std::byte* gradient(ChunkId chunk) override { return memory[index_of(chunk)]; }
  bool start_open(ChunkId chunk, io::Engine&) override { return complete[index_of(chunk)]; }
  bool is_open(ChunkId chunk) const override {
    if (failure != nullptr) std::rethrow_exception(failure);
    return complete[index_of(chunk)];
  }
  void release(ChunkId chunk) override { released.push_back(chunk); }

  std::vector<std::byte*> memory;  // by chunk, as the next
  std::vector<bool> complete = std::vector<bool>(HomesRig::kChunks, true);
  std::vector<ChunkId> released;
  std::exception_ptr failure;

 private:
  const DataType type_;
};

struct UpdateRig : HomesRig {
  static constexpr uint64_t kTiles = 2;  // of a chunk
  static constexpr float kGradient = 0.5f;

  // The first tile is of group 0, the others are of group 1. Masters are 1, parameters 0.
  explicit UpdateRig(Placement parameters = Placement::cpu, DataType gradient_type = DataType::bf16,
                     uint32_t rank = 0, uint32_t ranks = 1)
      : HomesRig({.budget_bytes = 8 * kMiB},
                 {{"a", {kTileElements}, DataType::bf16, true, 0},
                  {"b", {(kChunks * kTiles - 1) * kTileElements}, DataType::bf16, true, 1}},
                 kTiles, rank, ranks),
        gradients(gradient_type) {
    plan.record_layout = {MasterForm::whole, 0};
    plan.ring_slot_bytes = plan.record_layout.tile_bytes();
    plan.record_slot_bytes = kTiles * plan.ring_slot_bytes;
    plan.host_param_slots = parameters == Placement::cpu ? kChunks : 0;
    const uint64_t gradient_bytes = kTiles * kTileElements * bytes_of(gradient_type);
    for (uint32_t c = 0; c < kChunks; ++c) {
      gradients.memory.push_back(arena.take(gradient_bytes, "gradients").data());
      for (uint64_t e = 0; e < kTiles * kTileElements; ++e) set_gradient(c, e);
    }
    if (parameters == Placement::nvme) {
      reader = std::make_unique<io::IoThread>(io::make_engine({.kind = io::EngineKind::threads}));
      params = make_store_named("params", plan.slot_bytes / kTiles, plan.slot_bytes);
    }
    wishes.parameters = parameters;
    home = std::make_unique<ParamHome>(run, arena, ParameterStores{params.get(), nullptr, reader.get()},
                                       gathers);
    for (uint32_t c = 0; c < kChunks; ++c) {
      if (std::byte* slot = home->host_slot(ChunkId{c})) std::memset(slot, 0, plan.slot_bytes);
    }
  }
  // A block for each tile of the rank, or for all of a chunk.
  std::unique_ptr<BlockStore> make_store_named(std::string name, uint64_t tile_bytes, uint64_t block_bytes) {
    BlockStoreOptions options;
    options.name = std::move(name);
    options.block_bytes = block_bytes;
    for (uint32_t c = 0; c < kChunks; ++c)
      options.chunk_bytes.push_back(shards.own(ChunkId{c}).tile_count * tile_bytes);
    return make_store(options);
  }
  // Records of masters of 1 in host memory, or in a store.
  std::unique_ptr<RecordStore> make_records(Placement placement) {
    plan.host_record_slots = placement == Placement::cpu ? kChunks : 0;
    if (placement == Placement::nvme)
      store = make_store_named("records", plan.ring_slot_bytes, plan.ring_slot_bytes);
    wishes.states = placement;
    auto records = std::make_unique<RecordStore>(run, arena, store.get(), store ? engine.get() : nullptr);
    const std::vector<float> masters(kTileElements, 1.0f);
    for (uint32_t c = 0; c < kChunks; ++c) {
      for (uint64_t t = 0; t < shards.own(ChunkId{c}).tile_count; ++t) {
        const std::span<std::byte> tile = pages.memory().first(plan.ring_slot_bytes);
        std::memcpy(tile.data(), masters.data(), tile.size());
        BlockTransfer write;
        records->start_write(ChunkId{c}, t, tile, write);
        write.finish(watch);
      }
    }
    return records;
  }
  TileUpdate make_tiles(DeviceArithmetic* arithmetic = nullptr, bool dry = false) {
    TileUpdate tiles(shards, gradients, *home, plan.record_layout, 0, InstructionSet::scalar, arithmetic,
                     dry);
    tiles.begin({steps, {}});
    return tiles;
  }
  void set_gradient(uint32_t chunk, uint64_t element) {
    std::byte* const at = gradients.memory[chunk] + element * bytes_of(gradients.type(ChunkId{chunk}));
    if (gradients.type(ChunkId{chunk}) == DataType::fp32) {
      std::memcpy(at, &kGradient, sizeof(float));
    } else {
      const Bf16 value = to_bf16(kGradient);
      std::memcpy(at, &value, sizeof(value));
    }
  }
  // What one update makes of a master of 1.
  static float updated(uint32_t chunk, uint64_t tile) { return chunk == 0 && tile == 0 ? 0.5f : 0.0f; }
  static bool is_filled(const std::byte* tile, float value) {
    for (uint64_t e = 0; e < kTileElements; ++e) {
      if (std::memcmp(tile + e * sizeof(float), &value, sizeof(value)) != 0) return false;
    }
    return true;
  }
  static bool is_filled_bf16(const std::byte* tile, float value) {
    const Bf16 rounded = to_bf16(value);
    for (uint64_t e = 0; e < kTileElements; ++e) {
      if (std::memcmp(tile + e * sizeof(Bf16), &rounded, sizeof(rounded)) != 0) return false;
    }
    return true;
  }
  void expect_updated_parameters(uint32_t chunk, const std::byte* parameters) const {
    for (uint64_t t = 0; t < kTiles; ++t)
      EXPECT_TRUE(is_filled_bf16(parameters + t * kTileElements * sizeof(Bf16), updated(chunk, t)));
  }

  // Rates of 1 and of 2.
  const std::vector<OptimizerStep> steps = {make_optimizer_step({.kind = OptimizerKind::sgd, .lr = 1}, 1),
                                            make_optimizer_step({.kind = OptimizerKind::sgd, .lr = 2}, 1)};
  PlayedGradients gradients;
  std::unique_ptr<io::IoThread> reader;
  std::unique_ptr<BlockStore> params;
  std::unique_ptr<ParamHome> home;
};

}  // namespace terrace
