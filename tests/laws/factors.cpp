#include "laws/factors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <stdexcept>

#include <terrace/aio/engine.h>
#include <terrace/base/data_type.h>
#include <terrace/base/record_layout.h>
#include <terrace/memory/space/eviction_policy.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/options/placement.h>
#include <terrace/offload/plan/update_mode.h>

#include "laws/plain_training.h"
#include "support/enum_values.h"

namespace terrace::laws {
namespace {

template <size_t count>
constexpr auto with(const std::array<std::string_view, count>& names, std::string_view last) {
  std::array<std::string_view, count + 1> all{};
  std::copy(names.begin(), names.end(), all.begin());
  all.back() = last;
  return all;
}

constexpr auto kPlacements = testing::enumerator_names<Placement>();
// "divided": on the device, in shares of several ranks.
constexpr auto kParameterPlaces = with(kPlacements, "divided");
// "near": a quarter above the least.
constexpr std::array<std::string_view, 4> kBudgets = {"least", "near", "middle", "ample"};
// "spilling": with it some gradients are held and others are on nvme, where gradients can be.
constexpr std::array<std::string_view, 5> kHostBudgets = {"least", "near", "middle", "ample", "spilling"};
constexpr auto kPolicies = testing::enumerator_names<PolicyKind>();
constexpr auto kEngines = testing::enumerator_names<io::EngineKind>();
constexpr std::array<std::string_view, 3> kChunks = {"4096", "12288", "65536"};
constexpr std::array<std::string_view, 3> kThreadCounts = {"1", "2", "3"};
// "mixed": bf16 beside norms in fp32, which are sections of their own.
constexpr auto kPrecisions = with(testing::enumerator_names<DataType>(), "mixed");
// The micro-batches of a step. More than 3 are for several ranks, which have as many rounds as one rank then.
constexpr std::array<std::string_view, 4> kAccumulations = {"1", "3", "4", "8"};
constexpr std::array<std::string_view, 2> kClippings = {"0", "0.5"};
constexpr std::array<std::string_view, 3> kPrefetches = {"0", "2", "32"};
constexpr std::array<std::string_view, 2> kStrictness = {"off", "on"};
constexpr std::array<std::string_view, 2> kAccumulationTypes = {"fp32", "own"};
// "nf4" and "int8": adapters over a base of codes.
constexpr std::array<std::string_view, 7> kModels = {"gpt2",  "llama", "frozen", "lora",
                                                     "qwen3", "nf4",   "int8"};
// What becomes of them until backward: "cpu" and "nvme" are where checkpointed ones go to that were planned,
// "saved" and "saved on nvme" where those go to that the program saves itself; on nvme host memory has room
// for one piece, two or all of them, as "prefetch" says.
constexpr std::array<std::string_view, 6> kActivationPlaces = {"kept", "checkpointed", "cpu",
                                                               "nvme", "saved",        "saved on nvme"};

// Where optimizer states are on nvme: written in place, or with commits that are committed every so many
// steps.
constexpr std::array<std::string_view, 4> kCommitCadences = {"in place", "0", "1", "2"};

constexpr auto kMomentTypes = testing::enumerator_names<MomentType>();
// Where states are not on the device; "mixed": another mode in every step.
constexpr auto kUpdates = with(testing::enumerator_names<UpdateMode>(), "mixed");

// Of the host budget: to the least after the first step, and back after the second.
constexpr std::array<std::string_view, 3> kBudgetChanges = {"none", "down", "down and up"};

constexpr auto kMasters = testing::enumerator_names<MasterForm>();  // another than whole where it is possible

constexpr std::array<std::string_view, 2> kOrders = {"batch", "layer"};  // of several micro-batches

// Of what the processor updates; the device updates the rest, though its states live below it.
constexpr std::array<std::string_view, 4> kShares = {"1", "0.5", "0", "0.3"};

constexpr std::array<std::string_view, 2> kPathCounts = {"1", "2"};
constexpr std::array<std::string_view, 2> kRetainedCommits = {"0", "1"};
// Beside the training, of the commit before; "background": by a thread of its own, through a PinnedCommit, or
// on the first of several ranks through SetStreams.
constexpr std::array<std::string_view, 2> kSaveWays = {"none", "background"};
// In empty folders, or over the commit of a run that is given up.
constexpr std::array<std::string_view, 2> kBeginnings = {"anew", "over a commit"};
// "changing": every call of the offloader comes from another thread, which ends then.
constexpr std::array<std::string_view, 2> kCallingThreads = {"one", "changing"};
// From where; "written": all tensors after a load of zeros, in runs.
constexpr std::array<std::string_view, 4> kInitialWays = {"callback", "arrays", "files", "written"};

// Who makes the copies of a simulated device that are small, as nearly all of the laws are.
constexpr std::array<std::string_view, 2> kDeviceCopyWays = {"caller", "thread"};

// They divide everything, and 3 micro-batches of a step leave some of them idle.
constexpr std::array<std::string_view, 8> kRankCounts = {"1", "2", "3", "4", "5", "6", "8", "12"};
// Among which they are spread evenly where that is possible: else there is one. Two of 4 are a sub-group.
constexpr std::array<std::string_view, 4> kHostCounts = {"1", "2", "3", "4"};
// How several ranks, which are threads of one process, reach each other. "messages": through a port that is
// late; "peers": by reads of each other's memory, and word of them over that port.
// "copies": as peers, and what they exchange passes through host memory by copies, as it does for GPUs.
// "nccl": on one host, what they exchange goes from device to device by a played NCCL, but for gradients that
// are handed over on the host: these pass through host memory.
// "waiting": as threads, each transfer is waited for where it is asked for, and what came is compared; and
// what has come from other hosts is kept before optimizer states are.
// "pulled": as peers, and each rank reads what it needs when it needs it, where that is possible.
constexpr std::array<std::string_view, 7> kBackEnds = {"threads", "messages", "peers", "copies",
                                                       "nccl",    "waiting",  "pulled"};

// Micro-batches whose gradients are summed before they join the sum of the step. Groups of 4 are for more
// micro-batches than 3.
constexpr std::array<std::string_view, 3> kGroups = {"1", "2", "4"};

// The type in which matrices are multiplied.
constexpr auto kComputes = testing::enumerator_names<ProductType>();

// What is rounded to few bits: gradients to 8 where they are alone, and to 4 beside parameters.
constexpr std::array<std::string_view, 4> kRoundings = {"none", "gradients", "parameters", "both"};

// What the offloader is told of the first step. "otherwise": uses go backward in another order than that.
constexpr std::array<std::string_view, 2> kTraces = {"as told", "otherwise"};

// Of the model: "one of two" has its norm with another part (other_part.h).
constexpr std::array<std::string_view, 2> kPartsOfModel = {"all", "one of two"};

// "handed_over_on_device" is handed_over where what ranks exchange does not go from device to device.
constexpr auto kGradientOrigins = testing::enumerator_names<GradientOrigin>();
// "nested": every use is inside of another one, which reads the first tensor.
constexpr std::array<std::string_view, 2> kLeaseOrders = {"one by one", "nested"};

// Some tensors have no gradient in some steps where gradients are handed over.
constexpr auto kUnusedGradients = testing::enumerator_names<UnusedGradients>();

// "caller": every second trained tensor is the program's where that is possible, or all where gradients are
// borrowed or the parameters are the masters.
constexpr auto kOwners = testing::enumerator_names<TensorHome>();

constexpr std::array<Factor, kFactorCount> kFactors = {{
    {"parameters", kParameterPlaces},
    {"states", kPlacements},
    {"host", kHostBudgets},
    {"device", kBudgets},
    {"policy", kPolicies},
    {"engine", kEngines},
    {"chunk", kChunks},
    {"threads", kThreadCounts},
    {"precision", kPrecisions},
    {"accumulation", kAccumulations},
    {"clipping", kClippings},
    {"prefetch", kPrefetches},
    {"strict", kStrictness},
    {"accumulation type", kAccumulationTypes},
    {"model", kModels},
    {"activations", kActivationPlaces},
    {"commits", kCommitCadences},
    {"optimizer", kOptimizers},
    {"moments", kMomentTypes},
    {"update", kUpdates},
    {"budget change", kBudgetChanges},
    {"master", kMasters},
    {"order", kOrders},
    {"processor share", kShares},
    {"paths", kPathCounts},
    {"retained", kRetainedCommits},
    {"saves", kSaveWays},
    {"begins", kBeginnings},
    {"gradients", kGradientOrigins},
    {"leases", kLeaseOrders},
    {"unused", kUnusedGradients},
    {"owner", kOwners},
    {"caller threads", kCallingThreads},
    {"initial values", kInitialWays},
    {"device copies", kDeviceCopyWays},
    {"ranks", kRankCounts},
    {"back end", kBackEnds},
    {"gradient group", kGroups},
    {"hosts", kHostCounts},
    {"compute", kComputes},
    {"rounding", kRoundings},
    {"trace", kTraces},
    {"part", kPartsOfModel},
}};

uint8_t level_index(FactorIndex factor, std::string_view level) {
  const std::span<const std::string_view> levels = kFactors[factor].levels;
  const auto found = std::ranges::find(levels, level);
  if (found == levels.end())
    throw std::logic_error(fmt::format("{} is never {}", kFactors[factor].name, level));
  return static_cast<uint8_t>(found - levels.begin());
}

using AllowedLevels = std::array<std::vector<uint8_t>, kFactorCount>;

AllowedLevels allowed_levels(const std::vector<OnlyLevels>& only) {
  AllowedLevels allowed;
  for (size_t f = 0; f < kFactorCount; ++f) {
    for (size_t l = 0; l < kFactors[f].levels.size(); ++l) allowed[f].push_back(static_cast<uint8_t>(l));
  }
  // Most laws are about one offloader.
  allowed[kParameters].pop_back();
  allowed[kGradients].pop_back();
  allowed[kRanks] = {level_index(kRanks, "1")};
  allowed[kBackEnd] = {level_index(kBackEnd, "threads")};
  allowed[kHosts] = {level_index(kHosts, "1")};
  allowed[kAccumulation] = {level_index(kAccumulation, "1"), level_index(kAccumulation, "3")};
  allowed[kGroup] = {level_index(kGroup, "1"), level_index(kGroup, "2")};
  for (const OnlyLevels& some : only) {
    allowed[some.factor].clear();
    for (const std::string_view level : some.levels)
      allowed[some.factor].push_back(level_index(some.factor, level));
  }
  return allowed;
}

// Which pairs or triples of allowed levels no combination of a list has yet.
class Cover {
 public:
  Cover(Strength strength, const AllowedLevels& allowed) : allowed_(allowed) {
    for (size_t a = 0; a < kFactorCount; ++a) {
      for (size_t b = a + 1; b < kFactorCount; ++b) {
        if (strength == Strength::pairs) add_group({a, b});
        for (size_t c = b + 1; c < kFactorCount && strength == Strength::triples; ++c) add_group({a, b, c});
      }
    }
  }
  void add(const Combination& combination) {
    for (const Group& group : groups_) {
      uint8_t& is_missing = missing_[group.index(combination)];
      missing_count_ -= is_missing;
      is_missing = 0;
    }
  }
  uint64_t missing() const { return missing_count_; }

