#include "client/migration/row_memory.h"

#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"

#ifdef EPLB_WITH_CUDA
#include <cuda_runtime_api.h>

#include "cuda/status.h"
#endif

namespace eplb {
namespace {

#ifdef EPLB_WITH_CUDA
bool DeviceIsThere() {
  int count = 0;
  const bool there = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  (void)cudaGetLastError();  // no device is no error of ours
  return there;
}

absl::StatusOr<RowMemory> MemoryOf(const ExpertTensor& tensor) {
  cudaPointerAttributes attributes{};
  const absl::Status asked = cuda::ToStatus(cudaPointerGetAttributes(&attributes, tensor.base),
                                            "cudaPointerGetAttributes");
  if (!asked.ok()) {
    return absl::Status(asked.code(),
                        absl::StrCat("tensor \"", tensor.name, "\": ", asked.message()));
  }
  if (attributes.type != cudaMemoryTypeDevice) return RowMemory{};
  return RowMemory{.device = attributes.device};
}
#else
bool DeviceIsThere() { return false; }
absl::StatusOr<RowMemory> MemoryOf(const ExpertTensor&) { return RowMemory{}; }
#endif

}  // namespace

std::string RowMemory::Text() const {
  return device.has_value() ? absl::StrCat("memory of device ", *device) : "host memory";
}

absl::StatusOr<RowMemory> FindMemory(std::span<const ExpertTensor> tensors) {
  if (tensors.empty() || !DeviceIsThere()) return RowMemory{};
  EPLB_ASSIGN_OR_RETURN(const RowMemory first, MemoryOf(tensors.front()));
  for (const ExpertTensor& tensor : tensors) {
    EPLB_ASSIGN_OR_RETURN(const RowMemory memory, MemoryOf(tensor));
    if (memory.device == first.device) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", tensor.name, "\" lies in ", memory.Text(), ", tensor \"",
                     tensors.front().name, "\" in ", first.Text(), "; all must lie in one memory"));
  }
  return first;
}

}  // namespace eplb
