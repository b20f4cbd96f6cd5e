// The functions of libnccl that are used, with the types that nccl.h gives them. Only for what
// calls NCCL: everything else includes nccl_library.h, which needs no nccl.h.
#ifndef EPLB_CUDA_NCCL_FUNCTIONS_H_
#define EPLB_CUDA_NCCL_FUNCTIONS_H_

#include <nccl.h>

#include "cuda/nccl_library.h"

namespace eplb::cuda {

// All set once the library is loaded.
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
};

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_NCCL_FUNCTIONS_H_
