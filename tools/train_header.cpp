#include "train_header.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>
#include <terrace/base/shown_text.h>
#include <terrace/base/units.h>
#include <terrace/runtime/checkpoint/inventory.h>
#include <terrace/runtime/compute_threads.h>

#include "text_table.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

std::string kept_on_nvme(const std::vector<fs::path>& paths, uint64_t chunks, uint64_t kept,
                         const char* what) {
  std::string names;
  for (const fs::path& path : paths) names += (names.empty() ? "" : ", ") + path.string();
  return fmt::format("nvme ({}); {} of {} chunks of {} kept in host memory", names, kept, chunks, what);
}

std::string parameters_text(const PlacementConfig& placement, const TrainerPlan& plan) {
  const std::string size = fmt::format("{}: ", format_bytes(plan.param_bytes));
  if (placement.parameters == Placement::none) return size + "device memory";
  if (placement.parameters == Placement::cpu) return size + "host memory (cpu)";
  return size + kept_on_nvme(placement.parameter_paths, plan.memory.parameter_chunks,
                             plan.memory.host_param_slots, "parameters");
}

std::string states_text(const PlacementConfig& placement, const TrainerPlan& plan) {
  const std::string size = fmt::format("{}: ", format_bytes(plan.state_bytes));
  if (placement.states == Placement::none) return size + "device memory";
  if (placement.states == Placement::cpu) return size + "host memory (cpu)";
  return size + kept_on_nvme(placement.state_paths, plan.memory.record_chunks, plan.memory.host_record_slots,
                             "states");
}

std::string device_text(const TrainerPlan& plan) {
  const MemoryPlan& memory = plan.memory;
  std::string text =
      fmt::format("activations and workspaces {}, {} chunk slots of {} = {} (at least {})",
                  format_bytes(memory.work_bytes), memory.device_slots, format_bytes(memory.slot_bytes),
                  format_bytes(memory.device_slots * memory.slot_bytes), memory.device_slots_minimum);
  if (memory.device_activation_entries > 0)
    text += fmt::format(", activation checkpoints {}", format_bytes(memory.device_activation_bytes()));
  if (memory.device_record_slots > 0)
    text += fmt::format(", states {}", format_bytes(memory.device_record_slots * memory.record_slot_bytes));
  if (memory.device_lanes > 0)
    text += fmt::format(", updates of states below it {}", format_bytes(memory.device_lanes_bytes()));
  return text;
}

std::string host_text(const TrainerPlan& plan) {
  const MemoryPlan& memory = plan.memory;
  std::string text;
  const auto add = [&text](const char* what, uint64_t bytes) {
    if (bytes > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, format_bytes(bytes));
  };
  add("parameters", memory.host_param_slots * memory.slot_bytes);
  add("gradients", memory.host_gradient_slots * memory.slot_bytes +
                       memory.host_accumulator_slots * memory.accumulator_slot_bytes +
                       memory.gradient_sum_bytes);
  add("states", memory.host_record_slots * memory.record_slot_bytes);
  add("activation checkpoints", memory.host_activation_bytes());
  add("staging",
      (memory.staging_slots + memory.old_parameter_slots + memory.landing_slots) * memory.slot_bytes +
          2 * memory.spill_slots * memory.spill_slot_bytes);
  add("I/O ring", memory.ring_slots * memory.ring_slot_bytes);
  add("copies of epochs", memory.epoch_slots * memory.epoch_slot_bytes);
  add("bookkeeping of chunks", memory.bookkeeping_bytes);
  return text;
}

// How far the run exceeds the memory it gets: budgets as shares of what they stand in for, where they are
// less.
void add_shares(std::vector<ReportFact>& facts, const PlacementConfig& placement, const TrainerPlan& plan) {
  const auto share = [](const char* what, uint64_t bytes, const char* whole, uint64_t of) {
    return fmt::format(
        "{} {:.1f} MB = {:.0f} % of the {} ({:.1f} MB)", what, static_cast<double>(bytes) * 1e-6,
        100 * static_cast<double>(bytes) / static_cast<double>(of), whole, static_cast<double>(of) * 1e-6);
  };
  const char* name = "in short";
  if (placement.parameters != Placement::none && plan.device.bytes <= plan.param_bytes) {
    facts.push_back({name, share("device budget", plan.device.bytes, "parameters", plan.param_bytes)});
    name = "";
    facts.push_back(
        {name, share("of it parameter and gradient slots", plan.memory.device_slots * plan.memory.slot_bytes,
                     "parameters", plan.param_bytes)});
  }
  if (placement.states == Placement::nvme && plan.host.bytes <= plan.state_bytes)
    facts.push_back({name, share("host budget", plan.host.bytes, "states", plan.state_bytes)});
}

