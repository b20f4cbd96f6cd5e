// libnccl, loaded at run time: a machine without it runs the host path, and one whose framework
// brings its own copy uses that one.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include <nccl.h>

namespace eplb::cuda {

// Threads: safe. Never unloaded: NCCL leaves threads behind.
class NcclLibrary {
 public:
  // The first that will do of: `path` when not empty (then nothing else is tried); one that the
  // process has loaded already; EPLB_NCCL_PATH, and where that is set nothing after it; the
  // loader's libnccl.so.2; NVIDIA's wheel below PYTHONPATH and VIRTUAL_ENV. errors:
  // FailedPrecondition, one line with what was tried and why each did not do: not found, a symbol
  // is missing, older than 2.18 (non-blocking communicators that share nothing), newer major
  // version. cost: up to a second, for the file has 200 MB.
  static absl::StatusOr<const NcclLibrary*> Load(const std::string& path = "");

  int version() const { return version_; }           // 22809 for 2.28.9
  std::string version_text() const;                  // "2.28.9"
  const std::string& path() const { return path_; }  // path of the file that was loaded

  // Reports that EPLB_NCCL_PATH names another file than the one in use; empty if it does not.
  std::string note() const;

  struct Functions;  // NCCL's functions by their names, in cuda/nccl_library.h
  const Functions& functions() const { return *functions_; }

 private:
  friend struct NcclLoader;
  NcclLibrary() = default;

  std::shared_ptr<const Functions> functions_;
  std::string path_;
  int version_ = 0;
};

// The functions of libnccl that are used, with the types that nccl.h gives them. Only for what
// calls NCCL: everything else includes nccl_library.h, which needs no nccl.h.

// All set once the library is loaded, but for those that a library may lack.
struct NcclLibrary::Functions {
  decltype(&::ncclGetVersion) ncclGetVersion = nullptr;
  decltype(&::ncclGetUniqueId) ncclGetUniqueId = nullptr;
  decltype(&::ncclGetErrorString) ncclGetErrorString = nullptr;
  decltype(&::ncclGetLastError) ncclGetLastError = nullptr;
  decltype(&::ncclCommInitRankConfig) ncclCommInitRankConfig = nullptr;
  decltype(&::ncclCommGetAsyncError) ncclCommGetAsyncError = nullptr;
  decltype(&::ncclCommAbort) ncclCommAbort = nullptr;
  decltype(&::ncclGroupStart) ncclGroupStart = nullptr;
  decltype(&::ncclGroupEnd) ncclGroupEnd = nullptr;
  decltype(&::ncclSend) ncclSend = nullptr;
  decltype(&::ncclRecv) ncclRecv = nullptr;
  // From 2.19 on: all of them or none.
  decltype(&::ncclMemAlloc) ncclMemAlloc = nullptr;
  decltype(&::ncclMemFree) ncclMemFree = nullptr;
  decltype(&::ncclCommRegister) ncclCommRegister = nullptr;
  decltype(&::ncclCommDeregister) ncclCommDeregister = nullptr;
};

}  // namespace eplb::cuda
