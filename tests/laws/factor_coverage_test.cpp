// Nothing that a training can be told to do stands outside the laws: every option of an Offloader and every
// enum of the modules below the runtime is a factor, or is named here with the reason why it is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "laws/kept_states.h"
#include "laws/law_training.h"
#include "support/enum_values.h"
#include "support/scratch_folder.h"

namespace terrace::laws::factor_coverage_test {
namespace {

namespace fs = std::filesystem;

struct Reason {
  std::string_view why;
};
struct Standing {
  Standing(FactorIndex index) : factor(index) {}
  Standing(Reason reason) : why(reason.why) {}
  std::optional<FactorIndex> factor;
  std::string_view why;
};
using Standings = std::map<std::string, Standing>;

constexpr Reason kRunsOfBoth{"a law starts fresh, and then takes up what it has left"};
constexpr Reason kLooksOn{"looks on and decides nothing; recorded trainings are in PlacementLaw"};
constexpr Reason kFromElsewhere{"made by the rig for what a factor says"};
constexpr Reason kNoLayout{"decides how soon something is done, and neither where it lies nor its bits"};

const Standings& standing_of_options() {
  static const Standings standings = {
      {"parameters", kParameters},
      {"states", kStates},
      {"parameter_paths", kPaths},
      {"state_paths", kPaths},
      {"tier_name", Reason{"other paths, and nothing else: tier_name_test"}},
      {"durable", kCommits},
      {"retained_commits", kRetained},
      {"tier_start", kBegins},
      {"discard_commits", kBegins},
      {"record_layout", kMaster},
      {"processor_share", kShare},
      {"update_rates", Reason{"a share that is decided chunk by chunk; update_sides_test"}},
      {"device_budget_bytes", kDevice},
      {"device_granularity_bytes", Reason{"of a GPU: the CUDA training tests"}},
      {"host_budget_bytes", kHost},
      {"work_bytes", kFromElsewhere},
      {"activation_entries", kActivations},
      {"activation_entry_bytes", kActivations},
      {"activations", kActivations},
      {"activations_fill_device", Reason{"activations belong to a step and are never kept"}},
      {"activation_get_order", kActivations},
      {"saved_activations", kActivations},
      {"saved_least_bytes", kActivations},
      {"lock_host_memory", Reason{"the kernel's, and often refused in a container"}},
      {"micro_batches", kAccumulation},
      {"layer_major", kOrder},
      {"model_ranks", kPart},
      {"holds_gradients", Reason{"a budget is refused with it, or it changes nothing"}},
      {"gradients", kGradients},
      {"unused_gradients", kUnused},
      {"accumulation_type", kAccumulationType},
      {"policy", kPolicy},
      {"prefetch_uses", kPrefetch},
      {"prefetch_elements", kNoLayout},
      {"reads_past_host", Reason{"of a GPU with cuFile: cuda_file_reads_test, settle_test"}},
      {"io", kEngine},
      {"decorate_engine", kFromElsewhere},
      {"verify_checksums", Reason{"off, what a disk corrupts is not found, as its documentation says"}},
      {"dry", Reason{"a plan, which keeps nothing"}},
      {"file_events", kLooksOn},
      {"decisions", kLooksOn},
      {"clock", kNoLayout},
      {"device_arithmetic", Reason{"of a GPU: the CUDA training tests"}},
      {"step_events", kLooksOn},
      {"ranks", kRanks},
      {"rank", kRanks},
      {"hosts", kHosts},
      {"keeps_gathers_first", kBackEnd},
      {"sub_group_hosts", kHosts},
      {"communicator", kBackEnd},
      {"divides_parameters", kParameters},
      {"exchanges_by_copies", kBackEnd},
      {"gathers_by_copies", kBackEnd},
      {"gradient_group", kGroup},
      {"matrix_products", kCompute},
      {"gradient_bits", kRounding},
      {"parameter_bits", kRounding},
      {"ranks_overlap", kBackEnd},
      {"rank_exchange", kBackEnd},
      {"compare_ranks_every_steps", kBackEnd},
  };
  return standings;
}

const Standings& standing_of_enums() {
  constexpr Reason kInside{"a condition inside of a module, not a choice"};
  constexpr Reason kIdentity{"a number with a type of its own"};
  static const Standings standings = {
      {"DataType", kPrecision},
      {"ErrorKind", kInside},
      {"ErrorCause", kInside},
      {"Door", Reason{"words of messages: wording_test"}},
      {"Option", Reason{"names of options in messages: wording_test"}},
      {"LogLevel", kLooksOn},
      {"MasterForm", kMaster},
      {"MomentType", kMoments},
      {"CopyDirections", Reason{"of a measurement"}},
      {"DeviceSlot", kIdentity},
      {"PolicyKind", kPolicy},
      {"MoveMethod", kInside},
      {"TensorId", kIdentity},
      {"ChunkId", kIdentity},
      {"SavedActivation", kIdentity},
      {"UseKind", kInside},
      {"TensorState", kInside},
      {"ChunkState", kInside},
      {"TierStart", kRunsOfBoth},
      {"OpKind", kInside},
      {"Priority", kInside},
      {"EngineKind", kEngine},
      {"FaultKind", Reason{"the attacks of KeptStateLaw"}},
      {"FileAccess", kInside},
      {"StreamKind", Reason{"of a measurement"}},
      {"Resource", kInside},
      {"DecisionKind", kInside},
      {"SlotFilling", kInside},
      {"StaleParams", kInside},
      {"StepEnd", kInside},
      {"StepStart", Reason{"of a bound that is computed"}},
      {"CommitPart", kInside},
      {"AfterStep", Reason{"of a bound that is computed"}},
      {"Placement", kParameters},
      {"TimeCause", kLooksOn},
      {"RankExchange", kBackEnd},
      {"RankWait", kLooksOn},
      {"UpdateMode", kUpdate},
      {"LeasedGradients", kInside},
      {"GradientOrigin", kGradients},
      {"UnusedGradients", kUnused},
      {"TensorHome", kOwner},
      {"StatePart", kInside},
      {"ValueKind", kInitialValues},
      {"InstructionSet", Reason{"the tests of the update's kernels have each against the scalar one"}},
      {"OptimizerKind", kOptimizer},
      {"OptimizerType", kOptimizer},
      {"MuonPart", kOptimizer},
      {"Rule", kOptimizer},
      {"Format", kCompute},
      {"WeightCode", kModel},
      {"ProductType", kCompute},
      {"CounterUnit", kLooksOn},
      {"JsonLayout", kLooksOn},
      {"TraceGauge", kLooksOn},
      {"TraceKind", kLooksOn},
      {"TraceLink", kLooksOn},
      {"TransferReason", kLooksOn},
      {"TransferRole", kLooksOn},
  };
  return standings;
}

const fs::path kTree = fs::path(TERRACE_TEST_SOURCES).parent_path();

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> all_matches(const std::string& text, const std::regex& pattern) {
  std::set<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match)
    found.insert((*match)[1]);
  return found;
}

std::set<std::string> keys_of(const Standings& standings) {
  std::set<std::string> keys;
  for (const auto& [name, standing] : standings) {
    EXPECT_TRUE(standing.factor || !standing.why.empty()) << name;
    keys.insert(name);
  }
  return keys;
}

TEST(FactorCoverage, NamesEveryOptionOfAnOffloader) {
  std::set<std::string> members;
  for (const std::string name : {"options", "hooks"}) {
    const std::string text = text_of(kTree / "offload" / "options" / ("offload_" + name + ".h"));
    const size_t begin = text.find(name == "options" ? "struct OffloadOptions {" : "struct OffloadHooks {");
    ASSERT_NE(begin, std::string::npos);
    members.merge(all_matches(text.substr(begin, text.find("\n};", begin) - begin),
                              std::regex(R"(\n  [^/\n][^;\n]*?(\w+)(?: = [^;\n]*)?;)")));
  }
  EXPECT_EQ(members.erase("hooks"), 1u);  // which stands for its own members
  EXPECT_EQ(members, keys_of(standing_of_options()));
}

TEST(FactorCoverage, NamesEveryEnumBelowTheRuntime) {
  std::set<std::string> found;
  for (const char* module : {"base", "memory", "aio", "offload", "optimizer_cpu"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kTree / module)) {
      if (entry.path().extension() == ".h" && entry.path().parent_path().filename() != "internal")
        found.merge(all_matches(text_of(entry.path()), std::regex(R"(\nenum class (\w+))")));
    }
  }
  EXPECT_EQ(found, keys_of(standing_of_enums()));
}

