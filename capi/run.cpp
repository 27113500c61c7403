// terrace_run.h: a run that is seen.
#include <terrace/capi/run.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <terrace/capi/errors.h>
#include <terrace/capi/structs.h>
#include <terrace/offload/watch/counters.h>

using namespace terrace;  // NOLINT: the functions of C are in no namespace
using c::in_store;

namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr const char* kFollow = "cannot follow the run";

std::string text_or(const char* text, const char* otherwise) {
  return text != nullptr ? text : otherwise;
}

MonitorTarget monitor_in(const char* folder) {
  if (folder == nullptr) return {};
  return {.enabled = true, .output_path = folder, .job_name = ""};
}

// Tags are literals, so that each ends with a zero.
void tell_scalars(terrace_run_scalars_fn hear, void* context, const ScalarEvent& event) {
  std::vector<const char*> tags;
  std::vector<double> values;
  for (const Scalar& scalar : event.scalars) {
    tags.push_back(scalar.tag.data());
    values.push_back(scalar.value);
  }
  hear(context, event.samples, tags.data(), values.data(), static_cast<uint32_t>(tags.size()));
}

std::optional<MonitorSettings> monitor_settings_of(const terrace_run_options& options) {
  if (options.tensorboard == nullptr && options.csv == nullptr && options.scalars == nullptr)
    return std::nullopt;
  MonitorSettings settings{{monitor_in(options.tensorboard), monitor_in(options.csv)},
                           options.has_loss_scale != 0,
                           options.has_times != 0};
  if (options.scalars != nullptr)
    settings.listener = [hear = options.scalars, context = options.scalars_context](
                            const ScalarEvent& event) { tell_scalars(hear, context, event); };
  return settings;
}

RunHeader header_of(const terrace_run_options& options, const std::string& model) {
  RunHeader header;
  header.version = TERRACE_C_VERSION;
  header.model = model;
  header.planned_steps = options.steps;
  header.resumed_at_step = options.completed_steps;
  header.started_at = utc_now();
  if (options.config != nullptr && !read_json(parse_json(options.config, "config"), header.configuration))
    c::misuse(kFollow, "config", "it is no JSON object", "give the values in force by their keys");
  return header;
}

JobMemory job_memory(terrace_store& store) {
  return {*store.offloader, *store.device.device, store.offloader->plan().device_bytes};
}

// On the thread that trains, between two steps. A budget below the run's need is refused, and changes
// nothing.
HostBudgetChange change_budget_of(terrace_store& store, uint64_t bytes) {
  HostBudgetChange change;
  const auto set = [&](terrace_store& s) {
    s.offloader->finish_update();
    change = change_host_budget(*s.offloader, bytes);
  };
  if (terrace_error* const failure = in_store(&store, TERRACE_CALL(run_step_done), set))
    c::throw_again(failure);
  return change;
}

// A call on a run whose store is there, in the process that began it.
template <typename Action>
terrace_error* in_run(terrace_run* run, Action action) noexcept {
  return c::answer([&] {
    c::require_pointer(run, kFollow, "run");
    if (run->forks != c::forks())
      c::misuse(kFollow, "run", "this process was forked after the run began", "use it where it began");
    if (run->store == nullptr)
      c::misuse(kFollow, "run", "its store is destroyed", "free the run before the store");
    action(*run);
  });
}

}  // namespace

terrace_run::terrace_run(terrace_store& followed, const terrace_run_options& options)
    : forks(c::forks()),
      store(&followed),
      save(options.save),
      save_context(options.save_context),
      log(options.log, options.log_context),
      said(&log),
      steps(text_or(options.log_path, ""), nullptr, &said),
      memory(steps, *followed.offloader, [this] { return memory_of(job_memory(*store)); }),
      before(followed.offloader->report().counters()) {
  const std::string model = text_or(options.model, "a model");
  const std::optional<MonitorSettings> settings = monitor_settings_of(options);
  if (settings && options.is_resumed == 0) require_empty_monitors(settings->targets);
  if (settings) monitor.emplace(*settings, options.samples, options.is_resumed != 0);
  steps.start(header_of(options, model));
  if (options.log_path != nullptr) observers = {&memory, &steps};
  if (monitor) observers.push_back(&*monitor);
  Offloader& offloader = *followed.offloader;
  if (options.no_stall_warnings == 0 && followed.ranks == nullptr) {
    WatchdogOptions wanted;
    if (options.stall_warning_seconds != 0) wanted.warn_after_ns = options.stall_warning_seconds * kSecondNs;
    watchdog = std::make_unique<WatchdogThread>(offloader.report().watch(), wanted, said, [] {});
  }
  if (options.no_control != 0) return;
  const JobControlOptions wanted{
      .folder = text_or(options.control_folder, ""),
      .steps = options.steps,
      .shape = {.micro_batches = options.micro_batches == 0 ? 1 : options.micro_batches},
      .stop = [this] { is_to_stop = true; }};
  control = std::make_unique<JobControl>(
      JobSubject{job_memory(followed), model, options.completed_steps, offloader.update_mode(), std::nullopt},
      wanted, said);
  observers.push_back(control.get());
}

