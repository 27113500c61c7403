// `terrace report`: what a run did and took, by the log of its steps, with the page of it; or what this
// machine offers and why each choice would be made. It changes nothing, except that it makes an empty file
// for a moment in each --nvme-path.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <terrace/aio/drives/block_device.h>
#include <terrace/aio/engine.h>
#include <terrace/aio/file.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/topology.h>
#include <terrace/base/units.h>
#include <terrace/memory/cuda/cu_file.h>
#include <terrace/memory/cuda/cuda_gpu.h>
#include <terrace/memory/host/machine.h>
#include <terrace/memory/host/pages.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/reference/model/compute/compute_device.h>
#include <terrace/reference/model/compute/cuda/cublas_lt.h>
#include <terrace/runtime/observe/page/report_file.h>

#include "command_line.h"
#include "train/machine_facts.h"
#include "train/train_summary.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Finding: one line of the report, with a value for programs and words for people.
struct Finding {
  std::string section;
  std::string key;   // empty: for people only
  std::string json;  // a literal
  std::string name;  // empty: for programs only
  std::string text;
};

class Findings {
 public:
  void begin(std::string section) { section_ = std::move(section); }
  void add(std::string key, std::string json, std::string name, std::string text) {
    all_.push_back({section_, std::move(key), std::move(json), std::move(name), std::move(text)});
  }
  void add_text(std::string key, std::string name, const std::string& text) {
    add(std::move(key), json_quoted(text), std::move(name), text);
  }
  void add_words(std::string name, std::string text) { add("", "", std::move(name), std::move(text)); }
  std::string text() const;
  std::string json() const;

 private:
  std::string section_;
  std::vector<Finding> all_;
};

std::string Findings::text() const {
  std::string text;
  std::string section;
  for (const Finding& finding : all_) {
    if (finding.name.empty()) continue;  // it is for programs only
    if (finding.section != section) {
      text += fmt::format("{}{}\n", text.empty() ? "" : "\n", finding.section);
      section = finding.section;
    }
    text += fmt::format("  {:<20} {}\n", finding.name, finding.text);
  }
  return text;
}

std::string Findings::json() const {
  JsonWriter json;
  json.begin_object(JsonLayout::lines);
  for (const Finding& finding : all_) {
    if (!finding.key.empty()) json.member(finding.key, json_raw(finding.json));  // others are for people only
  }
  return json.end().take() + "\n";
}

std::string quoted_or_null(const std::string& text) {
  return text.empty() ? "null" : json_quoted(text);
}

// Reports the default number of compute threads, and where they and the memory go.
void find_threads(const Topology& topology, Findings& findings) {
  const size_t threads = topology.default_thread_count();
  const Binding binding = topology.binding_for(threads);
  findings.add(
      "compute_threads", std::to_string(threads), "compute threads",
      fmt::format("{}{}, {}", threads,
                  topology.quota == 0 ? "" : fmt::format(" (the cgroup gives {})", topology.quota),
                  binding.cpus.empty() ? "not bound: " + binding.reason : "bound " + binding.reason));
  findings.add("threads_are_bound", binding.cpus.empty() ? "false" : "true", "", "");
  const std::vector<uint32_t> nodes = topology.nodes();
  std::string text = std::to_string(nodes.size());
  if (nodes.size() > 1) {
    const PageMapping probe = PageMapping::inaccessible(kHugePageBytes);
    const int error = interleave_memory(probe.memory().data(), probe.memory().size(), nodes);
    text += error == 0 ? ": memory is spread over them"
                       : ": memory lies where it is first touched, because spreading is refused: " +
                             system_reason(error);
  }
  findings.add("memory_nodes", std::to_string(nodes.size()), "memory nodes", text);
}

void find_processor(const Machine& machine, Findings& findings) {
  findings.begin("Processor");
  findings.add_text("cpu", "name", cpu_name());
  const Topology topology = read_topology();
  findings.add("cores", std::to_string(machine.cores.size()), "cores",
               fmt::format("{} that this process may run on", machine.cores.size()));
  find_threads(topology, findings);
  std::vector<std::string> names;
  for (const InstructionSet set : supported_instruction_sets()) names.emplace_back(name_of(set));
  const std::string best(name_of(best_instruction_set()));
  findings.add_text("instruction_set", "instruction set",
                    best + ", the fastest that processor, system and this build have");
  JsonWriter sets;
  sets.begin_list();
  for (const std::string& set : names) sets.value(set);
  findings.add("instruction_sets", sets.end().take(), "supported", fmt::format("{}", fmt::join(names, ", ")));
  for (const auto& [key, name, products] : {std::tuple("avx512_bf16", "AVX512_BF16", ProductType::bf16),
                                            std::tuple("amx_bf16", "AMX-BF16", ProductType::bf16_amx)}) {
    const bool is_there = has_instruction_for(products);
    findings.add(
        key, is_there ? "true" : "false", name,
        fmt::format("{}: products of terrace.compute {} are {}", is_there ? "there" : "not there",
                    name_of(products), is_there ? "by this instruction" : "emulated, which is slower"));
  }
}

