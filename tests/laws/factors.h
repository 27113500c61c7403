// The factors that every law about training goes through, one list for all of them: a placement, mode or path
// that is in it is trained against plain vectors, meets failing transfers, kills and power cuts. Levels that
// an enum has come from the enum.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::laws {

enum FactorIndex : size_t {
  kParameters,
  kStates,
  kHost,
  kDevice,
  kPolicy,
  kEngine,
  kChunk,
  kThreads,
  kPrecision,
  kAccumulation,
  kClipping,
  kPrefetch,
  kStrict,
  kAccumulationType,
  kModel,
  kActivations,
  kCommits,
  kOptimizer,
  kMoments,
  kUpdate,
  kBudgetChange,
  kMaster,
  kOrder,
  kShare,
  kPaths,
  kRetained,
  kSaves,
  kBegins,
  kGradients,
  kLeases,
  kUnused,
  kOwner,
  kCallers,
  kInitialValues,
  kDeviceCopies,
  kRanks,
  kBackEnd,
  kGroup,
  kHosts,
  kCompute,
  kRounding,
  kTrace,
  kPart,
  kFactorCount,
};

struct Factor {
  std::string_view name;
  std::span<const std::string_view> levels;
};
std::span<const Factor, kFactorCount> factors();

// One level of every factor: an index into factors()[f].levels.
using Combination = std::array<uint8_t, kFactorCount>;
std::string describe(const Combination& combination);
std::string_view level_of(const Combination& combination, FactorIndex factor);
uint64_t number_of(const Combination& combination, FactorIndex factor);
// There is such a level.
void set_level(Combination& combination, FactorIndex factor, std::string_view level);

// Some levels of some factors. Of those that are not named: one rank, a thread, 1 or 3 micro-batches in
// groups of 1 or 2, and all levels of the others.
struct OnlyLevels {
  FactorIndex factor;
  std::vector<std::string_view> levels;
};

// A list of combinations in which every pair (every triple) of levels of any two (three) factors occurs.
// Deterministic.
enum class Strength : uint8_t { pairs = 2, triples = 3 };
std::vector<Combination> covering_array(Strength strength, const std::vector<OnlyLevels>& only = {});
// Of all levels of several ranks.
std::vector<Combination> covering_array_over_ranks(Strength strength);
// Pairs where masters can be the program's parameters, which takes certain levels of six factors at once.
std::vector<Combination> covering_array_of_parameter_masters(std::vector<OnlyLevels> only = {
                                                                 {kStates, {"cpu", "nvme"}}});
// How many triples of levels `list` leaves out.
uint64_t missing_triples(std::span<const Combination> list);
// Every combination by its number.
uint64_t full_product_size();
Combination product_element(uint64_t index);

}  // namespace terrace::laws
