#include "inspect/job_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include <terrace/base/error.h>

namespace terrace {
namespace {

constexpr int kPatienceMs = 2000;  // a job answers a status at once

// Returns a line such as "  4711  gpt2 12 layers x 768, ..., step 3 of 100".
std::string line_of(const RunningJob& job) {
  try {
    ControlClient client(job.socket, kPatienceMs);
    const JobStatus status = ask_status(client);
    return fmt::format("  {}  {}, step {} of {}", job.pid, status.model, status.step, status.steps);
  } catch (const Error& error) {
    return fmt::format("  {}  ({})", job.pid, error.parts().reason);
  }
}

bool is_number(const std::string& word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

RunningJob the_only_one(const ControlFolder& folder) {
  const std::vector<RunningJob> jobs = folder.jobs();
  if (jobs.empty()) {
    throw Error(
        ErrorKind::io,
        {"no job can be reached in", folder.path().string(),
         "none is running, or all train with --no-control",
         "start one with `terrace train`; a job with another XDG_RUNTIME_DIR is reached by its socket"});
  }
  if (jobs.size() == 1) return jobs.front();
  std::string lines;
  for (const RunningJob& job : jobs) lines += "\n" + line_of(job);
  throw Error(ErrorKind::config,
              {"cannot tell which job is meant in", folder.path().string(),
               fmt::format("{} jobs are running", jobs.size()), "name one of these by its number:" + lines});
}

}  // namespace

bool is_job(const std::string& word) {
  return is_number(word) || word.find('/') != std::string::npos;
}

RunningJob find_job(const std::string& job) {
  if (!job.empty() && !is_number(job)) return {0, job};
  const ControlFolder folder(ControlFolder::default_path());
  if (job.empty()) return the_only_one(folder);
  uint64_t pid = 0;
  std::from_chars(job.data(), job.data() + job.size(), pid);
  return {pid, folder.socket_of(pid)};
}

JobStatus ask_status(ControlClient& client) {
  const JsonNode answer = client.ask({ControlCommand::status, 0});
  const JsonNode* status = answer.find("status");
  return parse_job_status(status != nullptr ? *status : JsonNode{});
}

}  // namespace terrace
