// NcclCalls: the calls of NCCL that Terrace uses, as a table that is filled at run time. No header of NCCL is
// needed to build: this file declares its documented binary interface, and a test compares it with nccl.h
// where that is found. None of them adds anything: only bytes move. It must never call anything by itself.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace terrace {

namespace nccl {

// ncclUniqueId: what the ranks of a communicator know each other by.
struct UniqueId {
  char bytes[128];
};
using Comm = void*;    // ncclComm_t
using Stream = void*;  // cudaStream_t
// ncclResult_t.
inline constexpr int kSuccess = 0, kInProgress = 7;
// ncclDataType_t: ncclUint8.
inline constexpr int kBytes = 1;
// ncclSend and ncclRecv came with 2.7.
inline constexpr int kLeastVersion = 2700;

}  // namespace nccl

inline constexpr const char* kNcclLibrary = "libnccl.so.2";

// CALL(member, symbol, result, parameters)
#define TERRACE_NCCL_CALLS(CALL)                                                                       \
  CALL(version, ncclGetVersion, int, (int*))                                                           \
  CALL(unique_id, ncclGetUniqueId, int, (nccl::UniqueId*))                                             \
  CALL(init_rank, ncclCommInitRank, int, (nccl::Comm*, int ranks, nccl::UniqueId, int rank))           \
  CALL(destroy, ncclCommDestroy, int, (nccl::Comm))                                                    \
  CALL(abort, ncclCommAbort, int, (nccl::Comm))                                                        \
  CALL(async_error, ncclCommGetAsyncError, int, (nccl::Comm, int*))                                    \
  CALL(error_text, ncclGetErrorString, const char*, (int))                                             \
  CALL(group_start, ncclGroupStart, int, ())                                                           \
  CALL(group_end, ncclGroupEnd, int, ())                                                               \
  CALL(send, ncclSend, int, (const void*, size_t count, int type, int peer, nccl::Comm, nccl::Stream)) \
  CALL(receive, ncclRecv, int, (void*, size_t count, int type, int peer, nccl::Comm, nccl::Stream))    \
  CALL(all_gather, ncclAllGather, int,                                                                 \
       (const void* mine, void* all, size_t count, int type, nccl::Comm, nccl::Stream))

struct NcclCalls {
#define TERRACE_NCCL_MEMBER(member, symbol, result, parameters) result(*member) parameters = nullptr;
  TERRACE_NCCL_CALLS(TERRACE_NCCL_MEMBER)
#undef TERRACE_NCCL_MEMBER
  // ncclGetLastError, which came with 2.13; null in an older library.
  const char* (*last_error)(nccl::Comm) = nullptr;

  // Loads `library` and looks up every call; the library stays loaded until the process ends. Throws
  // Error(config) when it is not there, is too old or lacks a call.
  static std::unique_ptr<const NcclCalls> load(const std::string& library = kNcclLibrary);

  // Why a call failed: "ncclSend: remote process exited (6): connection closed by peer". `comm` may be null.
  std::string reason(int result, std::string_view call, nccl::Comm comm) const;
};

// "2.19.3"
std::string nccl_version_text(int version);

}  // namespace terrace