  // Makes a combination that has one of the missing pairs or triples. The other factors follow in random
  // order, each with the level that adds the most of what is missing. Returns how much the combination has of
  // it, too.
  std::pair<Combination, uint64_t> extend(std::mt19937& random) const {
    Combination combination{};
    std::array<bool, kFactorCount> is_chosen{};
    choose_missing(random, combination, is_chosen);
    std::array<size_t, kFactorCount> order{};
    for (size_t f = 0; f < kFactorCount; ++f) {
      const size_t place = random() % (f + 1);
      order[f] = order[place];
      order[place] = f;
    }
    uint64_t gained = 1;
    for (const size_t f : order) {
      if (!is_chosen[f]) gained += choose(f, random, combination, is_chosen);
    }
    return {combination, gained};
  }

 private:
  struct Group {
    std::vector<size_t> factors;
    std::vector<uint32_t> strides;
    uint32_t begin = 0;

    uint32_t index(const Combination& combination) const {
      uint32_t index = begin;
      for (size_t i = 0; i < factors.size(); ++i) index += combination[factors[i]] * strides[i];
      return index;
    }
  };

  void add_group(std::vector<size_t> factors) {
    Group group{std::move(factors), {}, static_cast<uint32_t>(missing_.size())};
    uint32_t size = 1;
    std::vector<uint32_t> indices = {group.begin};
    for (const size_t f : group.factors) {
      std::vector<uint32_t> more;
      for (const uint32_t index : indices) {
        for (const uint8_t level : allowed_[f]) more.push_back(index + level * size);
      }
      indices = std::move(more);
      group.strides.push_back(size);
      size *= static_cast<uint32_t>(kFactors[f].levels.size());
      groups_of_[f].push_back(groups_.size());
    }
    missing_.resize(missing_.size() + size);
    for (const uint32_t index : indices) missing_[index] = 1;
    missing_count_ += indices.size();
    groups_.push_back(std::move(group));
  }
  void choose_missing(std::mt19937& random, Combination& combination,
                      std::array<bool, kFactorCount>& is_chosen) const {
    size_t index = random() % missing_.size();
    while (missing_[index] == 0) index = (index + 1) % missing_.size();
    const auto after = std::ranges::upper_bound(groups_, index, {}, [](const Group& g) { return g.begin; });
    const Group& group = *std::prev(after);
    for (size_t i = 0; i < group.factors.size(); ++i) {
      const size_t f = group.factors[i];
      combination[f] =
          static_cast<uint8_t>((index - group.begin) / group.strides[i] % kFactors[f].levels.size());
      is_chosen[f] = true;
    }
  }
  // Returns what the level adds to those of the factors that are chosen.
  uint64_t choose(size_t factor, std::mt19937& random, Combination& combination,
                  std::array<bool, kFactorCount>& is_chosen) const {
    is_chosen[factor] = true;
    std::vector<const Group*> chosen;
    for (const size_t g : groups_of_[factor]) {
      if (std::ranges::all_of(groups_[g].factors, [&](size_t f) { return is_chosen[f]; }))
        chosen.push_back(&groups_[g]);
    }
    const std::vector<uint8_t>& levels = allowed_[factor];
    const size_t first = random() % levels.size();
    uint64_t most = 0;
    uint8_t best = levels[first];
    for (size_t l = 0; l < levels.size(); ++l) {
      combination[factor] = levels[(first + l) % levels.size()];
      uint64_t count = 0;
      for (const Group* group : chosen) count += missing_[group->index(combination)];
      if (count > most) most = count, best = combination[factor];
    }
    combination[factor] = best;
    return most;
  }