fs::path absolute_existing(const fs::path& path) {
  fs::path existing = fs::absolute(path);
  while (!fs::exists(existing) && existing.has_relative_path()) existing = existing.parent_path();
  return existing;
}

[[noreturn]] void fail_to_use(const char* what, const fs::path& path, const std::string& reason,
                              const char* advice) {
  throw Error(ErrorKind::io, {what, path.string(), reason, advice});
}

void try_to_write(const fs::path& folder, const char* what, const char* advice) {
  std::string name = (folder / ".terrace-write-test-XXXXXX").string();
  const int fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) fail_to_use(what, folder, system_reason(errno), advice);
  close(fd);
  if (unlink(name.c_str()) != 0) fail_to_use(what, folder, system_reason(errno), advice);
}

dev_t device_of(const fs::path& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? status.st_dev : 0;
}

// Refuses folders that are not there, cannot be written to, or are one folder by two names.
void check_folders(const std::vector<fs::path>& paths) {
  constexpr const char* kWhat = "cannot use the nvme path";
  constexpr const char* kAdvice = "create the folder, or name one on a fast local disk with --nvme-path";
  std::map<std::pair<dev_t, ino_t>, fs::path> seen;
  for (const fs::path& path : paths) {
    struct stat status {};
    const bool is_there = stat(path.c_str(), &status) == 0;
    const int error = is_there ? ENOTDIR : errno;
    // What is not there, or no folder, was named by mistake; anything else is the system's doing.
    if (!is_there && error != ENOENT && error != ENOTDIR)
      fail_to_use(kWhat, path, system_reason(error), kAdvice);
    if (!is_there || !S_ISDIR(status.st_mode))
      throw Error(ErrorKind::config, {kWhat, path.string(), system_reason(error), kAdvice});
    const auto [earlier, is_new] = seen.try_emplace({status.st_dev, status.st_ino}, path);
    if (!is_new) {
      throw Error(ErrorKind::config,
                  {kWhat, path.string(), fmt::format("it is the same folder as {}", earlier->second.string()),
                   "name each folder once; a second folder helps when it is on another drive"});
    }
    try_to_write(path, kWhat, "choose a path that this user may write to");
  }
}

// What a dead job left below an nvme path; the tier folder removes it before it takes space of its own.
uint64_t stale_bytes_in(const fs::path& nvme_path) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(nvme_path / "terrace-tier", error)) {
    if (entry.path().extension() == ".tier" && entry.is_regular_file(error)) bytes += entry.file_size(error);
  }
  return bytes;
}

const char* moment_names(uint32_t count) {
  return count == 0 ? "no moments" : count == 1 ? "one moment" : "two moments";
}

std::string optimizer_text(const TrainConfig& config, const TrainerPlan& plan) {
  const RecordLayout& layout = plan.memory.record_layout;
  const bool compact = layout.master == MasterForm::remainder;
  std::string text = fmt::format(
      "{}, {} bytes of states per parameter: {}, {}", name_of(config.optimizer.type),
      layout.tile_bytes() / kTileElements,
      compact ? "what the bf16 parameter lacks of its fp32 master weight" : "the fp32 master weight",
      moment_names(layout.moment_count));
  if (layout.moment_count > 0) text += fmt::format(" in {}", name_of(layout.moment_type));
  return text;
}

std::string update_text(const TrainConfig& config) {
  if (config.terrace.update) return fmt::format("{}, as configured", name_of(*config.terrace.update));
  if (config.placement.states == Placement::none)
    return "after_backward, because the states are in device memory";
  return "after_backward at first, then what the first steps show to be the fastest";
}

// Of states below the device. Empty where nothing was asked for and the processor does all.
std::string side_text(const PlacementConfig& placement, const TrainerPlan& plan) {
  if (plan.memory.device_update_chunks == 0 && placement.processor_share == 1) return "";
  if (plan.memory.device_update_chunks == 0)
    return fmt::format(
        "the processor does all of it: chunks are whole, and a ratio of {} leaves the device none of them",
        placement.processor_share);
  if (plan.processor_share == 0) return "the device does all of it";
  return fmt::format("the processor does {:.3g} of it, and the device the rest at the same time",
                     plan.processor_share);
}

