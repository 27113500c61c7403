// Decisions as files of JSON lines (docs/decision_log.md): a run writes them while it decides, and another
// run reads them to decide the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <istream>
#include <memory>
#include <optional>
#include <string>

#include <terrace/base/log.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/watch/decision_log.h>

namespace terrace {

// The subject of decisions: the chunks of the parameters, the slots of the device, and the sides that update.
struct DecisionSubject {
  uint32_t chunks = 0;
  uint32_t slots = 0;
  // How the update is divided, unless the processor does it alone (offload/plan/update_side.h).
  double processor_share = 1;
  std::optional<UpdateRates> update_rates = std::nullopt;

  bool operator==(const DecisionSubject&) const = default;
};
DecisionSubject decision_subject(const MemoryPlan& plan, const OffloadOptions& options);
// Returns the subject of a file that a run follows. Throws Error(config) if the file cannot be read.
DecisionSubject recorded_subject(const std::filesystem::path& path);

// Returns a line with its end.
std::string decision_line(const Decision& decision);

class DecisionFile final : public DecisionLog {
 public:
  // Begins the file anew. At `limit_bytes` a last line says so and nothing more is written. Throws Error(io)
  // when the file cannot be opened. If a later write fails, `log` gets one message and the run goes on
  // without the file. `log` outlives it.
  DecisionFile(std::filesystem::path path, const DecisionSubject& subject, uint64_t limit_bytes, Log& log);
  ~DecisionFile() override;

  void add(const Decision& decision) override;

 private:
  void flush();

  const std::filesystem::path path_;
  uint64_t left_bytes_;
  Log& log_;
  std::ofstream file_;
  std::string lines_;  // lines to be written
  bool is_over_ = false;
};

class DecisionReplay final : public DecisionSource {
 public:
  // Throws Error(config) if the file cannot be read or has another subject than `subject`.
  DecisionReplay(const std::filesystem::path& path, const DecisionSubject& subject);
  // Takes the text of a file, which messages call `name`.
  DecisionReplay(std::unique_ptr<std::istream> text, std::string name, const DecisionSubject& subject);

  // Throws Error(config) naming line and column of a line that is no decision.
  const Decision* next() override;
  void advance() override { is_read_ = false; }
  std::string place() const override;

 private:
  bool read_line();
  void read_next();

  const std::string name_;
  const std::unique_ptr<std::istream> text_;
  std::string line_;
  uint64_t line_number_ = 0;
  bool is_read_ = false;  // decision_ holds the next one
  bool is_over_ = false;
  std::string operation_;
  Decision decision_;
};

}  // namespace terrace
