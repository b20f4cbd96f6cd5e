// The driver's virtual memory management, found at run time: libcuda is not linked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace eplb::cuda {

// Physical memory of a device, mapped into this process at an address of its own. Move-only.
class VirtualMemory {
 public:
  // Memory of `device` that can leave the process as a POSIX descriptor. errors: FailedPrecondition
  // when driver or device cannot do that; ResourceExhausted; Internal.
  static absl::StatusOr<VirtualMemory> Make(int32_t device, int64_t num_bytes);
  // The memory behind a descriptor, readable and writable for `device`. The descriptor stays the
  // caller's. errors: FailedPrecondition, Internal.
  static absl::StatusOr<VirtualMemory> Import(int32_t device, int descriptor, int64_t num_bytes);

  VirtualMemory(VirtualMemory&& other) noexcept;
  VirtualMemory& operator=(VirtualMemory&& other) noexcept;
  ~VirtualMemory();

  std::span<std::byte> bytes() const { return {base_, num_bytes_}; }
  // True if Make made it for network cards, too (GPUDirect RDMA).
  bool network_reaches() const { return network_reaches_; }
  // A descriptor of the memory, the caller's to close. errors: Internal.
  absl::StatusOr<int> Export() const;

 private:
  VirtualMemory() = default;
  absl::Status MapFor(int32_t device, int64_t num_bytes, size_t granularity);

  bool network_reaches_ = false;
  std::byte* base_ = nullptr;
  size_t num_bytes_ = 0;     // asked for
  size_t mapped_bytes_ = 0;  // a multiple of the granularity; 0: not mapped
  uint64_t handle_ = 0;      // CUmemGenericAllocationHandle; 0: none
};

}  // namespace eplb::cuda
