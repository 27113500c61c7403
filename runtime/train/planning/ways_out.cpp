#include <terrace/runtime/train/planning/ways_out.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/offload/plan/disk_room.h>
#include <terrace/runtime/train/planning/run_changes.h>
#include <terrace/runtime/train/setup/training_setup.h>

namespace terrace {
namespace {

// A budget that is not given follows from the other one, which may have to be raised because of that.
constexpr int kMostRaises = 3;

struct TierBudget {
  const char* tier;
  Option option;
  std::optional<uint64_t> TerraceConfig::*budget;
};
constexpr std::array kBudgets = {
    TierBudget{"device", Option::device_budget, &TerraceConfig::device_memory_bytes},
    TierBudget{"host", Option::host_budget, &TerraceConfig::host_memory_bytes}};

const TierBudget* budget_of(const TierShortage& shortage) {
  const auto found = std::ranges::find(kBudgets, shortage.tier, &TierBudget::tier);
  return found == kBudgets.end() ? nullptr : &*found;
}

using Changes = std::vector<const Change*>;
using Lack = std::vector<TierShortage>;

// What changes lead to.
struct Attempt {
  Changes changes;
  ChangeableRun run;
  std::optional<Lack> lack;   // empty: it fits; none: it cannot be, whatever the budgets
  uint64_t device_bytes = 0;  // where it fits
  uint64_t host_bytes = 0;
  uint64_t memory_bytes() const { return device_bytes + host_bytes; }
};

class Search {
 public:
  Search(ChangeableRun run, Workers& workers, const ComputeDevice* compute, const WaysOutBounds& bounds)
      : run_(std::move(run)),
        workers_(workers),
        compute_(compute),
        own_memory_(facts_of(compute).own_memory),
        bounds_(bounds) {}

  bool is_over() const { return offered_.size() >= bounds_.wanted; }
  bool has_enough() const { return offered_.size() + spare_.size() >= bounds_.wanted; }
  std::vector<WayOut> take() {
    offered_.insert(offered_.end(), spare_.begin(), spare_.end());
    std::vector<WayOut> ways;
    for (const Attempt& tried : offered_)
      if (ways.size() < bounds_.wanted) ways.push_back(way_of(tried));
    return ways;
  }

  Attempt attempt(Changes changes) {
    Attempt tried{std::move(changes), run_, std::nullopt, 0, 0};
    for (const Change* change : tried.changes) change->apply(tried.run);
    look(tried);
    return tried;
  }
  // Raises what is too small until it fits.
  bool raise(Attempt& tried) {
    for (int raises = 0; raises < kMostRaises && tried.lack && !tried.lack->empty(); ++raises) {
      for (const TierShortage& shortage : *tried.lack) {
        const TierBudget* const held = budget_of(shortage);
        if (held == nullptr) return false;
        tried.run.config.terrace.*held->budget = round_up(shortage.needed_bytes, kMiB);
      }
      look(tried);
    }
    return fits(tried) && is_to_be_had(tried);
  }
  static bool fits(const Attempt& tried) { return tried.lack && tried.lack->empty(); }
  // What is another way and more is taken only where there is nothing else, and never where the more is a
  // guarantee that is lost.
  void offer(Attempt tried) {
    const auto is_less = [&](const Attempt& other) { return is_part(other, tried); };
    if (std::ranges::none_of(offered_, is_less)) {
      offered_.push_back(std::move(tried));
    } else if (std::ranges::none_of(tried.changes, loses_guarantee)) {
      spare_.push_back(std::move(tried));
    }
  }

 private:
  WayOut way_of(const Attempt& tried) const {
    std::vector<ChangedOption> options;
    std::string effect;
    for (const TierBudget& held : kBudgets) {
      const std::optional<uint64_t> budget = tried.run.config.terrace.*held.budget;
      if (!budget || budget == run_.config.terrace.*held.budget) continue;
      options.push_back({held.option, fmt::format("{}MiB", *budget / kMiB)});
      effect +=
          fmt::format("{}{} of {} memory", effect.empty() ? "" : ", ", format_bytes(*budget), held.tier);
    }
    for (const Change* change : tried.changes)
      options.insert(options.end(), change->options.begin(), change->options.end());
    const std::string changed = effect_of(tried.changes);
    return {std::move(options), changed + (changed.empty() || effect.empty() ? "" : ", ") + effect,
            tried.run.config, tried.run.model};
  }
  // A budget that is rounded up may be more than there is where what the run takes is not.
  bool is_to_be_had(const Attempt& tried) const {
    if (!own_memory_) return tried.memory_bytes() <= bounds_.machine_bytes;
    const uint64_t budget = tried.run.config.terrace.device_memory_bytes.value_or(tried.device_bytes);
    return budget <= own_memory_->budget_bytes && tried.host_bytes <= bounds_.machine_bytes;
  }
  static bool loses_guarantee(const Change* change) { return change->kind == ChangeKind::durability; }
  // Whether the other one changes the same and more, with budgets no smaller.
  static bool is_part(const Attempt& one, const Attempt& other) {
    for (const TierBudget& held : kBudgets) {
      const auto bytes = [&](const Attempt& tried) {
        return (tried.run.config.terrace.*held.budget).value_or(0);
      };
      if (bytes(one) > bytes(other)) return false;
    }
    return std::ranges::all_of(one.changes, [&](const Change* change) {
      return std::ranges::find(other.changes, change) != other.changes.end();
    });
  }
  void look(Attempt& tried) {
    tried.lack = Lack{};
    try {
      const TrainingSetup setup = set_up_training(tried.run.config, tried.run.model, workers_, compute_);
      require_disk_room(setup.plan.memory, setup.offload);
      tried.device_bytes = setup.plan.memory.device_bytes;
      tried.host_bytes = setup.plan.memory.host_bytes;
    } catch (const ShortageError& shortage) {
      tried.lack = shortage.tiers();
    } catch (const Error&) {
      tried.lack.reset();  // what does not go together
    }
  }