terrace_run::~terrace_run() {
  leave_store();
}

void terrace_run::leave_store() {
  control.reset();
  watchdog.reset();
  if (store != nullptr) store->run = nullptr;
  store = nullptr;
}

void terrace_run::serve() {
  if (control == nullptr) return;
  control->serve({[&](uint64_t bytes) { return change_budget_of(*store, bytes); },
                  [&]() -> SaveAnswer {
                    const uint32_t kept = save != nullptr ? save(save_context) : 0;
                    SaveAnswer answer{(kept & TERRACE_KEPT_CHECKPOINT) != 0,
                                      (kept & TERRACE_KEPT_COMMIT) != 0, std::nullopt};
                    if (kept == 0)
                      answer.refusal =
                          Error(ErrorKind::config,
                                {"cannot save", "", "the program keeps no state when it is asked",
                                 "save from the program itself"});
                    return answer;
                  }});
}

terrace_error* terrace_run_begin(terrace_store* store, const terrace_run_options* options,
                                 terrace_run** run) {
  constexpr Names kCall = TERRACE_CALL(run_begin);
  const auto begin = [&](terrace_store& s) {
    c::require_pointer(run, kCall, "run");
    const terrace_run_options given = c::taken(options, kCall, "terrace_run_options");
    c::require_rest(s, kFollow);
    if (s.run != nullptr) c::misuse(kFollow, "store", "it has a run already", "end that one, and free it");
    s.run = *run = new terrace_run(s, given);
  };
  return in_store(store, kCall, begin, c::Harmless::all);
}

terrace_error* terrace_run_step_done(terrace_run* run, const terrace_run_step* step, uint32_t* stops) {
  constexpr Names kCall = TERRACE_CALL(run_step_done);
  StepReport report;
  const auto fill = [&](terrace_store& s) {
    c::require_rest(s, kFollow);
    const OffloadCounters now = s.offloader->report().counters();
    report.moved = now - std::exchange(run->before, now);
    report.update_mode = s.offloader->update_mode();
  };
  terrace_error* failure = in_run(run, [&](terrace_run&) {
    c::require_pointer(stops, kCall, "stops");
    const terrace_run_step given = c::taken(step, kCall, "terrace_run_step");
    report.step = given.step;
    report.skipped = given.skipped != 0;
    report.tokens = given.tokens;
    report.samples = given.samples;
    report.loss = given.loss;
    report.learning_rate = given.learning_rate;
    report.gradient_norm = given.gradient_norm;
    report.loss_scale = given.loss_scale;
    report.next_loss_scale = given.next_loss_scale;
    report.forward_ns = given.forward_ns;
    report.update_ns = given.update_ns;
  });
  if (failure == nullptr) failure = in_store(run->store, kCall, fill);
  if (failure != nullptr) return failure;
  report.total_ns = report.moved.time.total_ns();
  report.update_ns = std::min(report.update_ns, report.total_ns);
  report.forward_backward_ns = report.total_ns - report.update_ns;
  report.forward_ns = std::min(report.forward_ns, report.forward_backward_ns);
  return c::answer([&] {
    for (RunObserver* const observer : run->observers) observer->step_done(report);
    run->serve();
    *stops = run->is_to_stop ? 1 : 0;
  });
}

terrace_error* terrace_run_evaluated(terrace_run* run, uint64_t step, double loss) {
  return in_run(run, [&](terrace_run& r) {
    for (RunObserver* const observer : r.observers) observer->evaluated(step, loss);
  });
}

terrace_error* terrace_run_kept(terrace_run* run, uint64_t step, const char* folder) {
  return in_run(run, [&](terrace_run& r) {
    KeptState kept;
    if (folder == nullptr)
      kept.commit_step = step;
    else
      kept.checkpoint = SavedCheckpoint{step, folder};
    for (RunObserver* const observer : r.observers) observer->state_kept(kept);
  });
}

terrace_error* terrace_run_end(terrace_run* run, uint64_t step, const char* stopped_by, const char* failure,
                               const char* survives) {
  return in_run(run, [&](terrace_run& r) {
    RunEnd end;
    end.step = step;
    end.failed = failure != nullptr;
    end.stopped_by = text_or(failure != nullptr ? failure : stopped_by, "");
    end.survives = text_or(survives, "");
    for (RunObserver* const observer : r.observers) observer->ended(end);
  });
}

void terrace_run_free(terrace_run* run) {
  if (run != nullptr && run->forks == c::forks()) delete run;
}
