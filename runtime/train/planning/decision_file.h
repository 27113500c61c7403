// Decisions as files of JSON lines (docs/decision_log.md): written while a run decides, read by one that is
// to decide the same.
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

// What decisions are about: the chunks of the parameters, the slots of the device, and who updates.
struct DecisionSubject {
  uint32_t chunks = 0;
  uint32_t slots = 0;
  // Which side updates what, where that is not the processor alone (offload/plan/update_side.h).
  double processor_share = 1;
  std::optional<UpdateRates> update_rates = std::nullopt;

  bool operator==(const DecisionSubject&) const = default;
};
DecisionSubject decision_subject(const MemoryPlan& plan, const OffloadOptions& options);
// Of a file that a run is to follow. Throws Error(config) for one that cannot be read.
DecisionSubject recorded_subject(const std::filesystem::path& path);

// A line, with its end.
std::string decision_line(const Decision& decision);

class DecisionFile final : public DecisionLog {
 public:
  // Begins the file anew. After `limit_bytes` it says so in a last line and takes no more. Throws Error(io)
  // when it cannot be opened; when it cannot be written later `log` is told once, and the run goes on without
  // it. `log` outlives it.
  DecisionFile(std::filesystem::path path, const DecisionSubject& subject, uint64_t limit_bytes, Log& log);
  ~DecisionFile() override;

  void add(const Decision& decision) override;

 private:
  void flush();

  const std::filesystem::path path_;
  uint64_t left_bytes_;
  Log& log_;
  std::ofstream file_;
  std::string lines_;  // not written yet
  bool is_over_ = false;
};

class DecisionReplay final : public DecisionSource {
 public:
  // Throws Error(config) for a file that cannot be read, or is about something else than `subject`.
  DecisionReplay(const std::filesystem::path& path, const DecisionSubject& subject);
  // The same from the text of a file, which messages call `name`.
  DecisionReplay(std::unique_ptr<std::istream> text, std::string name, const DecisionSubject& subject);

  // Throw Error(config) naming line and column of what is no decision.
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
  bool is_read_ = false;  // decision_ is the next one
  bool is_over_ = false;
  std::string operation_;
  Decision decision_;
};

}  // namespace terrace
