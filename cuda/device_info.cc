#include "cuda/device_info.h"

#include <array>
#include <atomic>

#include "cuda/status.h"
#include "placement/status_macros.h"

namespace eplb::cuda {
namespace {

constexpr int kKeptDevices = 64;  // beyond it the driver is asked each time

}  // namespace

absl::StatusOr<int32_t> NumMultiprocessors() {
  static std::array<std::atomic<int32_t>, kKeptDevices> kept{};  // 0: not asked yet
  int device = 0;
  EPLB_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&device), "cudaGetDevice"));
  const bool is_kept = device < kKeptDevices;
  if (is_kept) {
    const int32_t known = kept[static_cast<size_t>(device)].load(std::memory_order_relaxed);
    if (known != 0) return known;
  }
  int num_multiprocessors = 0;
  EPLB_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetAttribute(&num_multiprocessors, cudaDevAttrMultiProcessorCount, device),
               "cudaDeviceGetAttribute"));
  if (is_kept) {
    kept[static_cast<size_t>(device)].store(num_multiprocessors, std::memory_order_relaxed);
  }
  return num_multiprocessors;
}

}  // namespace eplb::cuda
