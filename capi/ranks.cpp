// The place of a process among those of a launcher, for programs that can train in one process alone.
#include <unistd.h>

#include <terrace/capi/errors.h>
#include <terrace/comm/identity/rank_identity.h>

using namespace terrace;  // NOLINT: the functions of C are in no namespace

terrace_error* terrace_launched(uint32_t* rank, uint32_t* ranks, const char** launcher) {
  return c::answer([&] {
    c::require_pointer(rank, "terrace_launched", "rank");
    c::require_pointer(ranks, "terrace_launched", "ranks");
    c::require_pointer(launcher, "terrace_launched", "launcher");
    const RankIdentity identity = identify_rank(environment_from(environ));
    *rank = identity.rank;
    *ranks = identity.size;
    // Names of launchers are literals, which end with a zero.
    *launcher = identity.alone() ? "" : name_of(identity.launcher).data();
  });
}
