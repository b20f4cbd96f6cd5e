#include "cuda/status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace eplb::cuda {
namespace {

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return absl::StatusCode::kOk;
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorDevicesUnavailable:
      return absl::StatusCode::kFailedPrecondition;
    case cudaErrorNotReady:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status ToStatus(cudaError_t error, std::string_view what) {
  const absl::StatusCode code = CodeOf(error);
  if (code == absl::StatusCode::kOk) return absl::OkStatus();
  (void)cudaGetLastError();
  return absl::Status(code,
                      absl::StrCat(std::string(what), ": ", cudaGetErrorName(error), " (",
                                   static_cast<int>(error), "): ", cudaGetErrorString(error)));
}

}  // namespace eplb::cuda
