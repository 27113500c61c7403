// How soon the system lets a thread run that has just got something to do.
#pragma once

namespace terrace {

// For a thread that keeps a drive busy and computes in short pieces, beside others that compute all the time:
// asks the system for short slices of time, so that it gets the processor as soon as something has arrived.
// Its share stays what it was. Linux 6.12 and later; elsewhere, and for threads that are scheduled in another
// way, nothing happens.
void ask_for_short_slices() noexcept;

}  // namespace terrace
