// Faults to inject, as text: "rank=1,group=3,kind=delay,ms=500; rank=0,group=2,kind=die".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace eplb::fake_nccl {

enum class FaultKind {
  kDelay,       // the group starts after `ms`
  kAsyncError,  // nothing of the group happens, and the communicator has the error `code`
  kDie,         // the process kills itself
  kCorrupt,     // one bit of the first receive flips
  kHang,        // nothing of the group happens until the abort
  // Kinds without a group:
  kSlowAbort,       // ncclCommAbort takes `ms`
  kAbortError,      // ncclCommAbort fails with `code` and ends nothing
  kInitError,       // ncclCommInitRankConfig fails with `code` and leaves a communicator to abort
  kInitAsyncError,  // the ranks do not connect, and the communicator has the error `code`
  kInitHang,        // the ranks do not connect until the abort
  kRegisterError,   // ncclCommRegister fails with `code`
  kMemError,        // ncclMemAlloc fails, for rank 0 or all: it knows no rank
};

struct Fault {
  std::optional<int32_t> rank;   // absent: of every rank
  std::optional<int64_t> group;  // number in the communicator, from 0; absent: in every group
  FaultKind kind = FaultKind::kDelay;
  int32_t ms = 0;
  int32_t code = 3;  // ncclInternalError
};

// Faults of `text`; absent when it cannot be read, and then *error says which part.
std::optional<std::vector<Fault>> ParseFaults(std::string_view text, std::string* error);

// The process's faults, from the variable EPLB_FAKE_NCCL_FAULTS or as set. threads: safe.
bool SetFaults(const char* text, std::string* error);  // null: the variable's again
std::optional<std::vector<Fault>> CurrentFaults(std::string* error);

// The first of a kind that meets this rank; absent without one.
std::optional<Fault> FaultOf(const std::vector<Fault>& faults, int32_t rank, FaultKind kind);
// Those that meet this group, in the order of the text.
std::vector<Fault> FaultsOf(const std::vector<Fault>& faults, int32_t rank, int64_t group);

}  // namespace eplb::fake_nccl
