// How several ranks work together. What is said of that where there is one rank has no effect, and is listed
// as such.
#include <fmt/format.h>

#include <terrace/base/text/json_writer.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/runtime/config/nccl_choice.h>
#include <terrace/runtime/config/resolve/internal/resolver.h>

namespace terrace {
namespace {

constexpr std::string_view kOverlap = "zero_optimization.overlap_comm";
constexpr std::string_view kKeptGathers = "zero_optimization.zero_hpz_partition_size";
constexpr std::string_view kQuantizedWeights = "zero_optimization.zero_quantized_weights";
constexpr std::string_view kQuantizedGradients = "zero_optimization.zero_quantized_gradients";
constexpr std::string_view kGradientBits = "terrace.quantized_gradient_bits";
constexpr std::string_view kShardSize = "zero_optimization.mics_shard_size";
constexpr std::string_view kCommunicationType = "communication_data_type";
constexpr std::string_view kLanes = "comms_logger.enabled";
constexpr std::string_view kCommunicator = "terrace.communicator";
constexpr std::string_view kShare = "terrace.nvme_share";
constexpr std::string_view kExchange = "terrace.rank_exchange";
constexpr std::string_view kTimeout = "terrace.rank_timeout_seconds";
constexpr std::string_view kStallWarning = "terrace.stall_warning_seconds";
constexpr std::string_view kStallAbort = "terrace.stall_abort_seconds";
constexpr std::string_view kCompare = "terrace.compare_ranks_every_steps";

}  // namespace

std::optional<CommunicatorChoice> communicator_choice_from_name(std::string_view name) {
  if (name == "auto") return CommunicatorChoice::automatic;
  if (name == "host") return CommunicatorChoice::host;
  if (name == "mpi") return CommunicatorChoice::mpi;
  if (name == "nccl") return CommunicatorChoice::nccl;
  return std::nullopt;
}

std::optional<NvmeShare> nvme_share_from_name(std::string_view name) {
  if (name == "auto") return NvmeShare::automatic;
  if (name == "all") return NvmeShare::all;
  if (name == "own") return NvmeShare::own;
  return std::nullopt;
}

std::optional<RankExchange> rank_exchange_from_name(std::string_view name) {
  if (name == "symmetric") return RankExchange::symmetric;
  if (name == "pulled") return RankExchange::pulled;
  return std::nullopt;
}

void Resolver::resolve_ranks() {
  TerraceConfig& own = config_.terrace;
  config_.ranks_overlap = boolean(kOverlap, true);
  config_.logs_lanes = boolean(kLanes, false);
  config_.keeps_gathers_first = small(kKeptGathers, 1) > 1;
  resolve_meeting();
  resolve_exchange();
  own.compare_ranks_every_steps =
      integer(kCompare, own.strict && own.rank_exchange != RankExchange::pulled ? 1 : 0);
  check_communication_type();
  resolve_rounding();
  resolve_sub_groups();
  idle_alone(kOverlap, !config_.ranks_overlap);
  idle_alone(kLanes, config_.logs_lanes);
  idle_alone(kKeptGathers, config_.keeps_gathers_first);
  idle_alone(kShardSize, number(kShardSize, -1) > 0);
  idle_alone(kExchange, own.rank_exchange.has_value());
  idle_alone(kCompare, own.compare_ranks_every_steps > 0);
  idle_alone(kCommunicationType, true);
}

void Resolver::idle_alone(std::string_view key, bool changes_something) {
  const ConfigEntry* const entry = config_.batch.ranks == 1 ? given(key) : nullptr;
  if (entry != nullptr && changes_something) idle_.push_back({entry->written_key, "there is one rank"});
}

void Resolver::resolve_meeting() {
  TerraceConfig& own = config_.terrace;
  own.communicator = *communicator_choice_from_name(text(kCommunicator, "auto"));
  own.nvme_share = *nvme_share_from_name(text(kShare, "auto"));
  own.rank_timeout_seconds = integer(kTimeout, own.rank_timeout_seconds);
  own.stall_warning_seconds = integer(kStallWarning, own.stall_warning_seconds);
  own.stall_abort_seconds = integer(kStallAbort, own.stall_abort_seconds);
  idle_alone(kCommunicator, own.communicator != CommunicatorChoice::automatic);
  idle_alone(kShare, own.nvme_share != NvmeShare::automatic);
  idle_alone(kTimeout, true);
  if (for_engine_) idle_alone(kStallAbort, own.stall_abort_seconds > 0);
}

// In Python auto is settled by the store, whose line says why.
void Resolver::resolve_exchange() {
  TerraceConfig& own = config_.terrace;
  own.rank_exchange = rank_exchange_from_name(text(kExchange, "auto"));
  if (!gathers_by_nccl(config_)) return;
  if (own.rank_exchange == RankExchange::pulled) {
    const ConfigEntry& entry = *given(kExchange);
    problems_.add(entry,
                  fmt::format("{} is pulled, but {} is nccl, which moves what all ranks ask for in one "
                              "order; set it to symmetric or auto, or leave {} out",
                              entry.written_key, kCommunicator, kCommunicator));
  } else if (!own.rank_exchange && !for_engine_) {
    own.rank_exchange = RankExchange::symmetric;
    record(kExchange, json_quoted("symmetric"), fmt::format("{} is nccl", kCommunicator));
  }
}

// It changes numbers, with one rank too: they are those of any number of ranks.
void Resolver::resolve_rounding() {
  const uint64_t bits = integer(kGradientBits, 8);
  if (bits != 8 && bits != 4) {
    const ConfigEntry& entry = *given(kGradientBits);
    problems_.add(entry, fmt::format("{} must be 8 or 4, not {}", entry.written_key, bits));
  }
  if (boolean(kQuantizedGradients, false)) {
    config_.batch.gradient_bits = static_cast<uint32_t>(bits);
  } else if (const ConfigEntry* const entry = given(kGradientBits)) {
    idle_.push_back({entry->written_key, fmt::format("{} is false", kQuantizedGradients)});
  }
  if (!boolean(kQuantizedWeights, false)) return;
  config_.parameter_bits = 8;
  const ConfigEntry& weights = *given(kQuantizedWeights);
  if (config_.precision == DataType::fp32)
    problems_.add(
        weights, fmt::format("{} is true, but parameters are fp32: they are their own masters, which have to "
                             "stay exact; train in bf16 or fp16, or leave it out",
                             weights.written_key));
  if (config_.terrace.compact_state)
    problems_.add(weights,
                  fmt::format("{} is true, but so is terrace.compact_state: each parameter is a half of its "
                              "master there, and has to stay exact; leave one of the two out",
                              weights.written_key));
}

void Resolver::resolve_sub_groups() {
  const auto size = static_cast<int64_t>(number(kShardSize, -1));
  const uint32_t ranks = config_.batch.ranks;
  if (size <= 0 || ranks == 1 || size == ranks) return;
  // No refusal: a run that goes on with fewer ranks, after a death, has the same file.
  if (size > ranks || ranks % size != 0)
    return idle_.push_back({given(kShardSize)->written_key,
                            fmt::format("{} ranks cannot be divided into groups of {}", ranks, size)});
  config_.sub_group_ranks = static_cast<uint32_t>(size);
  config_.keeps_gathers_first = true;
}

// A type that holds every gradient changes none of them, and sums are fp32 anyway.
void Resolver::check_communication_type() {
  const std::string type = text(kCommunicationType, "");
  if (type.empty() || type == "none" || type == "fp32" || type == name_of(config_.precision)) return;
  if (config_.batch.ranks == 1) return;
  const ConfigEntry& entry = *given(kCommunicationType);
  problems_.add(
      entry,
      fmt::format(
          "{} is {}, but gradients are {}, and would lose digits: they travel as they are and "
          "are summed in fp32; set it to {}fp32, or leave it out",
          entry.written_key, type, name_of(config_.precision),
          config_.precision == DataType::fp32 ? "" : fmt::format("{} or ", name_of(config_.precision))));
}

}  // namespace terrace