  const AllowedLevels allowed_;
  std::vector<Group> groups_;
  std::array<std::vector<size_t>, kFactorCount> groups_of_;
  std::vector<uint8_t> missing_;  // by Group::index
  uint64_t missing_count_ = 0;
};

}  // namespace

std::span<const Factor, kFactorCount> factors() {
  return kFactors;
}

std::string_view level_of(const Combination& combination, FactorIndex factor) {
  return kFactors[factor].levels[combination[factor]];
}

uint64_t number_of(const Combination& combination, FactorIndex factor) {
  return std::stoull(std::string(level_of(combination, factor)));
}

void set_level(Combination& combination, FactorIndex factor, std::string_view level) {
  combination[factor] = level_index(factor, level);
}

std::string describe(const Combination& combination) {
  std::string text;
  for (size_t f = 0; f < kFactorCount; ++f) {
    text += fmt::format("{}{}={}", f == 0 ? "" : " ", kFactors[f].name, kFactors[f].levels[combination[f]]);
  }
  return text;
}

// TERRACE_LAW_SEED draws other combinations, for a search beyond those of every day.
static uint32_t law_seed() {
  const char* const wanted = std::getenv("TERRACE_LAW_SEED");
  return wanted != nullptr ? static_cast<uint32_t>(std::atoi(wanted)) : 20;
}

// Greedy, after D. M. Cohen et al., "The AETG System" (IEEE Transactions on Software Engineering 23, 1997).
std::vector<Combination> covering_array(Strength strength, const std::vector<OnlyLevels>& only) {
  constexpr int kCandidates = 10;
  std::mt19937 random(law_seed());
  Cover cover(strength, allowed_levels(only));
  std::vector<Combination> list;
  while (cover.missing() > 0) {
    std::pair<Combination, uint64_t> best{};
    for (int c = 0; c < kCandidates; ++c) {
      const auto candidate = cover.extend(random);
      if (candidate.second > best.second) best = candidate;
    }
    cover.add(best.first);
    list.push_back(best.first);
  }
  return list;
}

std::vector<Combination> covering_array_over_ranks(Strength strength) {
  return covering_array(strength, {{kParameters, {kParameterPlaces.begin(), kParameterPlaces.end()}},
                                   {kRanks, {"2", "3", "4", "5", "6", "8", "12"}},
                                   {kHosts, {kHostCounts.begin(), kHostCounts.end()}},
                                   {kBackEnd, {kBackEnds.begin(), kBackEnds.end()}},
                                   {kAccumulation, {"1", "3", "4", "8"}},
                                   {kGroup, {"1", "2", "4"}},
                                   {kGradients, {kGradientOrigins.begin(), kGradientOrigins.end()}}});
}

std::vector<Combination> covering_array_of_parameter_masters(std::vector<OnlyLevels> only) {
  only.insert(only.end(), {{kMaster, {"parameter"}},
                           {kOwner, {"caller"}},
                           {kGradients, {"handed_over", "borrowed"}},
                           {kPrecision, {"fp32"}}});
  return covering_array(Strength::pairs, only);
}

uint64_t missing_triples(std::span<const Combination> list) {
  Cover cover(Strength::triples, allowed_levels({}));
  for (const Combination& combination : list) cover.add(combination);
  return cover.missing();
}

uint64_t full_product_size() {
  uint64_t size = 1;
  for (const Factor& factor : kFactors) size *= factor.levels.size();
  return size;
}

Combination product_element(uint64_t index) {
  Combination combination{};
  for (size_t f = 0; f < kFactorCount; ++f) {
    combination[f] = static_cast<uint8_t>(index % kFactors[f].levels.size());
    index /= kFactors[f].levels.size();
  }
  return combination;
}

}  // namespace terrace::laws
