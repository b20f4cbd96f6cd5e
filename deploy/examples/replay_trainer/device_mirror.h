// Copies of host memory on a GPU, for a trainer that computes on the CPU and keeps its experts in
// GPU memory as a real one does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eplb {

// Threads: one caller. Without CUDA in the build there is none.
class DeviceMirror {
 public:
  // Returns EPLB_TRAINER_DEVICE if it is set, otherwise `local_rank` modulo the number of devices.
  // errors: FailedPrecondition without CUDA or without a usable device; InvalidArgument for a
  // variable that names no device.
  static absl::StatusOr<int32_t> ChooseDevice(int32_t local_rank);

  // Allocates memory of `device` for each block, which must outlive the mirror. Copies nothing.
  // errors: FailedPrecondition, ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<DeviceMirror>> Make(
      int32_t device, std::vector<std::span<std::byte>> blocks);
  ~DeviceMirror();

  // Copies all blocks to the device, in order with stream(). The host's may be written on return.
  absl::Status Upload();
  // Copies all blocks to the host after the work that stream() holds, and waits for them.
  absl::Status Download();

  // Returns the address of a block on the device.
  std::byte* OnDevice(size_t block) const;
  // The cudaStream_t of the work on the device's blocks.
  void* stream() const;

 private:
  struct Impl;
  explicit DeviceMirror(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace eplb
