// A rank of a test as a program of C has it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace_run.h>

#include "support/forked_ranks.h"
#include "support/patience.h"

namespace terrace::capi {

// The exit status of a rank in which what the test expects did not come about.
inline constexpr int kUnexpected = 99;

// One rank as a program of C has it: what fails is noted and ends it.
class RankProgram {
 public:
  RankProgram(const testing::RankNotes& notes, uint32_t rank, uint32_t count,
              uint32_t transport = TERRACE_TRANSPORT_AUTO)
      : notes_(notes), rank_(rank) {
    const std::string place = notes.place();
    terrace_ranks_options options = TERRACE_INIT(terrace_ranks_options);
    options.transport = transport;
    options.rank = rank;
    options.count = count;
    options.place = place.c_str();
    options.timeout_seconds = static_cast<uint32_t>(testing::kPatience.count());
    options.ends_process = 1;
    options.log = [](void* own, uint32_t, const char* line) {
      static_cast<RankProgram*>(own)->note(std::string(line) + "|");
    };
    options.log_context = this;
    take(terrace_ranks_join(&options, &ranks));
  }
  ~RankProgram() { terrace_ranks_free(ranks); }
  RankProgram(const RankProgram&) = delete;
  RankProgram& operator=(const RankProgram&) = delete;

  void note(const std::string& text) const { notes_.write(rank_, text); }
  // Keeps the first failure. Returns whether there is none.
  bool take(terrace_error* error) {
    if (error != nullptr && failure_.empty())
      failure_ = terrace_error_text(error), kind_ = terrace_error_kind_of(error);
    terrace_error_free(error);
    return failure_.empty();
  }
  bool vote(uint64_t mine, std::vector<uint64_t>& all) {
    return take(terrace_ranks_ballot(ranks, &mine, sizeof(mine), all.data()));
  }
  int end(uint32_t status = 1) {
    uint32_t worst = kUnexpected;
    terrace_error* error = terrace_ranks_end(ranks, failure_.empty() ? nullptr : failure_.c_str(), kind_,
                                             failure_.empty() ? 0 : status, &worst);
    if (error != nullptr) return kUnexpected;
    return static_cast<int>(worst);
  }
  void fail_with(const std::string& text) { failure_ = text, kind_ = TERRACE_IO; }
  const std::string& failure() const { return failure_; }
  uint32_t kind() const { return kind_; }

  terrace_ranks* ranks = nullptr;

 private:
  const testing::RankNotes& notes_;
  const uint32_t rank_;
  std::string failure_;
  uint32_t kind_ = 0;
};

}  // namespace terrace::capi