std::string order_text(const TrainConfig& config) {
  return config.batch.layer_major ? "all micro-batches layer by layer: parameters move once per step"
                                  : "one micro-batch after the other";
}

std::string trained_text(const TrainerPlan& plan) {
  if (plan.trainable_count == plan.parameter_count) return "";
  return fmt::format(", {} of them trained", grouped(plan.trainable_count));
}

std::string precision_text(const TrainConfig& config) {
  std::string text =
      fmt::format("{} parameters and gradients, fp32 master weights", name_of(config.precision));
  if (config.batch.accumulation_steps > 1 &&
      config.grad_accum_type.value_or(DataType::fp32) != DataType::fp32)
    text += fmt::format(", gradients added up in {}", name_of(*config.grad_accum_type));
  if (config.precision != DataType::fp16) return text;
  return text + (config.fp16.loss_scale > 0
                     ? fmt::format(", loss scale {}", config.fp16.loss_scale)
                     : fmt::format(", loss scale from 2^{}", config.fp16.initial_scale_power));
}

}  // namespace

std::vector<ReportFact> training_facts(const TrainerOptions& options, const TrainerPlan& plan,
                                       const TrainingData& data, double unigram_loss) {
  const TrainConfig& config = options.config;
  const PlacementConfig& placement = config.placement;
  const BatchConfig& batch = config.batch;
  std::vector<ReportFact> facts;
  const auto add = [&facts](const char* name, std::string text) { facts.push_back({name, std::move(text)}); };
  add("model", fmt::format("{}, {} layers of width {}, {} heads, context {}, vocabulary {}: {} parameters{}",
                           name_of(options.model.family), options.model.layers, options.model.width,
                           options.model.heads, options.model.context, options.model.vocabulary,
                           grouped(plan.parameter_count), trained_text(plan)));
  add("precision", precision_text(config));
  add("optimizer", optimizer_text(config, plan));
  add("update", update_text(config));
  if (placement.states != Placement::none) {
    const std::string sides = side_text(placement, plan);
    if (!sides.empty()) add("", sides);
  }
  add("threads", compute_threads_text(make_compute_threads(config.terrace)));
  add("batch", fmt::format("{} x {} micro-batches of {} tokens = {} tokens per step, {} steps",
                           batch.micro_batch_size, batch.accumulation_steps, options.model.context,
                           batch.train_batch_size() * options.model.context, options.steps));
  if (batch.accumulation_steps > 1) add("", order_text(config));
  add("data", data.description());
  add("",
      fmt::format("{} tokens for training, {} held out; unigram loss {:.3f} nats per token",
                  grouped(data.train_token_count()), grouped(data.validation_token_count()), unigram_loss));
  add("", fmt::format("{} samples, each once per epoch", grouped(data.sample_count())));
  add("parameters", parameters_text(placement, plan));
  add("states", states_text(placement, plan));
  add("device", fmt::format("{}, {}", format_bytes(plan.device.bytes), plan.device.origin));
  add("", device_text(plan));
  add("host", fmt::format("{}, {}", format_bytes(plan.host.bytes), plan.host.origin));
  add("", host_text(plan));
  add_shares(facts, placement, plan);
  add("chunks", fmt::format("{} elements, {}", grouped(plan.chunk_elements), plan.chunk_origin));
  if (!plan.engine.empty()) add("engine", plan.engine);
  const char* name = "disk";
  for (const auto& [path, bytes, least_bytes] : plan.disk) {
    add(std::exchange(name, ""), fmt::format("{} in {}, where {} are free", format_bytes(bytes),
                                             path.string(), format_bytes(io::free_bytes_at(path))));
  }
  return facts;
}

std::string training_header(const std::vector<ReportFact>& facts) {
  std::string text = "terrace " TERRACE_VERSION "\n";
  for (const ReportFact& fact : facts)
    text += fmt::format("  {:<11} {}\n", fact.name, shown_message(fact.text));
  return text;
}

