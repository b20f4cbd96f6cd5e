#include "client/rows/row_memory.h"

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/driver_memory.h"

#ifdef EPLB_WITH_CUDA
#include <cuda_runtime_api.h>

#include "cuda/runtime.h"
#endif

namespace eplb {
namespace {

#ifdef EPLB_WITH_CUDA
std::string WhyNoDevice() {
  int count = 0;
  const absl::Status asked = cuda::ToStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (asked.ok()) return count > 0 ? "" : "there is no GPU";
  if (!cuda::DriverIsInstalled()) return "there is no GPU driver (libcuda.so.1)";
  return std::string(asked.message());
}

absl::StatusOr<RowMemory> MemoryOf(const ExpertTensor& tensor) {
  static const auto get =
      reinterpret_cast<cuda::PointerGetAttribute>(cuda::FindInDriver("cuPointerGetAttribute"));
  if (get == nullptr) return Internal("the CUDA driver has no cuPointerGetAttribute");
  const absl::StatusOr<std::optional<cuda::GpuMemory>> found =
      cuda::FindGpuMemory(get, tensor.base);
  if (!found.ok()) {
    return absl::Status(found.status().code(),
                        absl::StrCat("tensor \"", tensor.name, "\": ", found.status().message()));
  }
  if (!found->has_value()) return RowMemory{};
  if ((*found)->is_managed) {
    return InvalidInput("tensor \"", tensor.name,
                        "\" is in managed memory, expected that of one device or the host's");
  }
  return RowMemory{.device = (*found)->device};
}

absl::StatusOr<RowMemory> MemoryOfDeviceInUse() {
  int device = 0;
  EPLB_RETURN_IF_ERROR(cuda::ToStatus(cudaGetDevice(&device), "cudaGetDevice"));
  return RowMemory{.device = device};
}
#else
std::string WhyNoDevice() { return "this build has no CUDA"; }
absl::StatusOr<RowMemory> MemoryOf(const ExpertTensor&) { return RowMemory{}; }
absl::StatusOr<RowMemory> MemoryOfDeviceInUse() { return RowMemory{}; }
#endif

// A tensor of a GPU that another CUDA runtime of this process uses must not pass as the host's.
absl::Status CheckHostMemory(std::span<const ExpertTensor> tensors, const std::string& no_device) {
  for (const ExpertTensor& tensor : tensors) {
    if (!cuda::IsGpuMemory(tensor.base)) continue;
    return FailedPrecondition("tensor \"", tensor.name,
                              "\" is in the memory of a GPU that cannot be used here: ", no_device,
                              " (docs/transports.md names the driver that it needs)");
  }
  return absl::OkStatus();
}

}  // namespace

std::string RowMemory::Text() const {
  return device.has_value() ? absl::StrCat("memory of device ", *device) : "host memory";
}

absl::StatusOr<RowMemory> FindMemory(std::span<const ExpertTensor> tensors) {
  if (tensors.empty()) return RowMemory{};
  if (const std::string no_device = WhyNoDevice(); !no_device.empty()) {
    EPLB_RETURN_IF_ERROR(CheckHostMemory(tensors, no_device));
    return RowMemory{.device = std::nullopt, .no_device = no_device};
  }
  EPLB_ASSIGN_OR_RETURN(const RowMemory first, MemoryOf(tensors.front()));
  for (const ExpertTensor& tensor : tensors) {
    EPLB_ASSIGN_OR_RETURN(const RowMemory memory, MemoryOf(tensor));
    if (memory.device == first.device) continue;
    return InvalidInput("tensor \"", tensor.name, "\" is in ", memory.Text(), ", tensor \"",
                        tensors.front().name, "\" in ", first.Text(),
                        "; all must lie in one memory");
  }
  return first;
}

absl::StatusOr<RowMemory> MemoryInUse() {
  const std::string no_device = WhyNoDevice();
  if (no_device.empty()) return MemoryOfDeviceInUse();
  return RowMemory{.device = std::nullopt, .no_device = no_device};
}

}  // namespace eplb
