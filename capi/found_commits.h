// What the nvme paths of a store hold before it begins: commits of as many ranks, and of other numbers of
// them. A store goes on from the furthest, which it reads where it is of another number, or its records have
// another layout. What it passes over stays until it has a commit of its own; what a
// job that has died left without a commit goes at once.
#pragma once

#include <terrace/capi/request.h>

namespace terrace::c {

// Whether a store with these options finds a commit, whole or not. Of several ranks every one calls it, and
// all get the same. Throws Error(io) and Error(peer).
bool has_commit(const Request& request);

// Settles what the store begins with: tier_start, discard_commits and tier_name, and `set`, `passed` and
// `commit_number` of the request. Of several ranks every one calls it. Throws Error(config) where a commit
// would be lost, or would be passed over because not every rank sees all of it; nothing has changed then.
void settle_start(Request& request);

}  // namespace terrace::c
