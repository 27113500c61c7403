// The optimizer: which keys belong to which, what they are by default, and the precision of its moments.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include <terrace/optimizer_cpu/optimizer_table.h>
#include <terrace/runtime/config/resolve/internal/resolver.h>

namespace terrace {
namespace {

constexpr std::string_view kParams = "optimizer.params.";
constexpr std::string_view kType = "optimizer.type";
constexpr std::string_view kLearningRate = "optimizer.params.lr";
constexpr std::string_view kBetas = "optimizer.params.betas";
constexpr std::string_view kEpsilon = "optimizer.params.eps";
constexpr std::string_view kMomentum = "optimizer.params.momentum";
constexpr std::string_view kDampening = "optimizer.params.dampening";
constexpr std::string_view kNesterov = "optimizer.params.nesterov";
constexpr std::string_view kMatrixRate = "optimizer.params.muon_lr";
constexpr std::string_view kOtherRate = "optimizer.params.adam_lr";
constexpr std::string_view kFp32States = "optimizer.params.fp32_optimizer_states";
constexpr std::string_view kBf16States = "bf16.bf16_optimizer_states";
constexpr std::string_view kStateType = "terrace.state_type";
constexpr std::string_view kBf16Masters = "bf16.bf16_master_weights_and_grads";

// What Hugging Face's trainer fills in for "auto" when it is not told otherwise, whatever the optimizer.
constexpr double kAutoLearningRate = 5e-5;
constexpr double kAutoBeta2 = 0.999;
constexpr double kAutoEpsilon = 1e-8;

// What Keller Jordan's MuonWithAuxAdam has, as which DeepSpeed trains by Muon: of matrices, and of AdamW for
// the rest.
constexpr double kMuonMomentum = 0.95;
constexpr double kAuxLearningRate = 3e-4;
constexpr double kAuxBeta2 = 0.95;
constexpr double kAuxEpsilon = 1e-10;

bool belongs_to(const OptimizerRow& row, std::string_view key) {
  if (key == "lr" || key == "weight_decay" || key == "fp32_optimizer_states") return true;
  const bool is_muon = row.kind == OptimizerKind::muon;
  if (key == "betas") return takes_betas(row);
  if (key == "eps") return row.has_eps;
  if (key == "momentum" || key == "nesterov") return row.has_momentum || is_muon;
  if (key == "dampening") return row.has_momentum;
  if (key == "muon_lr" || key == "adam_lr" || key == "adjust_lr_fn" || key == "ns_steps") return is_muon;
  return row.has_bias_correction;
}

// "Adam, AdamW and Lion".
std::string owners_of(std::string_view key) {
  std::vector<std::string_view> names;
  for (const OptimizerRow& row : kOptimizers) {
    if (belongs_to(row, key)) names.push_back(row.key);
  }
  if (names.size() == 1) return std::string(names.front());
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

}  // namespace

std::string Resolver::optimizer_named() const {
  const ConfigEntry* type = given(kType);
  return fmt::format("{}, {},", type != nullptr ? named(*type) : fmt::format("{} (default)", kType),
                     row_of(config_.optimizer.type).key);
}

void Resolver::resolve_optimizer() {
  OptimizerConfig& optimizer = config_.optimizer;
  const std::string type = text(kType, row_of(optimizer.type).key);
  const auto found = std::ranges::find(kOptimizers, type, &OptimizerRow::key);
  optimizer.type = static_cast<OptimizerType>(found - kOptimizers.begin());
  const OptimizerRow& row = *found;
  check_optimizer_keys();
  const bool as_trainer = is_auto(kLearningRate) || comes_with_a_trainer();
  optimizer.learning_rate = number(kLearningRate, as_trainer ? kAutoLearningRate : row.lr);
  if (comes_with_a_trainer()) record(kLearningRate, fmt::format("{}", optimizer.learning_rate), kTrainersOwn);
  const bool is_muon = row.kind == OptimizerKind::muon;
  if (takes_betas(row)) resolve_betas();
  const double epsilon = is_muon ? kAuxEpsilon : row.eps;
  if (row.has_eps) optimizer.epsilon = number(kEpsilon, is_auto(kEpsilon) ? kAutoEpsilon : epsilon);
  optimizer.weight_decay = number("optimizer.params.weight_decay", optimizer.weight_decay);
  if (row.has_momentum) resolve_momentum();
  if (is_muon) resolve_muon();
  if (!row.has_bias_correction) return;
  optimizer.bias_correction = boolean("optimizer.params.bias_correction", optimizer.bias_correction);
  optimizer.decoupled_weight_decay = boolean("optimizer.params.adam_w_mode", true);
  if (optimizer.type == OptimizerType::adamw && !optimizer.decoupled_weight_decay) {
    const ConfigEntry& mode = *given("optimizer.params.adam_w_mode");
    const ConfigEntry* entry = given(kType);
    problems_.add(mode, fmt::format("{} is false, but {} is AdamW; set the type to Adam", mode.written_key,
                                    entry != nullptr ? named(*entry) : fmt::format("{} (default)", kType)));
  }
}

// DeepSpeed passes the keys to the optimizer's constructor, which does not know another one's.
void Resolver::check_optimizer_keys() {
  const OptimizerRow& row = row_of(config_.optimizer.type);
  for (const auto& [path, entry] : entries_.all()) {
    if (!path.starts_with(kParams)) continue;
    const std::string_view key = std::string_view(path).substr(kParams.size());
    if (find_path(path)->effect != KeyEffect::honoured || belongs_to(row, key)) continue;
    problems_.add(entry, fmt::format("{} is not a key of {}; it belongs to {}", entry.written_key, row.key,
                                     owners_of(key)));
  }
}

void Resolver::resolve_betas() {
  OptimizerConfig& optimizer = config_.optimizer;
  const OptimizerRow& row = row_of(optimizer.type);
  optimizer.beta2 = row.kind == OptimizerKind::muon ? kAuxBeta2 : row.beta2;
  const std::vector<double> betas =
      numbers(kBetas, {optimizer.beta1, is_auto(kBetas) ? kAutoBeta2 : optimizer.beta2});
  if (betas.size() == 2) {
    optimizer.beta1 = betas[0];
    optimizer.beta2 = betas[1];
    return;
  }
  const ConfigEntry& entry = *given(kBetas);
  problems_.add(entry, fmt::format("{} has {} values; it needs two", entry.written_key, betas.size()));
}

// As torch.optim.SGD has it.
void Resolver::resolve_momentum() {
  OptimizerConfig& optimizer = config_.optimizer;
  optimizer.momentum = number(kMomentum, optimizer.momentum);
  optimizer.dampening = number(kDampening, optimizer.dampening);
  optimizer.nesterov = boolean(kNesterov, optimizer.nesterov);
  const ConfigEntry* dampening = given(kDampening);
  if (!optimizer.nesterov) {
    if (dampening != nullptr && optimizer.momentum == 0)
      idle_.push_back({dampening->written_key, "momentum is 0"});
    return;
  }
  const ConfigEntry& nesterov = *given(kNesterov);
  const ConfigEntry* momentum = given(kMomentum);
  if (optimizer.momentum == 0) {
    problems_.add(nesterov, fmt::format("{} is true, but {} is 0", nesterov.written_key,
                                        momentum != nullptr ? named(*momentum)
                                                            : fmt::format("{} (default)", kMomentum)));
  }
  if (optimizer.dampening != 0) {
    problems_.add(nesterov, fmt::format("{} is true, but {} is {}; it must be 0 then", nesterov.written_key,
                                        named(*dampening), optimizer.dampening));
  }
}

// The keys of DeepSpeed's Muon, and of torch.optim.Muon where that has more.
void Resolver::resolve_muon() {
  OptimizerConfig& optimizer = config_.optimizer;
  const bool gives_rate = entries_.find(kLearningRate) != nullptr;
  const double shared = optimizer.learning_rate;
  const auto rate = [&](std::string_view key, double own) {
    const double value = number(key, is_auto(key) ? kAutoLearningRate : own);
    if (gives_rate && entries_.find(key) == nullptr) record(key, fmt::format("{}", value), "as lr");
    return value;
  };
  optimizer.matrix_learning_rate = rate(kMatrixRate, shared);
  optimizer.learning_rate = rate(kOtherRate, gives_rate ? shared : kAuxLearningRate);
  optimizer.momentum = number(kMomentum, kMuonMomentum);
  optimizer.nesterov = boolean(kNesterov, true);
  MuonSettings& muon = optimizer.muon;
  muon.iterations = small("optimizer.params.ns_steps", muon.iterations);
  muon.matches_adamw = text("optimizer.params.adjust_lr_fn", "original") == "match_rms_adamw";
}

// Two keys of DeepSpeed say the same thing of moments, which derives the optimizer's from that of bf16; the
// key of our own says more.
void Resolver::resolve_moments() {
  OptimizerConfig& optimizer = config_.optimizer;
  const bool fp32_states = boolean(kFp32States, true);
  const bool bf16_states = boolean(kBf16States, false);
  const ConfigEntry* fp32 = given(kFp32States);
  const ConfigEntry* bf16 = given(kBf16States);
  const bool is_bf16 = config_.precision == DataType::bf16;
  explain_master_weights();
  if (is_bf16 && fp32 != nullptr && bf16 != nullptr && fp32_states == bf16_states) {
    problems_.add(*fp32, fmt::format("{} and {} are both {}, and mean the opposite of each other",
                                     fp32->written_key, named(*bf16), fp32_states));
    return;
  }
  if (bf16 != nullptr && !is_bf16) idle_.push_back({bf16->written_key, "bf16.enabled is false"});
  if (!fp32_states && config_.precision == DataType::fp16) {
    problems_.add(*fp32, fmt::format("{} is false, but {} is true: moments are fp32 or bf16, not fp16",
                                     fp32->written_key, named(*given("fp16.enabled"))));
  }
  if (!fp32_states && config_.precision == DataType::fp32)
    idle_.push_back({fp32->written_key, "parameters are fp32, and so are moments then"});
  const bool wants_bf16 = is_bf16 && (!fp32_states || bf16_states);
  if (wants_bf16) optimizer.moment_type = MomentType::bf16;
  const ConfigEntry* wanted = wants_bf16 ? (bf16_states ? bf16 : fp32) : nullptr;
  if (const std::optional<MomentType> own = moment_type_from_name(text(kStateType, "auto"))) {
    const ConfigEntry& type = *given(kStateType);
    for (const ConfigEntry* other : {fp32, bf16}) require_moments(type, *own, other);
    optimizer.moment_type = *own;
    wanted = &type;
  }
  if (wanted != nullptr && row_of(optimizer.type).has_momentum && optimizer.momentum == 0) {
    optimizer.moment_type = MomentType::fp32;
    idle_.push_back({wanted->written_key, "SGD without momentum keeps no moments"});
  }
}

// `other`, if it is given, must not say another type of moments than `own`.
void Resolver::require_moments(const ConfigEntry& type, MomentType own, const ConfigEntry* other) {
  if (other == nullptr || config_.precision != DataType::bf16) return;
  const bool is_fp32 =
      other == given(kFp32States) ? boolean(kFp32States, true) : !boolean(kBf16States, false);
  if (own == (is_fp32 ? MomentType::fp32 : MomentType::bf16)) return;
  problems_.add(type, fmt::format("{} is {}, but by {} moments are {}", type.written_key, name_of(own),
                                  named(*other), is_fp32 ? "fp32" : "bf16"));
}

// DeepSpeed has bf16 moments only together with bf16 master weights; a file that asks for the moments has
// both keys.
void Resolver::explain_master_weights() {
  const bool wanted = boolean(kBf16Masters, false);
  if (!wanted) return;
  const ConfigEntry& masters = *given(kBf16Masters);
  const ConfigEntry* states = given(kBf16States);
  if (for_engine_ && config_.precision == DataType::bf16 && states != nullptr && states->value.boolean) {
    idle_.push_back({masters.written_key, "master weights are always fp32"});
  } else if (config_.precision != DataType::bf16) {
    idle_.push_back({masters.written_key, "bf16.enabled is false"});
  } else if (states != nullptr && states->value.boolean) {
    config_.warnings.push_back(fmt::format(
        "{} has no effect: master weights stay fp32, moments are bf16 ({}); terrace.compact_state "
        "keeps the same fp32 numbers in 2 bytes beside the bf16 parameters",
        named(masters), named(*states)));
  } else {
    problems_.add(masters,
                  fmt::format("{} is true, but {} is not: it is accepted beside bf16 moments only, because "
                              "master weights are always fp32",
                              masters.written_key, kBf16States));
  }
}

}  // namespace terrace