// What the Offloader was really told, over a covering array.
struct Seen {
  std::set<Placement> parameters, states, saved;
  std::set<PolicyKind> policies;
  std::set<io::EngineKind> engines;
  std::set<MasterForm> masters;
  std::set<MomentType> moments;
  std::set<DataType> types, accumulation_types;
  std::set<UpdateMode> modes;
  std::set<OptimizerKind> optimizers;
  std::set<double> shares;
  std::set<size_t> paths;
  std::set<uint32_t> retained;
  std::set<bool> durable, layer_major, spills, activations_leave, begins_over, several_types, groups;
  std::set<uint32_t> gradient_bits, parameter_bits;
};

TEST(FactorCoverage, EveryEnumeratorIsInEffectSomewhere) {
  Seen seen;
  std::vector<Combination> list = covering_array(Strength::pairs);
  for (const std::vector<Combination>& rare :  // for pairs of all
       {covering_array_of_parameter_masters(), covering_array_with_commits({{kBegins, {"over a commit"}}})})
    list.insert(list.end(), rare.begin(), rare.end());
  for (const Combination& c : list) {
    const ScratchFolder folder;
    LawTraining training(c, {.folder = folder.path()});
    const OffloadOptions& options = training.options();
    seen.parameters.insert(options.parameters), seen.states.insert(options.states);
    seen.saved.insert(options.saved_activations);
    seen.policies.insert(options.policy), seen.engines.insert(options.io.kind);
    seen.masters.insert(options.record_layout.master);
    if (options.record_layout.moment_count > 0) seen.moments.insert(options.record_layout.moment_type);
    seen.types.insert(training.space().sections().front().type);
    seen.several_types.insert(training.space().sections().front().type !=
                              training.space().sections().back().type);
    seen.accumulation_types.insert(options.accumulation_type);
    seen.optimizers.insert(training_of(c).optimizer.kind);
    seen.shares.insert(options.processor_share), seen.paths.insert(options.state_paths.size());
    seen.retained.insert(options.retained_commits);
    seen.durable.insert(training.offloader().commits().are_kept());
    seen.layer_major.insert(options.layer_major);
    seen.groups.insert(rounds_of(options).has_groups());
    seen.gradient_bits.insert(options.gradient_bits), seen.parameter_bits.insert(options.parameter_bits);
    seen.spills.insert(training.offloader().plan().spilled_chunks > 0);
    seen.activations_leave.insert(options.activation_entries > 0);
    seen.begins_over.insert(training.offloader().commits().earlier_stays());
    training.choose_mode();
    seen.modes.insert(training.offloader().update_mode());
  }
  using testing::enumerator_count;
  EXPECT_EQ(seen.parameters.size(), enumerator_count<Placement>());
  EXPECT_EQ(seen.states.size(), enumerator_count<Placement>());
  EXPECT_EQ(seen.saved.size(), enumerator_count<Placement>());
  EXPECT_EQ(seen.policies.size(), enumerator_count<PolicyKind>());
  EXPECT_EQ(seen.engines.size(), enumerator_count<io::EngineKind>());
  EXPECT_EQ(seen.masters.size(), enumerator_count<MasterForm>());
  EXPECT_EQ(seen.moments.size(), enumerator_count<MomentType>());
  EXPECT_EQ(seen.types.size(), enumerator_count<DataType>());
  EXPECT_EQ(seen.accumulation_types.size(), enumerator_count<DataType>());
  EXPECT_EQ(seen.modes.size(), enumerator_count<UpdateMode>());
  EXPECT_EQ(seen.optimizers.size(), enumerator_count<OptimizerKind>());
  EXPECT_EQ(seen.shares.size(), factors()[kShare].levels.size());
  EXPECT_EQ(seen.paths.size(), factors()[kPaths].levels.size());
  EXPECT_EQ(seen.retained.size(), factors()[kRetained].levels.size());
  EXPECT_EQ(seen.gradient_bits, (std::set<uint32_t>{0, 4, 8}));
  EXPECT_EQ(seen.parameter_bits, (std::set<uint32_t>{0, 8}));
  const std::pair<const char*, std::set<bool>> both[] = {
      {"durable", seen.durable},
      {"layer-major", seen.layer_major},
      {"spills", seen.spills},
      {"activations leave", seen.activations_leave},
      {"begins over a commit", seen.begins_over},
      {"several types", seen.several_types},
      {"gradient groups", seen.groups},
  };
  for (const auto& [what, levels] : both) EXPECT_EQ(levels.size(), 2u) << what;
}

}  // namespace
}  // namespace terrace::laws::factor_coverage_test