void find_memory(const Machine& machine, Findings& findings) {
  findings.begin("Memory");
  const auto budget = [&](const char* key, const char* name, const DefaultBudget& found) {
    findings.add(key, std::to_string(found.bytes), name, format_bytes(found.bytes) + ": " + found.origin);
    findings.add(std::string(key) + "_origin", json_quoted(found.origin), "", "");
  };
  findings.add("memory_limit_bytes", std::to_string(machine.memory_limit.bytes), "limit",
               format_bytes(machine.memory_limit.bytes) + ": " + machine.memory_limit.origin);
  budget("host_budget_bytes", "host, by default", default_host_budget(machine));
  budget("device_budget_bytes", "device, at most", largest_simulated_device_budget(machine));
  const bool limited = machine.memlock_limit_bytes.has_value();
  findings.add("memlock_limit_bytes", limited ? std::to_string(*machine.memlock_limit_bytes) : "null",
               "page locking",
               limited ? format_bytes(*machine.memlock_limit_bytes) +
                             " (RLIMIT_MEMLOCK): a larger host budget works unlocked, a little slower"
                       : "without limit: host memory is page-locked");
  findings.add(
      "huge_pages", json_quoted(machine.huge_page_mode), "huge pages",
      fmt::format("{} ({}){}", machine.huge_page_mode, format_bytes(machine.huge_page_bytes),
                  machine.huge_pages_on_request() ? ": used for every tier in memory"
                                                  : ": not to be had, transfers cost more processor time"));
}

void find_engines(Findings& findings) {
  findings.begin("File I/O");
  utsname system{};
  if (uname(&system) == 0)
    findings.add_text("kernel", "kernel", fmt::format("{} {}", system.sysname, system.release));
  for (const io::EngineKind kind : io::engine_kinds()) {
    const io::ProbeResult probe = io::probe_engine(kind);
    const std::string name(io::name_of(kind));
    findings.add(name + "_works", probe.works ? "true" : "false", name,
                 probe.works ? "works" : "does not work: " + probe.reason);
    findings.add(name + "_reason", quoted_or_null(probe.reason.text), "", "");
  }
  findings.add_text("engine", "choice", io::choose_engine(std::nullopt).reason);
}

std::string drive_text(const io::BlockDevice& drive) {
  if (drive.name.empty()) return drive.number;
  return drive.model.empty() ? drive.name : fmt::format("{} ({})", drive.name, drive.model);
}

// Adds the words for people and returns the object for programs.
std::string find_nvme_path(const std::string& path, Findings& findings) {
  require_folder("--nvme-path", path);
  const uint64_t free = io::free_bytes_at(path);
  const std::string drive = drive_text(io::find_block_device(path));
  const fs::path probe_path = fs::path(path) / fmt::format(".terrace-report-{}", getpid());
  struct Removal {
    const fs::path& path;
    ~Removal() { unlink(path.c_str()); }
  };
  const io::File file =
      io::File::open(probe_path, {.access = io::FileAccess::read_write, .create = true, .direct = true});
  const Removal removal{probe_path};
  findings.add_words("path", path);
  findings.add_words("drive", drive);
  findings.add_words("free", format_bytes(free));
  findings.add_words("O_DIRECT", file.direct() ? "works: transfers go past the page cache"
                                               : "is refused (" + file.direct_refusal() +
                                                     "): transfers go through the page cache");
  findings.add_words("alignment", fmt::format("{} bytes", file.alignment_bytes()));
  return json_object({{"path", path},
                      {"drive", drive},
                      {"free_bytes", free},
                      {"direct_io", file.direct()},
                      {"direct_io_alignment_bytes", file.alignment_bytes()}});
}

void find_nvme(const std::vector<std::string>& paths, Findings& findings) {
  findings.begin(paths.size() > 1 ? "NVMe paths" : "NVMe path");
  if (paths.empty()) findings.add_words("path", "not given; --nvme-path DIR examines a folder");
  std::string objects;
  for (const std::string& path : paths)
    objects += (objects.empty() ? "" : ", ") + find_nvme_path(path, findings);
  findings.add("nvme_paths", "[" + objects + "]", "", "");
}

