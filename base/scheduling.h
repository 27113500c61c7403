// How soon the system runs a thread that has just been given work.
#pragma once

namespace terrace {

// Asks the system for short time slices, so that the calling thread gets the processor as soon as something
// has arrived for it. It is meant for a thread that keeps a drive busy and computes in short pieces, beside
// threads that compute all the time. The thread's share of the processor does not change. Linux has this from
// 6.12 on; elsewhere, and for threads with another scheduling policy, nothing happens.
void ask_for_short_slices() noexcept;

}  // namespace terrace