  const ChangeableRun run_;
  Workers& workers_;
  const ComputeDevice* const compute_;
  const std::optional<ComputeFacts::OwnMemory> own_memory_;
  const WaysOutBounds bounds_;
  std::vector<Attempt> offered_;
  std::vector<Attempt> spare_;  // that are another one and more
};

// With other budgets those first that take the least memory.
void offer_raised(Search& search, std::vector<Attempt>& attempts) {
  std::erase_if(attempts, [&](Attempt& tried) { return !search.raise(tried); });
  std::ranges::stable_sort(attempts, {}, &Attempt::memory_bytes);
  for (const Attempt& tried : attempts) search.offer(tried);
}

// Of each kind the mildest that is enough, and what is more than that only where nothing else is. Returns
// what is too little.
std::vector<Attempt> try_one(Search& search, const std::vector<Change>& changes) {
  std::vector<Attempt> too_little, more_than_enough;
  std::optional<ChangeKind> enough;
  for (const Change& change : changes) {
    if (search.is_over()) break;
    Attempt tried = search.attempt({&change});
    if (!Search::fits(tried)) {
      too_little.push_back(std::move(tried));
    } else if (enough == change.kind) {
      more_than_enough.push_back(std::move(tried));
    } else {
      enough = change.kind;
      search.offer(tried);
    }
  }
  for (const Attempt& tried : more_than_enough) search.offer(tried);
  return too_little;
}

// Of a kind, the mildest first; every placement is by itself.
std::vector<Changes> groups_of(const std::vector<Attempt>& singles) {
  std::vector<Changes> groups;
  for (const Attempt& single : singles) {
    const Change* const change = single.changes.front();
    const bool joins = !groups.empty() && change->kind != ChangeKind::placement &&
                       groups.back().front()->kind == change->kind;
    if (!joins) groups.emplace_back();
    groups.back().push_back(change);
  }
  return groups;
}

// The mildest of both groups that are enough together. Returns their strongest where those are too little.
std::optional<Attempt> try_groups(Search& search, const Changes& one, const Changes& other) {
  Attempt strongest = search.attempt({one.back(), other.back()});
  if (!Search::fits(strongest)) return strongest;
  for (const Change* first : one) {
    for (const Change* second : other) {
      if (first == one.back() && second == other.back()) break;
      const Attempt tried = search.attempt({first, second});
      if (!Search::fits(tried)) continue;
      search.offer(tried);
      return std::nullopt;
    }
  }
  search.offer(strongest);
  return std::nullopt;
}

// Two of which neither is enough.
std::vector<Attempt> try_two(Search& search, const std::vector<Attempt>& singles) {
  std::vector<Attempt> too_little;
  const std::vector<Changes> groups = groups_of(singles);
  for (size_t one = 0; one < groups.size(); ++one) {
    for (size_t other = one + 1; other < groups.size() && !search.is_over(); ++other) {
      if (groups[one].front()->kind == groups[other].front()->kind) continue;
      std::optional<Attempt> tried = try_groups(search, groups[one], groups[other]);
      if (tried) too_little.push_back(*std::move(tried));
    }
  }
  return too_little;
}

}  // namespace

Shortage find_ways_out(const ShortageError& refusal, const TrainConfig& config, const ModelConfig& model,
                       Workers& workers, const ComputeDevice* compute, const WaysOutBounds& bounds) {
  Search search({config, model}, workers, compute, bounds);
  const std::vector<Change> changes = possible_changes(config, model);
  std::vector<Attempt> budgets = {search.attempt({})};
  offer_raised(search, budgets);
  std::vector<Attempt> singles = try_one(search, changes);
  std::vector<Attempt> pairs = try_two(search, singles);
  if (!search.is_over()) offer_raised(search, singles);
  if (!search.has_enough()) offer_raised(search, pairs);
  return {refusal.tiers(), search.take()};
}

}  // namespace terrace
