// An Offloader with everything it needs, training the toy model, and the one place where the options of such
// a training are put together. Rigs for a purpose take their cases and their defaults from here.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/memory/device/device.h>
#include <terrace/offload/offloader.h>

#include "offload/toy_training.h"
#include "support/lease_adapters.h"

namespace terrace {

using WrapEngine = std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)>;

// What a rig is for, which says what its cases are unless they say otherwise.
enum class RigKind {
  placement,   // wherever things are: tight budgets, a strict device, no commits
  commits,     // commits states on nvme, in folders that outlive it
  checkpoints  // in host memory, with tensors that no operation uses, and not initialised
};

template <RigKind kKind>
struct ToyCase {
  static constexpr bool kCommits = kKind == RigKind::commits;

  Placement parameters = Placement::cpu;
  Placement states = kCommits ? Placement::nvme : Placement::cpu;
  DataType type = DataType::bf16;
  uint32_t accumulation = 1;
  uint32_t gradient_group = 1;
  uint32_t gradient_bits = 0;
  uint32_t parameter_bits = 0;
  uint32_t sub_group_hosts = 1;
  bool with_frozen = false;
  uint64_t chunk_elements = kTileElements;
  uint64_t unused_columns = kKind == RigKind::checkpoints ? 1000 : 0;  // of a tensor that no operation uses
  bool layer_major = false;
  DataType accumulation_type = DataType::fp32;
  GradientOrigin gradients = GradientOrigin::leases;
  UnusedGradients unused = UnusedGradients::zero;
  bool callers = false;  // every second trained tensor is the program's, or all where that is needed
  bool nested = false;   // every use is inside of another one, which reads the first tensor

  // Budgets. Tight: the device has what it must have, and host memory caches `cached_quarters` of what it
  // could; else the device has all that it can use, and host memory caches half.
  bool tight = true;
  uint32_t cached_quarters = kCommits ? 2 : 0;
  std::optional<uint32_t> cached_parameters = std::nullopt;  // chunks of them in host memory, and no records
  bool strict = kKind == RigKind::placement;
  PolicyKind policy = PolicyKind::opt;
  bool announced = true;
  io::EngineKind engine = kCommits ? io::EngineKind::threads : io::EngineKind::io_uring;
  size_t threads = 2;
  uint64_t d2h_bytes_per_second = 0;  // 0: as fast as memory
  uint64_t h2d_bytes_per_second = 0;

  bool durable = kCommits;
  uint32_t retained = 0;
  std::string tier_name = {};
  TierStart start = TierStart::fresh;
  bool discard = false;

  RecordLayout layout = {};
  OptimizerKind kind = OptimizerKind::adam;
  WrapEngine decorate = nullptr;
  io::FileEvents* events = nullptr;
  UpdateMode mode = UpdateMode::after_backward;
  double clip_norm = 0;
  bool holds_gradients = false;  // all of them, whatever else there is room for
  bool spills = false;           // all of them, whatever there is on the device
  // Instead of all that: of the plan without limits.
  std::function<uint64_t(const MemoryPlan&)> host_budget = nullptr;
  const Clock* clock = nullptr;
  DecisionLog* decisions = nullptr;
  StepEvents* step_events = nullptr;
  Communicator* ranks = nullptr;
  RankExchange exchange = RankExchange::symmetric;
  bool by_copies = false;          // what ranks exchange
  bool gather_on_devices = false;  // but not what they gather
  bool overlap = true;             // of ranks
  uint64_t compare_ranks_every_steps = 0;
  bool divided = false;  // parameters that live on the device
  // Of a budget, strict or not; null: a SimulatedDevice.
  std::function<std::unique_ptr<Device>(uint64_t budget_bytes, bool strict)> make_device = nullptr;
  bool lock_host_memory = false;
  double processor_share = 1;
  bool reads_past_host = false;  // and compares no checksums
  bool dry = false;              // planned only, on a DryDevice
};

inline constexpr RecordLayout kCompact = {MasterForm::remainder};
inline constexpr RecordLayout kCoded = {MasterForm::whole, 2, MomentType::int8};
inline constexpr RecordLayout kCompactCoded = {MasterForm::remainder, 2, MomentType::int8};
inline constexpr std::array kLayouts = {RecordLayout{}, kCompact, kCoded, kCompactCoded};

template <RigKind kKind>
std::vector<TensorSpec> toy_tensors(const ToyCase<kKind>& c);

template <RigKind kKind>
OffloadOptions toy_options(const ToyCase<kKind>& c, const FlatSpace& space,
                           const std::vector<TensorUse>& uses,
                           const std::vector<std::filesystem::path>& folders);

class ToyRig {
 public:
  template <RigKind kKind>
  ToyRig(const ToyCase<kKind>& c, const std::vector<std::filesystem::path>& folders);

  // As the case says.
  UpdateResult step(uint64_t number);
  UpdateResult step(uint64_t number, uint32_t micro_batches, const std::string& skip = "",
                    float loss_scale = 1, double clip = 0);
  // skips[m] is left out of micro-batch m, which is a round where there are ranks.
  UpdateResult step_skipping(uint64_t number, const std::vector<std::string>& skips, float loss_scale = 1,
                             double clip = 0);

  std::vector<std::byte> parameters(uint32_t tensor);
  // As a checkpoint holds them.
  std::vector<std::byte> records();
  // Records, then all parameters.
  std::vector<std::byte> state();

  // Gradients are handed over from now on, as if none had been made yet.
  void hand_over();

  bool layer_major;
  uint32_t accumulation;
  OptimizerKind kind;
  double clip_norm;
  std::vector<std::vector<std::byte>> caller_memory;  // by tensor
  std::vector<TensorSpec> specs;
  FlatSpace space;
  MemoryLog log;
  Workers workers;
  OffloadOptions options;
  std::unique_ptr<Device> device;
  std::unique_ptr<Offloader> offloader;
  // The ways to the offloader, the last one that of the model.
  std::optional<testing::NestingAccess> nesting;
  std::optional<testing::CallerAccess> owning;
  std::optional<testing::HandingAccess> handing;
  ParameterAccess* access = nullptr;
};

// A base of rigs in a folder of their own, before ToyRig: it outlives that.
struct OwnFolder {
  ScratchFolder folder;
};

}  // namespace terrace
