// Finds the running job that a command names by a process id or a socket, or the only one.
#pragma once

#include <string>

#include <terrace/runtime/observe/control/control_client.h>
#include <terrace/runtime/observe/control/job_status.h>

namespace terrace {

// Returns true if a word can name a job: digits, or a path.
bool is_job(const std::string& word);

// `job` may be empty. Throws Error(config) when several jobs run and none is named, listing them; Error(io)
// when none runs.
RunningJob find_job(const std::string& job);

// Asks a job for its status.
JobStatus ask_status(ControlClient& client);

}  // namespace terrace