// Reports which library multiplies matrices on a GPU with a driver for this version of CUDA.
void find_products(int driver_version, Findings& findings) {
  const CublasLtFound found = CublasLt::find_installed(driver_version);
  const std::string version = found.library != nullptr ? found.library->version_text() : "";
  findings.add("cublaslt_version", quoted_or_null(version), "products on a GPU",
               version.empty() ? "by the kernels of this build: " + found.reason
                               : "by cuBLASLt " + version + ", unless terrace.gpu_products is own");
  findings.add("cublaslt_refusal", quoted_or_null(found.reason), "", "");
}

// Opening a GPU makes a context on it, which takes some of its memory until this function returns.
void find_accelerator(Findings& findings) {
  findings.begin("Accelerator");
  CudaFacts facts;
  std::string reason;
  try {
    StderrLog log;
    facts = CudaGpu::open(0, log)->facts();
  } catch (const Error& error) {
    reason = error.without_advice();
  }
  const bool present = reason.empty();
  findings.add("gpu", quoted_or_null(facts.name), "GPU", present ? facts.name : "none: " + reason);
  findings.add("gpu_refusal", quoted_or_null(reason), "", "");
  if (present) {
    const std::string version = cuda_version_text(facts.driver_version);
    findings.add("cuda_driver_version", json_quoted(version), "GPU driver", "for CUDA " + version);
    findings.add(
        "gpu_memory_bytes", std::to_string(facts.total_bytes), "GPU memory",
        fmt::format("{}, {} of it free", format_bytes(facts.total_bytes), format_bytes(facts.free_bytes)));
    findings.add("gpu_free_bytes", std::to_string(facts.free_bytes), "", "");
    findings.add("gpu_virtual_memory", facts.virtual_memory ? "true" : "false", "virtual memory",
                 facts.virtual_memory
                     ? fmt::format("managed, in granules of {}", format_bytes(facts.granularity_bytes))
                     : "not managed: it cannot be a device tier");
    findings.add("gpu_copy_engines", std::to_string(facts.copy_engines), "copy engines",
                 fmt::format("{}: copies {}", facts.copy_engines,
                             facts.copy_engines >= 2 ? "both ways at once" : "one way at a time"));
  }
  find_products(present ? facts.driver_version : INT_MAX, findings);
  const CuFileFacts cu_file = probe_cu_file();
  findings.add("cufile_version", quoted_or_null(cu_file.version), "GPUDirect Storage",
               cu_file.version.empty() ? "not installed: " + cu_file.reason
                                       : "cuFile " + cu_file.version +
                                             " is installed; aio.use_gds makes use of it (docs/cuda.md)");
  findings.add("cufile_refusal", quoted_or_null(cu_file.reason), "", "");
  findings.add(
      "device", "\"simulated\"", "device tier",
      "simulated: without --device cuda or auto a run computes on the simulated device, in host memory");
}

class Report final : public Subcommand {
 public:
  explicit Report(Command& app)
      : Subcommand(
            app, "report",
            "Say what a run did and took, by the log of its steps; without one, what this machine offers") {
    const FlagGroup group(command_);
    group.text("LOG", "", log_, "A log of steps: of --log, step_log or terrace_run");
    group.text("--page", "FILE", page_, "Write the page of the run as well");
    group.yes("--verbose", verbose_, "Say of the run what was moved over each link and where the time went");
    group.texts("--nvme-path", "DIR", nvme_paths_, "Examine this folder as well; may be given several times");
    group.yes("--json", json_, "Print the report as JSON");
    command_.footer(
        "Examples:\n"
        "  terrace report steps.jsonl --page run.html\n"
        "  terrace report --nvme-path /mnt/a --nvme-path /mnt/b --json\n");
  }

  int run() override {
    if (!log_.empty()) return report_run();
    if (!page_.empty() || verbose_)
      refuse(page_.empty() ? "--verbose" : "--page", "it is about a run, and no log of steps is given",
             "name the log first: terrace report steps.jsonl --page run.html");
    Findings findings;
    const Machine machine = probe_machine();
    find_processor(machine, findings);
    find_memory(machine, findings);
    find_engines(findings);
    find_nvme(nvme_paths_, findings);
    find_accelerator(findings);
    print_result(json_ ? findings.json() : findings.text());
    return kDone;
  }

 private:
  int report_run() const {
    if (!nvme_paths_.empty())
      refuse("--nvme-path", "it is about this machine, and a log of steps is given", "leave one of them out");
    const RunRecord run = read_run(log_);
    const SteadyClock clock;
    if (!page_.empty()) ReportFile(page_, clock).write(run, std::time(nullptr));
    print_result(json_ ? summary_json(run) : summary_text(run, {.verbose = verbose_}));
    return kDone;
  }

  std::string log_;
  std::string page_;
  bool verbose_ = false;
  std::vector<std::string> nvme_paths_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Subcommand> add_report(Command& app) {
  return std::make_unique<Report>(app);
}

}  // namespace terrace
