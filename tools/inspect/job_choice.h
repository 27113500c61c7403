// Which running job is meant: a process id, a socket, or the only one there is.
#pragma once

#include <string>

#include <terrace/runtime/observe/control/control_client.h>
#include <terrace/runtime/observe/control/job_status.h>

namespace terrace {

// Whether a word can be a job: digits, or a path.
bool is_job(const std::string& word);

// `job` may be empty. Throws Error(config) when several run and none is named, saying which; Error(io) when
// there is none.
RunningJob find_job(const std::string& job);

// Asks a job for what it says of itself.
JobStatus ask_status(ControlClient& client);

}  // namespace terrace
