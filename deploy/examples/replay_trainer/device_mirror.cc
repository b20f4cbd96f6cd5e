// Copies of host memory on a GPU, over the CUDA runtime.
#include "deploy/examples/replay_trainer/device_mirror.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include <cuda_runtime_api.h>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/runtime.h"

namespace eplb {
namespace {

absl::Status Copy(void* to, const void* from, size_t num_bytes, cudaStream_t stream) {
  return cuda::ToStatus(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDefault, stream),
                        "cudaMemcpyAsync of expert state");
}

}  // namespace

struct DeviceMirror::Impl {
  int32_t device = 0;
  cuda::Stream stream;
  std::vector<std::span<std::byte>> blocks;
  std::vector<cuda::DeviceMemory> memory;  // memory of each block
};

DeviceMirror::DeviceMirror(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceMirror::~DeviceMirror() = default;

absl::StatusOr<int32_t> DeviceMirror::ChooseDevice(int32_t local_rank) {
  int count = 0;
  EPLB_RETURN_IF_ERROR(cuda::ToStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  if (count == 0) return FailedPrecondition("there is no CUDA device");
  const char* const variable = std::getenv("EPLB_TRAINER_DEVICE");
  if (variable == nullptr || *variable == '\0') return local_rank % count;
  int32_t device = -1;
  if (!absl::SimpleAtoi(variable, &device) || device < 0 || device >= count) {
    return InvalidInput("EPLB_TRAINER_DEVICE is \"", variable, "\", expected a device of 0..",
                        count - 1);
  }
  return device;
}

absl::StatusOr<std::unique_ptr<DeviceMirror>> DeviceMirror::Make(
    int32_t device, std::vector<std::span<std::byte>> blocks) {
  EPLB_ASSIGN_OR_RETURN(const cuda::DeviceGuard guard, cuda::DeviceGuard::Make(device));
  auto impl = std::make_unique<Impl>();
  impl->device = device;
  EPLB_ASSIGN_OR_RETURN(impl->stream, cuda::MakeStream());
  for (const std::span<std::byte> block : blocks) {
    EPLB_ASSIGN_OR_RETURN(cuda::DeviceMemory memory,
                          cuda::MakeDeviceMemory(static_cast<int64_t>(block.size())));
    impl->memory.push_back(std::move(memory));
  }
  impl->blocks = std::move(blocks);
  return std::unique_ptr<DeviceMirror>(new DeviceMirror(std::move(impl)));
}

absl::Status DeviceMirror::Upload() {
  EPLB_ASSIGN_OR_RETURN(const cuda::DeviceGuard guard, cuda::DeviceGuard::Make(impl_->device));
  for (size_t i = 0; i < impl_->blocks.size(); ++i) {
    const std::span<const std::byte> block = impl_->blocks[i];
    // From pageable memory: CUDA has staged the bytes when the call returns.
    EPLB_RETURN_IF_ERROR(Copy(OnDevice(i), block.data(), block.size(), impl_->stream.get()));
  }
  return absl::OkStatus();
}

absl::Status DeviceMirror::Download() {
  EPLB_ASSIGN_OR_RETURN(const cuda::DeviceGuard guard, cuda::DeviceGuard::Make(impl_->device));
  for (size_t i = 0; i < impl_->blocks.size(); ++i) {
    const std::span<std::byte> block = impl_->blocks[i];
    EPLB_RETURN_IF_ERROR(Copy(block.data(), OnDevice(i), block.size(), impl_->stream.get()));
  }
  return cuda::ToStatus(cudaStreamSynchronize(impl_->stream.get()), "cudaStreamSynchronize");
}

std::byte* DeviceMirror::OnDevice(size_t block) const {
  return static_cast<std::byte*>(impl_->memory[block].get());
}

void* DeviceMirror::stream() const { return impl_->stream.get(); }

}  // namespace eplb
