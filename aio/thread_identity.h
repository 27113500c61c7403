// The set-up that every thread of this folder begins with.
#pragma once

namespace terrace::io {

// Names the calling thread for debuggers and `top -H` (at most 15 characters) and blocks its signals, so that
// they go to a thread of the program's own.
void become_background_thread(const char* name);

}  // namespace terrace::io