namespace {

std::string checkpoint_notice(const TrainFlags& flags) {
  const std::string premise = "checkpoints are the only guarantee against a crash";
  if (flags.save.empty()) {
    return fmt::format("{}, and --save is not given: a crash costs every step since the start", premise);
  }
  if (flags.save_every == 0) {
    return fmt::format("{}, and --save-every is not given: a crash costs every step since the start",
                       premise);
  }
  return fmt::format("{}: one costs up to {} steps (--save-every {})", premise, flags.save_every,
                     flags.save_every);
}

}  // namespace

std::string crash_notice(const TrainFlags& flags, const TrainConfig& config, const TrainerPlan& plan) {
  if (!plan.memory.keeps_epochs) {
    const std::string why = fmt::format("no epochs are kept on nvme, because {}", plan.memory.why_no_epochs);
    return config.placement.states == Placement::nvme ? why + "; " + checkpoint_notice(flags)
                                                      : checkpoint_notice(flags);
  }
  const TerraceConfig& own = config.terrace;
  std::string most;
  if (own.commit_every_steps > 0)
    most = fmt::format("{} step{}", own.commit_every_steps, own.commit_every_steps == 1 ? "" : "s");
  if (own.commit_every_seconds > 0)
    most += fmt::format("{}{} s", most.empty() ? "" : " or ", own.commit_every_seconds);
  if (most.empty()) {
    return "the state on nvme survives any crash, but terrace.commit_every_steps and _seconds are 0: only "
           "the "
           "end of the run and its checkpoints commit it";
  }
  return fmt::format(
      "after a crash the last epoch on nvme is whole: at most {} of work, and the commit that was "
      "under way, are lost (--resume nvme or auto goes on)",
      most);
}

void check_nvme_folders(const PlacementConfig& placement) {
  if (placement.parameters == Placement::nvme) check_folders(placement.parameter_paths);
  if (placement.states == Placement::nvme) check_folders(placement.state_paths);
}

namespace {

// Whether the checkpoint to resume from is one of `folder`'s, or there is none.
bool goes_on_from(const std::string& resume, const fs::path& folder) {
  if (resume.empty() || resume == kResumeAuto || resume == kResumeNvme) return true;
  std::error_code error;
  if (fs::equivalent(resume, folder, error)) return true;
  return fs::equivalent(fs::absolute(resume).lexically_normal() / "..", folder, error);
}

}  // namespace

std::unique_ptr<CheckpointFolder> open_save_folder(const TrainFlags& flags, const TrainerPlan& plan,
                                                   Log& log) {
  if (flags.save.empty()) return nullptr;
  constexpr const char* kWhat = "cannot save checkpoints in";
  constexpr const char* kAdvice = "name a folder that can be written to with --save";
  const fs::path folder = flags.save;
  std::error_code error;
  const fs::path existing = absolute_existing(folder);
  fs::create_directories(folder, error);
  if (error) {
    fail_to_use(
        kWhat, folder,
        fmt::format("it cannot be created below {}: {}", existing.string(), system_reason(error.value())),
        kAdvice);
  }
  const bool has_checkpoints = is_checkpoint_folder(folder);
  if (flags.resume.empty() && has_checkpoints) {
    throw Error(ErrorKind::config, {"this run would replace the checkpoints of another", folder.string(),
                                    "it holds checkpoints and --resume is not given",
                                    "give --resume auto to go on from them, or save to another folder"});
  }
  if (!goes_on_from(flags.resume, folder) && has_checkpoints) {
    throw Error(ErrorKind::config, {"this run would mix its checkpoints with those of another",
                                    folder.string(), "it does not hold the one that --resume names",
                                    "save to the folder of that checkpoint, or to one of its own"});
  }
  try_to_write(folder, kWhat, kAdvice);

  uint64_t needed = plan.saved_state_bytes;
  uint64_t available = io::free_bytes_at(folder);
  for (const auto& [path, bytes, least_bytes] : plan.disk) {
    if (device_of(path) != device_of(folder)) continue;
    needed += least_bytes;
    available += stale_bytes_in(path);
  }
  if (needed <= available) return std::make_unique<CheckpointFolder>(folder, log);
  throw Error(ErrorKind::capacity, {"there is no room for a checkpoint in", folder.string(),
                                    fmt::format("{} are needed there, tier files included, and {} are free",
                                                format_bytes(needed), format_bytes(available)),
                                    "free space there, or name a folder on a larger disk with --save"});
}

}  // namespace terrace
